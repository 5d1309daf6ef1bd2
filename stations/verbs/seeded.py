"""`python -m stations seeded MODEL`: what happens to the model when layers' attention takes a residual seed (Pair X).

The texts come as JSON on stdin, `{"texts": [[ids], …], "answers": [{"prompt": [ids], "answer": [ids]}, …]}`. On texts,
which are teacher-forced, the seed is held against each layer's input, and the seeded model's distribution against the
plain one's; on answers, which the plain model chose, it is counted how often a seeded draft chooses the same. With
`"sets": [[layers], …]` only those are seeded, otherwise each layer alone and then the least harmed together.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import StationsError
from .events import EventParser, ProgressLines, run_verb

if TYPE_CHECKING:
    from ..models.card import ModelCard

MAX_TEXTS = 256
MAX_INPUT_BYTES = 16 << 20


class Answer(msgspec.Struct, frozen=True):
    """Token ids of a prompt and of the plain model's answer to it; `of`: a name that comes back with the counts."""

    prompt: list[int]
    answer: list[int]
    of: str = ""


class Texts(msgspec.Struct, frozen=True):
    """See the module."""

    texts: list[list[int]]
    answers: list[Answer]
    sets: list[list[int]] = []


def main(argv: list[str]) -> int:
    """The result has `layers`, `sets`, `ranking` and what they were measured on (`docs/pair-x.md`, *Probe*)."""
    parser = EventParser(prog="seeded", description=__doc__)
    parser.add_argument("model", help="name in the cache, path of a model folder, or synthetic:…")
    parser.add_argument("--seed", choices=("h", "x"), default="h", help="what a seed is (default h)")
    arguments = parser.parse_args(argv)
    return run_verb(lambda: _probe(arguments.model, arguments.seed, sys.stdin.buffer.read(MAX_INPUT_BYTES)))


def _probe(model: str, seed: str, given: bytes) -> dict[str, Any]:
    from ..kernels import make_backend
    from ..models.roles import all_roles
    from ..models.store import ModelStore
    from ..probe.layers import probe

    folder = ModelStore.default(os.environ).open(model)
    card = folder.card
    if card.residual != "sequential":
        raise StationsError(f"model {card.name} has {card.residual} layers, which take their seeds as they were built")
    if card.num_layers < 2:
        raise StationsError(f"model {card.name} has {card.num_layers} layer: no layer lies above another")
    texts = _read(given, card)
    backend = make_backend("fast", folder, all_roles(card.num_layers))
    answers = [(answer.prompt, answer.answer) for answer in texts.answers]
    sets = [tuple(layers) for layers in texts.sets]
    found = probe(backend, card, texts.texts, answers, seed, ProgressLines(), given=sets)
    return {**found, "answers_of": [answer.of for answer in texts.answers]}


def _read(given: bytes, card: ModelCard) -> Texts:
    try:
        found = msgspec.json.decode(given, type=Texts)
    except msgspec.MsgspecError as error:
        raise StationsError(f"the texts on stdin cannot be read: {error}") from None
    if not 1 <= len(found.texts) <= MAX_TEXTS or not 1 <= len(found.answers) <= MAX_TEXTS:
        raise StationsError(f"{len(found.texts)} texts and {len(found.answers)} answers: 1 to {MAX_TEXTS} of each")
    for ids in (*found.texts, *([*one.prompt, *one.answer] for one in found.answers)):
        if not 2 <= len(ids) <= card.context_length:
            raise StationsError(f"a text of {len(ids)} tokens: 2 to {card.context_length} are possible")
        if not all(0 <= token < card.vocab_size for token in ids):
            raise StationsError(f"a token id outside 0 to {card.vocab_size - 1}")
    for layers in found.sets:
        if not layers or not all(1 <= layer < card.num_layers for layer in layers):
            raise StationsError(f"a set of layers {layers}: layers 1 to {card.num_layers - 1} take seeds")
    if not all(one.prompt and one.answer for one in found.answers):
        raise StationsError("an answer without a prompt, or without tokens")
    return found
