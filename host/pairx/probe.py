"""`aeonflow pairx probe`: how much each layer of a model is harmed when its attention takes a residual seed.

The host chooses texts and lets the plain model answer prompts; a child of the stations' package runs the passes. The
report is kept below AEONFLOW_HOME, bound to the model's fingerprint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import resources

import msgspec

from ..bench.prompts import load_prompts
from ..engine import Engine
from ..errors import HostError

PROMPT_SETS = ("chat", "edit")
PROMPTS_A_SET = 6  # answered by the plain model; their rows are drafted again


class Answered(msgspec.Struct, frozen=True):
    """Token ids of a prompt and of the plain model's answer to it, and what set of prompts it is of."""

    prompt: list[int]
    answer: list[int]
    of: str = ""


class Material(msgspec.Struct, frozen=True):
    """What a probe is run on: texts, and answers of the plain model, as token ids.

    `sets` of layers: seeded together, and nothing else is measured; without any, each layer alone, then the least
    harmed.
    """

    texts: list[list[int]]
    answers: list[Answered]
    sets: list[list[int]] = []

    @property
    def to_verb(self) -> bytes:
        return msgspec.json.encode(self)


def shipped_texts() -> list[str]:
    """Three pages of prose that come with the host."""
    folder = resources.files(__package__).joinpath("texts")
    return [path.read_text("utf-8") for path in sorted(folder.iterdir(), key=lambda path: path.name)]


async def gather_material(
    model: str,
    texts: Sequence[str],
    *,
    tokens: int,
    new_tokens: int,
    prompts_a_set: int = PROMPTS_A_SET,
    ignore_eos: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Material:
    """The first `tokens` of each text, and `new_tokens` answered greedily to each shipped prompt.

    `progress`: answers so far, of how many.
    """
    prompts = [(name, prompt) for name in PROMPT_SETS for prompt in load_prompts(name).texts[:prompts_a_set]]
    async with Engine.launch(model=model) as engine:
        limit = min(tokens, engine.card.context_length)
        ids = [engine.tokenize(text)[:limit] for text in texts]
        answers = []
        for name, prompt in prompts:
            found = await engine.generate(prompt, max_tokens=new_tokens, ignore_eos=ignore_eos).collect()
            answers.append(Answered(list(found.prompt_ids), list(found.token_ids), name))
            progress(len(answers), len(prompts))
    if short := [len(one) for one in ids if len(one) < 2]:
        raise HostError(f"a text of {short[0]} tokens: at least 2 are needed")
    return Material(ids, answers)
