"""`python -m stations early MODEL`: how often early logits already name the token that the whole model chooses.

Early logits are the final norm and the head on the output of layer t (Pair Z, Fano line 257). The texts come as JSON on
stdin, `[{"prompt": [ids], "answer": [ids]}, …]`; looked at are the rows from which the answer's tokens were chosen.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import StationsError
from .events import EventParser, ProgressLines, run_verb

if TYPE_CHECKING:
    from ..kernels import Backend
    from ..models.card import ModelCard

MAX_TEXTS = 256
MAX_INPUT_BYTES = 16 << 20


class Text(msgspec.Struct, frozen=True):
    """Token ids of a prompt and of the answer to it."""

    prompt: list[int]
    answer: list[int]


def main(argv: list[str]) -> int:
    """The result: `rows`, and in `agreement` the share whose likeliest token after each layer is the final one.

    `agreed`: for each text how many of its rows these are, by layer.
    """
    parser = EventParser(prog="early", description=__doc__)
    parser.add_argument("model", help="name in the cache, path of a model folder, or synthetic:…")
    arguments = parser.parse_args(argv)
    return run_verb(lambda: _early(arguments.model, sys.stdin.buffer.read(MAX_INPUT_BYTES)))


def _early(model: str, texts: bytes) -> dict[str, Any]:
    from ..kernels import make_backend
    from ..models.roles import all_roles
    from ..models.store import ModelStore

    folder = ModelStore.default(os.environ).open(model)
    card = folder.card
    if card.residual != "sequential":
        raise StationsError(f"model {card.name} has {card.residual} layers: early logits are those of sequential ones")
    found = _read(texts, card)
    backend = make_backend("fast", folder, all_roles(card.num_layers))
    progress = ProgressLines()
    agreed: list[list[int]] = []
    for index, text in enumerate(found):
        agreed.append(early_agreement(backend, card, text))
        progress("texts", index + 1, len(found))
    rows = sum(len(text.answer) for text in found)
    agreement = [sum(of_layer) / rows for of_layer in zip(*agreed, strict=True)]
    return {
        "model": card.name,
        "num_layers": card.num_layers,
        "rows": rows,
        "agreement": agreement,
        "agreed": agreed,
    }


def _read(texts: bytes, card: ModelCard) -> list[Text]:
    try:
        found = msgspec.json.decode(texts, type=list[Text])
    except msgspec.MsgspecError as error:
        raise StationsError(f"the texts on stdin cannot be read: {error}") from None
    if not 1 <= len(found) <= MAX_TEXTS:
        raise StationsError(f"{len(found)} texts: 1 to {MAX_TEXTS} are allowed")
    for text in found:
        ids = [*text.prompt, *text.answer]
        if not text.prompt or not text.answer or len(ids) > card.context_length:
            raise StationsError(
                f"a text of {len(text.prompt)} and {len(text.answer)} tokens: both parts at least 1, together at most "
                f"{card.context_length}"
            )
        if not all(0 <= token < card.vocab_size for token in ids):
            raise StationsError(f"a token id outside 0 to {card.vocab_size - 1}")
    return found


def early_agreement(backend: Backend, card: ModelCard, text: Text) -> list[int]:
    """For each layer, how many of the answer's rows have their likeliest token after it where the last layer has it."""
    import numpy as np

    from aeonflow.kv_options import KvOptions

    from ..core.kv_layout import KvLayout
    from ..kernels import Span

    ids = np.array([*text.prompt, *text.answer[:-1]], np.uint32)
    layout = KvLayout(card, KvOptions())
    x = backend.embed(ids, 0, 1)
    tops = []
    for layer in range(card.num_layers):
        cache = layout.new_cache(layer, len(ids))
        x = backend.block(layer, layer, x, [[Span(cache, 0, len(ids))]])
        tops.append(backend.head(np.ascontiguousarray(x[len(text.prompt) - 1 :]), 0, 1).argmax(axis=1))
    return [int((top == tops[-1]).sum()) for top in tops]
