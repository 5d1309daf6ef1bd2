"""Two rows of logits for the same position, compared: pure maths, no model and no session.

For row r with target token t, logits l of the exact cache and l' of the one under test, natural logarithms throughout:

    nll   = lse(l) - l[t]                                        likewise nll'
    kl    = KL(softmax l || softmax l') = sum softmax(l) (l - l') - (lse(l) - lse(l'))
    agree = argmax l == argmax l'                                ties: the lowest token id
    square = mean over the vocabulary of (l - l')²

Sums are f64 over f32 exponentials; equal rows give a kl of exactly 0, others are right to about 1e-7.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from aeonflow.errors import PoisonedError

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


class Softmax(NamedTuple):
    """exp(l - max l) f32 [rows, vocabulary], its sums and lse f64 [rows], the likeliest token [rows]."""

    exps: F32
    sums: F64
    lse: F64
    top: I64


def softmax_of(logits: F32) -> Softmax:
    """Of every row of f32 [rows, vocabulary]. PoisonedError for a row that is not finite."""
    top = logits.argmax(axis=1)
    peaks = np.take_along_axis(logits, top[:, None], axis=1)
    exps = np.exp(logits - peaks)
    sums = exps.sum(axis=1, dtype=np.float64)
    lse = np.log(sums) + peaks[:, 0]
    if not np.isfinite(lse).all():
        bad = int((~np.isfinite(lse)).argmax())
        raise PoisonedError(f"row {bad} of {len(logits)} rows of logits is not finite")
    return Softmax(exps, sums, lse, top)


class Comparison(NamedTuple):
    """Of consecutive rows, each f64 [rows]; `agree` is 0 or 1."""

    nll: F64
    kl: F64
    agree: F64
    square: F64


class Baseline:
    """Rows of the exact cache, to compare others with. `nll` f64 [rows] is their own."""

    def __init__(self, logits: F32, targets: I64) -> None:
        """`logits` f32 [rows, vocabulary], `targets` [rows]: the token that came next."""
        self._logits = logits
        self._targets = targets
        self._softmax = softmax_of(logits)
        self.nll = _nll(logits, self._softmax.lse, targets)

    def compare(self, logits: F32) -> Comparison:
        """The same positions under another cache, f32 [rows, vocabulary]."""
        if logits.shape != self._logits.shape:
            raise ValueError(f"logits {logits.shape} beside {self._logits.shape}")
        exact, other = self._softmax, softmax_of(logits)
        drift = np.einsum("rv,rv->r", exact.exps, self._logits - logits, dtype=np.float64, casting="same_kind")
        kl = drift / exact.sums - (exact.lse - other.lse)
        agree = (exact.top == other.top).astype(np.float64)
        square = np.square(logits - self._logits).mean(axis=1, dtype=np.float64)
        return Comparison(_nll(logits, other.lse, self._targets), kl, agree, square)


def _nll(logits: F32, lse: F64, targets: I64) -> F64:
    chosen = np.take_along_axis(logits, targets[:, None], axis=1)[:, 0]
    return np.asarray(lse - chosen, np.float64)
