"""What becomes of the next token's distribution: likelihood of the text, divergence from the plain model, agreement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..kernels.base import F32, Backend

CHUNK_ROWS = 64  # rows of logits at once: 12 MB of a 49,152-word vocabulary

F64 = npt.NDArray[np.float64]


class RowScores(NamedTuple):
    """Of each row, f64 [S]: −log p of the text's next token; KL(plain ‖ this) in nats; 1 where the top token stays."""

    nll: F64
    kl: F64
    same_top: F64

    @classmethod
    def joined(cls, parts: Sequence[RowScores]) -> RowScores:
        """One after the other."""
        return cls(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def score_logits(logits: F32, log_plain: F32, targets: npt.NDArray[np.int64]) -> RowScores:
    """Rows [S, V] against the plain model's log-probabilities of the same rows; `targets` [S] comes next."""
    log_p = log_softmax(logits)
    nll = -log_p[np.arange(len(targets)), targets].astype(np.float64)
    kl = (np.exp(log_plain) * (log_plain - log_p)).sum(axis=1, dtype=np.float64)
    same_top = logits.argmax(axis=1) == log_plain.argmax(axis=1)
    return RowScores(nll, kl, same_top.astype(np.float64))


def score(backend: Backend, x: F32, log_plain: F32, targets: npt.NDArray[np.int64]) -> RowScores:
    """Score rows by their head inputs [S, H] against the plain model's log-probabilities [S, V]."""
    found = []
    for at in range(0, len(x), CHUNK_ROWS):
        rows = slice(at, at + CHUNK_ROWS)
        logits = backend.head(np.ascontiguousarray(x[rows]), 0, 1)
        found.append(score_logits(logits, log_plain[rows], targets[rows]))
    return RowScores.joined(found)


def log_softmax(logits: F32) -> F32:
    """[S, V], sums in f64."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    total = np.exp(shifted).sum(axis=1, dtype=np.float64, keepdims=True)
    log_p: F32 = np.subtract(shifted, np.log(total), dtype=np.float32, casting="same_kind")
    return log_p


def log_probabilities(backend: Backend, x: F32) -> F32:
    """Of what comes next after each row, by head inputs [S, H]: [S, V]."""
    chunks = [x[at : at + CHUNK_ROWS] for at in range(0, len(x), CHUNK_ROWS)]
    return np.concatenate([log_softmax(backend.head(np.ascontiguousarray(rows), 0, 1)) for rows in chunks])


def choices(backend: Backend, x: F32) -> npt.NDArray[np.int64]:
    """The likeliest token of each row of head inputs [S, H]."""
    found = [
        backend.head(np.ascontiguousarray(x[at : at + CHUNK_ROWS]), 0, 1).argmax(axis=1)
        for at in range(0, len(x), CHUNK_ROWS)
    ]
    return np.concatenate(found)
