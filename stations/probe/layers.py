"""The probe: each layer seeded alone, then the least harmed ones together. Progress is counted in forward passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..kernels.base import Backend
from ..models.card import ModelCard
from .blocks import block_maxima, block_rows, block_sums
from .offs import offs
from .scores import RowScores, choices, log_probabilities, score
from .seeded import Seeded

SET_SIZES = (2, 4, 8, 16, 24)  # of the least harmed layers, and all of them
DRAFT_FORK = 1  # layers from 1 on that a draft leaves unseeded unless a report says better
MAX_LEFT_OUT = 6  # of the most harmed layers: what a draft may leave unseeded

Progress = Callable[[str, int, int], None]
Answers = Sequence[tuple[Sequence[int], Sequence[int]]]


class _Effect:
    """What a set of seeded layers does: scores on the texts, right drafts in each of the answers."""

    def __init__(self) -> None:
        self.texts: list[RowScores] = []
        self.right: list[int] = []

    @property
    def mean_kl(self) -> float:
        return float(np.concatenate([text.kl for text in self.texts]).mean())

    def told(self) -> dict[str, Any]:
        columns = {name: [getattr(text, name) for text in self.texts] for name in RowScores._fields}
        return {**{name: block_sums(runs) for name, runs in columns.items()}, "right": self.right}


def probe(
    backend: Backend,
    card: ModelCard,
    texts: Sequence[Sequence[int]],
    answers: Answers,
    seed: str,
    progress: Progress,
    *,
    given: Sequence[tuple[int, ...]] = (),
) -> dict[str, Any]:
    """Sums over blocks of the texts' rows and counts of the answers' rows; what they mean is for the host to say.

    `block_rows` and `drafted`: how many rows there are in each block, and in each answer. `plain`, of `layers` from 1
    on, and of `sets` of them by `ranking` (least harmed first, by KL): `nll`, `kl`, `same_top` a block, `right` an
    answer. Of `layers` also `max_abs`, the largest of a block, and sums of `relative` and `attention` (`RowOffs`). With
    sets `given` only those are measured, no layer alone.
    """
    plain = [Seeded(backend, card, ids) for ids in texts]
    drafts = [(Seeded(backend, card, [*prompt, *answer[:-1]]), len(prompt) - 1) for prompt, answer in answers]
    single, num_texts = () if given else tuple(range(1, card.num_layers)), len(plain) + len(drafts)
    steps = _Steps(progress, (len(single) + len(given or _sizes(card.num_layers))) * num_texts)
    base, *found = _measure(backend, texts, plain, drafts, [(), *((layer,) for layer in single)], seed, steps)
    alone = dict(zip(single, found, strict=True))
    ranking = sorted(single, key=lambda layer: (alone[layer].mean_kl, layer))
    together = [tuple(sorted(layers)) for layers in given] or _sets(ranking)
    steps.total = (len(single) + len(together)) * num_texts
    effects = _measure(backend, texts, plain, drafts, together, seed, steps)
    return {
        "model": card.name,
        "fingerprint": card.fingerprint,
        "seed": seed,
        "num_layers": card.num_layers,
        "num_texts": len(texts),
        "block_rows": block_rows([len(ids) - 1 for ids in texts]),
        "off_block_rows": block_rows([len(ids) for ids in texts]),
        "drafted": [len(answer) for _, answer in answers],
        "plain": base.told(),
        "layers": [{"layer": layer, **_offs(plain, layer, seed), **alone[layer].told()} for layer in single],
        "sets": [{"layers": list(layers), **one.told()} for layers, one in zip(together, effects, strict=True)],
        "ranking": ranking,
    }


def _sizes(num_layers: int) -> list[int]:
    """Sizes of the sets: a few, and all but the most harmed ones."""
    most = num_layers - 1
    return sorted({size for size in (*SET_SIZES, *range(most - MAX_LEFT_OUT, most + 1)) if 2 <= size <= most})


def _sets(ranking: Sequence[int]) -> list[tuple[int, ...]]:
    """The least harmed together, by size; and all above the first one, which a draft seeds where nothing is known."""
    found = [tuple(sorted(ranking[:size])) for size in _sizes(len(ranking) + 1)]
    above = tuple(sorted(ranking)[DRAFT_FORK:])
    return found if not above or above in found else [*found, above]


class _Steps:
    """Counts passes of one text with one set of layers."""

    def __init__(self, progress: Progress, total: int) -> None:
        self.total = total
        self._progress = progress
        self._done = 0

    def __call__(self) -> None:
        self._done += 1
        self._progress("seeded passes", self._done, self.total)


def _measure(
    backend: Backend,
    texts: Sequence[Sequence[int]],
    plain: Sequence[Seeded],
    drafts: Sequence[tuple[Seeded, int]],
    sets: Sequence[tuple[int, ...]],
    seed: str,
    steps: _Steps,
) -> list[_Effect]:
    """The effect of each set of layers. Text by text, so that the plain model's distributions are made once and go."""
    effects = [_Effect() for _ in sets]
    for ids, text in zip(texts, plain, strict=True):
        targets = np.array(ids[1:], np.int64)
        log_plain = log_probabilities(backend, text.x[-1][:-1])
        for layers, effect in zip(sets, effects, strict=True):
            effect.texts.append(score(backend, text.forward(layers, seed)[:-1], log_plain, targets))
            if layers:
                steps()
    for text, first in drafts:
        rows = np.arange(first, len(text.x[-1]))
        truth = choices(backend, text.x[-1][rows])
        for layers, effect in zip(sets, effects, strict=True):
            effect.right.append(int((choices(backend, text.draft(layers, seed, rows)) == truth).sum()))
            if layers:
                steps()
    return effects


def _offs(plain: Sequence[Seeded], layer: int, seed: str) -> dict[str, list[float]]:
    """The seed of `layer` against its input, block by block."""
    found = [offs(text, layer, seed) for text in plain]
    return {
        "max_abs": block_maxima([one.max_abs for one in found]),
        "relative": block_sums([one.relative for one in found]),
        "attention": block_sums([one.attention for one in found]),
    }
