"""The areas and records that compiled code works on, for one model geometry (`fields.py`).

Activations of a batch lie in areas that are reused from call to call; they grow with the largest batch and the
longest context seen. Each thread has a scratch of its own.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...kv.memory import padded
from ...layout import BLOCK_COLS, padded_cols
from ...models.card import ModelCard
from . import fields as f
from .limits import (
    ATTEND_ROWS,
    CHUNK_BYTES,
    INT8_BLOCK_BYTES,
    MAX_QUERIES,
    MAX_TILE_ROWS,
    TILE_BLOCK_BYTES,
    attention_scratch_bytes,
)

I64 = npt.NDArray[np.int64]

_LINE = 64
_MIN_ROWS, _MIN_KEYS = 16, 1024
_MIN_HELPED_BYTES = 4096


class Workspace:
    """WORK and POOL records of one backend. `record` holds the address that calls pass."""

    def __init__(self, card: ModelCard, attend_address: int, num_helpers: int, *, is_int8: bool = False) -> None:
        self._card = card
        self._is_int8 = is_int8
        self._num_helpers = num_helpers
        self._rows = self._keys = 0
        self._area = np.zeros(0, np.uint8)
        self._flags = np.zeros(f.MAX_CHUNKS + 1, np.int64)
        self.pool = _aligned(f.POOL_FIELDS * 8).view(np.int64)
        self.pool[f.POOL_FLAGS] = self._flags.ctypes.data
        self.work = np.zeros(f.WORK_FIELDS, np.int64)
        self.record = self.work.ctypes.data
        self._describe(attend_address)

    def _describe(self, attend_address: int) -> None:
        card, work = self._card, self.work
        q_bytes, k_bytes = (padded(n * card.head_dim) * 4 for n in (card.num_heads, card.num_kv_heads))
        work[f.WORK_HIDDEN], work[f.WORK_FFN] = card.hidden_size, card.ffn_size
        work[f.WORK_HEADS], work[f.WORK_KV_HEADS] = card.num_heads, card.num_kv_heads
        work[f.WORK_HEAD_DIM], work[f.WORK_ROPE_DIM] = card.head_dim, card.rope.dim
        work[f.WORK_EPS], work[f.WORK_SCALE] = _bits(card.rms_eps), _bits(card.attention_scale)
        work[f.WORK_POOL] = self.pool.ctypes.data
        work[f.WORK_ATTEND] = attend_address
        work[f.WORK_X_STRIDE] = padded_cols(card.hidden_size) * 4
        work[f.WORK_QKV_STRIDE] = q_bytes + 2 * k_bytes
        work[f.WORK_K_COLUMN], work[f.WORK_V_COLUMN] = q_bytes, q_bytes + k_bytes
        work[f.WORK_HEADS_STRIDE] = padded_cols(card.num_heads * card.head_dim) * 4
        work[f.WORK_U_STRIDE] = padded_cols(card.ffn_size) * 4

    @property
    def keys(self) -> int:
        """Stored rows that a row may see as the areas are now."""
        return self._keys

    def fits(self, rows: int, keys: int) -> bool:
        """Whether a batch of `rows` rows whose longest row sees `keys` stored rows has room."""
        return rows <= self._rows and keys <= self._keys

    def grow(self, rows: int, keys: int) -> None:
        """Make room, at least doubling. No helper may be at work."""
        self._rows = _grown(rows, self._rows, _MIN_ROWS)
        self._keys = _grown(keys, self._keys, _MIN_KEYS)
        card, work, padded_rows = self._card, self.work, self._rows + MAX_TILE_ROWS
        widths = [padded_cols(n) for n in (card.hidden_size, card.num_heads * card.head_dim, card.ffn_size)]
        blocks = max(widths) // BLOCK_COLS
        tile_row = blocks * TILE_BLOCK_BYTES
        group = card.num_heads // card.num_kv_heads
        stage = max(CHUNK_BYTES, MAX_TILE_ROWS * tile_row, max(ATTEND_ROWS, MAX_QUERIES) * group * card.head_dim * 4)
        scratch = max(
            2 * CHUNK_BYTES, tile_row, attention_scratch_bytes(self._keys, padded(card.head_dim)), _MIN_HELPED_BYTES
        )
        stage, scratch = _lines(stage), _lines(scratch)
        sizes = {
            f.WORK_X: self._rows * int(work[f.WORK_X_STRIDE]),
            f.WORK_H: self._rows * int(work[f.WORK_X_STRIDE]),
            f.WORK_QKV: self._rows * int(work[f.WORK_QKV_STRIDE]),
            f.WORK_HEADS_OUT: self._rows * int(work[f.WORK_HEADS_STRIDE]),
            f.WORK_U: self._rows * int(work[f.WORK_U_STRIDE]),
            f.WORK_TILES: padded_rows * tile_row,
            f.WORK_INT8_TILES: padded_rows * blocks * INT8_BLOCK_BYTES if self._is_int8 else 0,
            f.WORK_SCRATCH: (1 + self._num_helpers) * (stage + scratch),
        }
        self._area = _aligned(sum(_lines(size) for size in sizes.values()))
        at = self._area.ctypes.data
        for index, size in sizes.items():
            work[index] = at
            at += _lines(size)
        work[f.WORK_STAGE_BYTES] = stage
        for helper in range(self._num_helpers):
            slot = f.POOL_SLOTS + helper * f.POOL_LINE
            own = int(work[f.WORK_SCRATCH]) + (1 + helper) * (stage + scratch)
            self.pool[slot + 1], self.pool[slot + 2] = own, own + stage


def _grown(needed: int, have: int, least: int) -> int:
    return have if needed <= have else max(needed, 2 * have, least)


def _lines(size: int) -> int:
    """Whole cache lines, and one more to read past the end of a row."""
    return (size + 2 * _LINE - 1) // _LINE * _LINE


def _aligned(size: int) -> npt.NDArray[np.uint8]:
    raw = np.zeros(size + _LINE, np.uint8)
    start = -raw.ctypes.data % _LINE
    return raw[start : start + size]


def _bits(value: float) -> int:
    """The f32's bits, where a record holds a float."""
    return int(np.float32(value).view(np.uint32))
