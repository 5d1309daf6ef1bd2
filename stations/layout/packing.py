"""`pack` and `unpack`: GGUF bytes → packed layout → f32 weights, equal bit for bit to the `gguf` package's own.

Both work through a few groups at a time, so memory beside input and output stays below `_SLAB_BYTES` or so.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import LayoutError
from .formats import BLOCK_COLS, GROUP_ROWS, WeightFormat, weight_format
from .matrix import PackedMatrix
from .source import F32, U8, Fields, field_values, read_fields

Words = npt.NDArray[Any]  # codes as u8, u16 or u32, scales as u8 or f16

_SLAB_BYTES = 16 << 20  # of one temporary array while packing; larger slabs are not faster


def pack(ggml_type: str, raw: U8, rows: int, cols: int) -> PackedMatrix:
    """`raw`: the tensor's bytes as GGUF stores them (any shape), `rows` × `cols` logical weights.

    Raises LayoutError for an unsupported type, or a size that does not fit the shape.
    """
    fmt = weight_format(ggml_type)
    if rows < 1 or cols < 1 or cols % fmt.source_block_cols:
        raise LayoutError(f"{fmt.kind} rows hold n·{fmt.source_block_cols} weights, found {rows}x{cols}")
    row_bytes = cols // fmt.source_block_cols * fmt.source_block_bytes
    if raw.dtype != np.uint8 or raw.size != rows * row_bytes:
        raise LayoutError(f"{fmt.kind} {rows}x{cols} takes {rows * row_bytes} bytes, found {raw.dtype} x {raw.size}")
    source = raw.reshape(rows, row_bytes)
    num_groups = -(-rows // GROUP_ROWS)
    units = -(-cols // fmt.unit_cols)
    out = np.zeros((num_groups, units, fmt.unit_bytes), np.uint8)
    step = _groups_per_slab(cols)
    for group in range(0, num_groups, step):
        part = source[group * GROUP_ROWS : (group + step) * GROUP_ROWS]
        missing = -len(part) % GROUP_ROWS
        if missing:
            part = np.concatenate([part, np.zeros((missing, row_bytes), np.uint8)])
        _write_units(fmt, read_fields(fmt.kind, part), out[group : group + step])
    return PackedMatrix(fmt.kind, rows, cols, out.reshape(-1))


def unpack(matrix: PackedMatrix, rows: slice = slice(None)) -> F32:
    """The weights f32 [rows, cols] of a range of rows, all by default."""
    fmt = matrix.format
    lo, hi, stride = rows.indices(matrix.rows)
    if stride != 1:
        raise LayoutError(f"rows are unpacked in order, found a step of {stride}")
    units = matrix.data.reshape(matrix.num_groups, -1, fmt.unit_bytes)
    out = np.empty((max(0, hi - lo), matrix.cols), np.float32)
    end, step = -(-hi // GROUP_ROWS), _groups_per_slab(matrix.cols)
    for group in range(lo // GROUP_ROWS, end, step):
        fields = _read_units(fmt, units[group : min(group + step, end)], matrix.num_blocks)
        values = field_values(fmt.kind, fields)[:, : matrix.cols]
        first = group * GROUP_ROWS
        a, b = max(lo, first), min(hi, first + len(values))
        out[a - lo : b - lo] = values[a - first : b - first]
    return out


def _groups_per_slab(cols: int) -> int:
    return max(1, _SLAB_BYTES // (GROUP_ROWS * 4 * max(cols, 1)))


def _by_block(values: Words) -> Words:
    """[groups·16, B, …] → [groups, B, 16, …]: the 16 rows of a group become lanes."""
    return values.reshape(-1, GROUP_ROWS, *values.shape[1:]).swapaxes(1, 2)


def _lanes_to_rows(values: Words) -> Words:
    """The inverse of `_by_block`."""
    rows = values.swapaxes(1, 2)
    return rows.reshape(-1, *rows.shape[2:])


def _write_units(fmt: WeightFormat, fields: Fields, out: U8) -> None:
    groups = len(out)
    body = fmt.unit_blocks * fmt.block_bytes
    blocks = out[:, :, :body].reshape(groups, -1, fmt.block_bytes)
    codes = _by_block(fields.codes)  # [G, B, 16, 32]
    blocks[:, :, : fmt.low_bytes] = _low_plane(fmt, codes)
    if fmt.high_bytes:
        blocks[:, :, fmt.low_bytes : fmt.scale_offset] = _high_plane(fmt, codes)
    scales: list[Words] = []
    if fields.sub_scale is not None:
        sub = _by_block(fields.sub_scale)  # [G, B, 16] or [G, B, 16, 2]
        scales = [sub] if sub.ndim == 3 else [sub[..., 0], sub[..., 1]]
        if fields.sub_minimum is not None:
            scales.append(_by_block(fields.sub_minimum))
        tail = [_by_block(f) for f in (fields.scale, fields.minimum) if f is not None]
        out[:, :, body:] = _as_bytes(tail)
    elif fields.scale is not None:
        scales = [_by_block(f) for f in (fields.scale, fields.minimum) if f is not None]
    if scales:
        blocks[:, :, fmt.scale_offset :] = _as_bytes(scales)
    if fmt.unit_blocks > 1:
        out[:, :, :body] = blocks.reshape(groups, -1, body)


def _as_bytes(parts: list[Words]) -> U8:
    """[G, B, 16] arrays side by side as bytes [G, B, n]."""
    return np.concatenate([np.ascontiguousarray(p).view(np.uint8) for p in parts], axis=-1)


def _low_plane(fmt: WeightFormat, codes: Words) -> U8:
    groups, num_blocks = codes.shape[:2]
    if fmt.code_bits >= 16:  # [32 inputs][16 lanes]
        return np.ascontiguousarray(codes.swapaxes(2, 3)).view(np.uint8).reshape(groups, num_blocks, -1)
    if fmt.code_bits == 8:  # word v of a lane holds inputs 4v..4v+3
        words = codes.reshape(groups, num_blocks, GROUP_ROWS, 8, 4).swapaxes(2, 3)
        return np.ascontiguousarray(words).view(np.uint8).reshape(groups, num_blocks, -1)
    # byte j of word v: input 8v + j in the low nibble, 8v + 4 + j in the high one
    nibbles = (codes & np.uint8(15)).reshape(groups, num_blocks, GROUP_ROWS, 4, 2, 4)
    packed = nibbles[..., 0, :] | (nibbles[..., 1, :] << np.uint8(4))
    return np.ascontiguousarray(packed.swapaxes(2, 3)).reshape(groups, num_blocks, -1)


def _read_low_plane(fmt: WeightFormat, plane: U8) -> Words:
    groups, num_blocks = plane.shape[:2]
    if fmt.code_bits >= 16:
        word = np.uint32 if fmt.code_bits == 32 else np.uint16
        words = np.ascontiguousarray(plane).view(word)
        return words.reshape(groups, num_blocks, BLOCK_COLS, GROUP_ROWS).swapaxes(2, 3)
    if fmt.code_bits == 8:
        lanes = plane.reshape(groups, num_blocks, 8, GROUP_ROWS, 4).swapaxes(2, 3)
        return lanes.reshape(groups, num_blocks, GROUP_ROWS, BLOCK_COLS)
    lanes = plane.reshape(groups, num_blocks, 4, GROUP_ROWS, 4).swapaxes(2, 3)
    return np.stack([lanes & 15, lanes >> 4], axis=-2).reshape(groups, num_blocks, GROUP_ROWS, BLOCK_COLS)


def _high_plane(fmt: WeightFormat, codes: Words) -> U8:
    """Bits above the nibble. Input k = 4i + j: bit 8j + i of a lane's word (5 bits), or bits 8j + 2(i mod 4) of
    word i // 4 (6 bits), so that one shift and mask gives 4 bytes that line up with the nibbles."""
    groups, num_blocks = codes.shape[:2]
    high = (codes >> np.uint8(4)).reshape(groups, num_blocks, GROUP_ROWS, 8, 4)  # [.., i, j]
    width = fmt.code_bits - 4
    per_word = 8 // width
    words = high.reshape(groups, num_blocks, GROUP_ROWS, width, per_word, 4)
    shifts = (np.arange(per_word, dtype=np.uint8) * np.uint8(width))[:, None]
    planes = np.bitwise_or.reduce(words << shifts, axis=4)  # [.., 16, word, j]
    return np.ascontiguousarray(planes.swapaxes(2, 3)).reshape(groups, num_blocks, -1)


