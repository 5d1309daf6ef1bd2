"""What becomes of the next token's distribution: likelihood of the text, divergence from the plain model, agreement."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..kernels.base import F32, Backend

CHUNK_ROWS = 64  # rows of logits at once: 12 MB of a 49,152-word vocabulary


class Scores:
    """Sums over rows; `add` as often as there are texts."""

    def __init__(self) -> None:
        self.rows = self.same_top = 0
        self.nll = self.kl = 0.0

    def add(self, logits: F32, log_plain: F32, targets: npt.NDArray[np.int64]) -> None:
        """Rows [S, V] against the plain model's log-probabilities of the same rows; `targets` [S] comes next."""
        log_p = log_softmax(logits)
        self.rows += len(logits)
        self.nll -= float(log_p[np.arange(len(targets)), targets].sum(dtype=np.float64))
        self.kl += float((np.exp(log_plain) * (log_plain - log_p)).sum(dtype=np.float64))
        self.same_top += int((logits.argmax(axis=1) == log_plain.argmax(axis=1)).sum())

    @property
    def perplexity(self) -> float:
        return float(np.exp(self.nll / self.rows))

    @property
    def top1(self) -> float:
        """Share of rows whose likeliest token is the plain model's."""
        return self.same_top / self.rows

    @property
    def mean_kl(self) -> float:
        """Mean KL(plain ‖ seeded), nats."""
        return self.kl / self.rows


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


def score(backend: Backend, scores: Scores, x: F32, log_plain: F32, targets: npt.NDArray[np.int64]) -> None:
    """Score rows by their head inputs [S, H] against the plain model's log-probabilities [S, V]."""
    for at in range(0, len(x), CHUNK_ROWS):
        rows = slice(at, at + CHUNK_ROWS)
        scores.add(backend.head(np.ascontiguousarray(x[rows]), 0, 1), log_plain[rows], targets[rows])


def choices(backend: Backend, x: F32) -> npt.NDArray[np.int64]:
    """The likeliest token of each row of head inputs [S, H]."""
    found = [
        backend.head(np.ascontiguousarray(x[at : at + CHUNK_ROWS]), 0, 1).argmax(axis=1)
        for at in range(0, len(x), CHUNK_ROWS)
    ]
    return np.concatenate(found)
