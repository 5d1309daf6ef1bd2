"""A natively bounded layer (`swa_sink_v1`): a ring of the last W rows of raw keys and values, and trained sinks.

Keys are stored unrotated; a query is rotated by its distance to each key instead, so a row never needs its position.
The state is 2 · kv_heads · W · head_dim f32 and a counter, whatever the context. Up to 64 overwritten rows are kept
aside, outside of the state, so that a rejected pass can be undone.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt

from .errors import KvShapeError, RollbackError
from .streams import F32

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
DEFAULT_WINDOW = 128
MAX_COLUMNS = 160  # sinks and window together: what one softmax of the operator may span
UNDO_ROWS = 64  # a rollback beyond them is refused


class RingWeights(NamedTuple):
    """Trained parts of the operator. sink_k, sink_v f32 [kv_heads, S, head_dim], not rotated; `group_windows`: KV
    head g sees distances below group_windows[g] only (empty: the whole ring)."""

    sink_k: F32
    sink_v: F32
    group_windows: tuple[int, ...] = ()


class RingRope(NamedTuple):
    """Angles d · inv_freq for a distance d, on half-split pairs (i, i + len(inv_freq)); both sides carry `scale`."""

    inv_freq: F64
    scale: float = 1.0

    def tables(self, distances: I64) -> tuple[F32, F32]:
        """cos and sin, f32 [distances, pairs], built in f64, × scale²."""
        angles = distances[:, None].astype(np.float64) * self.inv_freq
        square = self.scale * self.scale
        return (np.cos(angles) * square).astype(np.float32), (np.sin(angles) * square).astype(np.float32)


class RingSnapshot(NamedTuple):
    """A ring's state, bit for bit, with what it can undo."""

    k: F32
    v: F32
    seen: int
    undo: tuple[tuple[F32, F32], ...]


class BoundedRing:
    """k, v f32 [kv_heads, window, head_dim]; row t lies in slot t mod window; `seen` rows came so far."""

    __slots__ = ("_undo", "head_dim", "k", "num_kv_heads", "seen", "v", "window")

    def __init__(self, num_kv_heads: int, head_dim: int, window: int = DEFAULT_WINDOW) -> None:
        if not 1 <= window <= MAX_COLUMNS:
            raise KvShapeError(f"ring of {window} rows: 1 to {MAX_COLUMNS} are allowed, sinks included")
        self.num_kv_heads, self.head_dim, self.window = num_kv_heads, head_dim, window
        self.k = np.zeros((num_kv_heads, window, head_dim), np.float32)
        self.v = np.zeros((num_kv_heads, window, head_dim), np.float32)
        self.seen = 0
        self._undo: deque[tuple[F32, F32]] = deque(maxlen=UNDO_ROWS)

    def __len__(self) -> int:
        """Rows stored."""
        return min(self.seen, self.window)

    @property
    def state_bytes(self) -> int:
        """2 · kv_heads · window · head_dim · 4 + 8."""
        return self.k.nbytes + self.v.nbytes + 8

    def insert(self, k: F32, v: F32) -> None:
        """One row, raw: f32 [kv_heads, head_dim]."""
        slot = self.seen % self.window
        self._undo.append((self.k[:, slot].copy(), self.v[:, slot].copy()))
        self.k[:, slot], self.v[:, slot] = k, v
        self.seen += 1

    def rollback(self, count: int) -> None:
        """Undo the newest `count` inserts. Raises RollbackError beyond what is kept aside."""
        if count > len(self._undo):
            raise RollbackError(
                f"rollback of {count} rows of a ring that saw {self.seen}: {len(self._undo)} can be undone"
            )
        for _ in range(count):
            self.seen -= 1
            slot = self.seen % self.window
            self.k[:, slot], self.v[:, slot] = self._undo.pop()

    def clear(self) -> None:
        """Zeros, in place."""
        self.k[:] = 0
        self.v[:] = 0
        self.seen = 0
        self._undo.clear()

    def snapshot(self) -> RingSnapshot:
        return RingSnapshot(self.k.copy(), self.v.copy(), self.seen, tuple(self._undo))

    def restore(self, snapshot: RingSnapshot) -> None:
        self.set_state(snapshot.k, snapshot.v, snapshot.seen)
        self._undo.extend(snapshot.undo)

    def set_state(self, k: F32, v: F32, seen: int) -> None:
        """Become another ring's state, which cannot be undone."""
        self.k[:], self.v[:], self.seen = k, v, seen
        self._undo.clear()

    def attend(self, q: F32, weights: RingWeights, rope: RingRope, scale: float) -> F32:
        """Raw queries f32 [heads, head_dim] of the newest row → f32 [heads, head_dim].

        Columns of the softmax: the sinks, then distances 0, 1, … from the newest row back, summed in that order.
        """
        heads = len(q)
        self._check(heads, weights, rope)
        per_kv = heads // self.num_kv_heads
        out = np.empty_like(q)
        for g in range(self.num_kv_heads):
            at = slice(g * per_kv, (g + 1) * per_kv)
            reach = min(len(self), weights.group_windows[g]) if weights.group_windows else len(self)
            slots = (self.seen - 1 - np.arange(reach)) % self.window
            turned = _rotated(q[at], *rope.tables(np.arange(reach)))
            scores = np.concatenate(
                [_dots(q[at][:, None], weights.sink_k[g]), _dots(turned, self.k[g, slots])], axis=1
            ) * np.float32(scale)
            values = np.concatenate([weights.sink_v[g], self.v[g, slots]])
            out[at] = _softmax_sum(scores, values)
        return out

    def _check(self, heads: int, weights: RingWeights, rope: RingRope) -> None:
        sinks = weights.sink_k.shape[1]
        if weights.sink_k.shape != (self.num_kv_heads, sinks, self.head_dim) or sinks + self.window > MAX_COLUMNS:
            raise KvShapeError(
                f"sinks of shape {weights.sink_k.shape} for a ring {self.num_kv_heads}×{self.window}×{self.head_dim}:"
                f" sinks and window may be {MAX_COLUMNS} columns together"
            )
        if heads % self.num_kv_heads or 2 * len(rope.inv_freq) > self.head_dim:
            raise KvShapeError(
                f"{heads} heads and {len(rope.inv_freq)} rotated pairs on {self.num_kv_heads}×{self.head_dim}"
            )


def _rotated(q: F32, cos: F32, sin: F32) -> F32:
    """q [heads, dim] turned by every distance: [heads, distances, dim]; dims beyond the pairs are untouched."""
    pairs = cos.shape[1]
    turned = np.repeat(q[:, None], len(cos), axis=1)
    low, high = q[:, None, :pairs], q[:, None, pairs : 2 * pairs]
    turned[..., :pairs] = low * cos - high * sin
    turned[..., pairs : 2 * pairs] = low * sin + high * cos
    return turned


def _dots(q: F32, keys: F32) -> F32:
    """q [heads, n or 1, dim] · keys [n, dim] → [heads, n], dims ascending."""
    return np.add.accumulate(q * keys[None], axis=2, dtype=np.float32)[..., -1]


def _softmax_sum(scores: F32, values: F32) -> F32:
    """scores [heads, n], values [n, dim] → [heads, dim]; both sums column by column."""
    e = np.exp(scores - scores.max(axis=1, keepdims=True))
    mass = np.add.accumulate(e, axis=1, dtype=np.float32)[:, -1:]
    return cast(F32, np.add.accumulate(e[:, :, None] * values[None], axis=1, dtype=np.float32)[:, -1] / mass)