def _read_high_plane(fmt: WeightFormat, plane: U8) -> Words:
    groups, num_blocks = plane.shape[:2]
    width = fmt.code_bits - 4
    per_word = 8 // width
    words = plane.reshape(groups, num_blocks, width, GROUP_ROWS, 1, 4).swapaxes(2, 3)
    shifts = (np.arange(per_word, dtype=np.uint8) * np.uint8(width))[:, None]
    high = (words >> shifts) & np.uint8((1 << width) - 1)
    return high.reshape(groups, num_blocks, GROUP_ROWS, BLOCK_COLS)


def _read_units(fmt: WeightFormat, units: U8, num_blocks: int) -> Fields:
    groups = len(units)
    body = fmt.unit_blocks * fmt.block_bytes
    blocks = units[:, :, :body].reshape(groups, -1, fmt.block_bytes)[:, :num_blocks]
    codes = _read_low_plane(fmt, blocks[:, :, : fmt.low_bytes])
    if fmt.high_bytes:
        codes = codes | (_read_high_plane(fmt, blocks[:, :, fmt.low_bytes : fmt.scale_offset]) << np.uint8(4))
    rows = np.ascontiguousarray(_lanes_to_rows(codes))
    scales = blocks[:, :, fmt.scale_offset :].reshape(groups, num_blocks, -1)
    if fmt.code_bits >= 16:
        return Fields(rows)
    if fmt.unit_blocks == 1:
        halves = [_f16_rows(scales[:, :, i : i + 32]) for i in range(0, fmt.scale_bytes, 32)]
        return Fields(rows, scale=halves[0], minimum=halves[1] if len(halves) > 1 else None)
    tail = [_f16_rows(units[:, :, body + i : body + i + 32]) for i in range(0, fmt.tail_bytes, 32)]
    first, second = _lanes_to_rows(scales[:, :, :16]), _lanes_to_rows(scales[:, :, 16:])
    if fmt.kind == "q6_k":
        return Fields(rows, scale=tail[0], sub_scale=np.stack([first, second], axis=-1))
    return Fields(rows, scale=tail[0], minimum=tail[1], sub_scale=first, sub_minimum=second)


def _f16_rows(raw: U8) -> npt.NDArray[np.float16]:
    return _lanes_to_rows(np.ascontiguousarray(raw).view(np.float16))
