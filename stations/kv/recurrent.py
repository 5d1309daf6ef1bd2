"""The gated delta rule with its short convolution: a recurrent layer whose state does not grow with the context.

For one head, with decay α, write strength β, key k, value v and query q (Yang et al., Gated Delta Networks, 2024):

    S' = α S        S ← S' + β (v − S' k) kᵀ        output S q

Before that every input channel passes a causal convolution over its last `taps` values and silu; q and k are then
divided by their norms, q by √key_dim. The layer's state vector is every head's S and the last taps − 1 inputs.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np

from .errors import KvShapeError
from .streams import F32

NORM_EPS = np.float32(1e-6)


class DeltaGeometry(NamedTuple):
    """Sizes of one layer. Input channels: q, k of every head (key_dim each), then v (value_dim each)."""

    heads: int
    key_dim: int
    value_dim: int
    taps: int = 4

    @property
    def channels(self) -> int:
        return self.heads * (2 * self.key_dim + self.value_dim)

    @property
    def state_size(self) -> int:
        """Values of the state vector: S [heads, value_dim, key_dim], then inputs [taps − 1, channels]."""
        return self.heads * self.value_dim * self.key_dim + (self.taps - 1) * self.channels


class DeltaRow(NamedTuple):
    """One position's input: x f32 [channels], α and β f32 [heads]."""

    x: F32
    alpha: F32
    beta: F32


def initial_state(geometry: DeltaGeometry) -> F32:
    return np.zeros(geometry.state_size, np.float32)


def delta_step(geometry: DeltaGeometry, state: F32, row: DeltaRow, taps: F32) -> tuple[F32, F32]:
    """state f32 [state_size], taps f32 [taps, channels], oldest first → (output [heads, value_dim], the next state)."""
    if state.shape != (geometry.state_size,) or row.x.shape != (geometry.channels,):
        raise KvShapeError(
            f"state of {state.size} and input of {row.x.size} values:"
            f" {geometry.state_size} and {geometry.channels} are expected"
        )
    heads, key_dim, value_dim, _ = geometry
    size = heads * value_dim * key_dim
    inputs = np.concatenate([state[size:].reshape(-1, geometry.channels), row.x[None]])
    mixed = np.add.reduce(inputs * taps, axis=0)
    with np.errstate(over="ignore"):
        mixed = mixed / (np.float32(1) + np.exp(-mixed))
    q, k = mixed[: 2 * heads * key_dim].reshape(2, heads, key_dim)
    q, k = _unit(q) * np.float32(key_dim**-0.5), _unit(k)
    v = mixed[2 * heads * key_dim :].reshape(heads, value_dim)
    s = state[:size].reshape(heads, value_dim, key_dim) * row.alpha[:, None, None]
    error = (v - _times(s, k)) * row.beta[:, None]
    s = s + error[:, :, None] * k[:, None, :]
    return _times(s, q), np.concatenate([s.ravel(), inputs[1:].ravel()])


def _times(s: F32, x: F32) -> F32:
    """S x for every head, key dims ascending: [heads, value_dim]."""
    return np.add.accumulate(s * x[:, None, :], axis=2, dtype=np.float32)[..., -1]


def _unit(x: F32) -> F32:
    return cast(F32, x / np.sqrt(np.add.accumulate(x * x, axis=1, dtype=np.float32)[:, -1:] + NORM_EPS))


class RecurrentState:
    """A layer's state vector, and beside it the states from before each row of the pass that may be rejected."""

    __slots__ = ("scratch", "state")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.state: F32 = np.zeros(0, np.float32)
        self.scratch: F32 = np.zeros(0, np.float32)

    def drop_scratch(self) -> None:
        self.scratch = np.zeros(0, np.float32)

    @property
    def stored_bytes(self) -> int:
        return self.state.nbytes + self.scratch.nbytes

    @property
    def undo_rows(self) -> int:
        """Rows that can be taken back."""
        return self.scratch.size // self.state.size if self.state.size else 0

    def advance(self, states: F32, *, may_be_rejected: bool) -> None:
        """The states after each row of a pass, f32 [rows, size]. A pass that may be rejected keeps those before."""
        before = self.state if self.state.size else np.zeros(states.shape[1], np.float32)
        self.scratch = np.concatenate([before, states[:-1].ravel()]) if may_be_rejected else np.zeros(0, np.float32)
        self.state = states[-1].copy()

    def take_back(self, rows: int) -> None:
        """The state from before the newest `rows` rows (at most `undo_rows`); the scratch goes."""
        if rows:
            states = self.scratch.reshape(-1, self.state.size)
            self.state = states[len(states) - rows].copy()
        self.drop_scratch()
