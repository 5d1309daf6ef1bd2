"""Packed weights → f32 lanes in registers: what one block of a format gives a kernel.

A `BlockReader` emits the 16 weights of an input (before scaling) and the block's scales. The ways to turn a code into
f32 (table permute, or or-ing it into the fraction of 2²³) give the same bits; the first needs AVX-512.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from ...layout import weight_format
from .vector import LANES, V16, V32, VI8, VI16, VI32, Emitter, const_f32, const_i32, const_i64

Scale = tuple[Any, Any]  # LLVM values: the scale, and the minimum or None

ZERO_POINT = {"q8_0": 128, "q4_0": 8, "q5_0": 16, "q6_k": 32}
_MAGIC = 0x4B000000  # the bits of 2²³ as f32: or-ing n < 2²³ into them gives 2²³ + n
_MAGIC_VALUE = 8388608.0
_LANE_WORD_BYTES = 64  # one 32-bit word of each of 16 rows


class BlockReader:
    """The weights and scales of one block of 32 inputs × 16 rows. Words and planes are loaded once each.

    `unit` is the address of the block's unit, `block` its own (they differ in K-quants), both i64.
    """

    def __init__(self, e: Emitter, kind: str, unit: ir.Value, block: ir.Value) -> None:
        self._e = e
        self._kind = kind
        self._format = weight_format(kind)
        self._unit = unit
        self._block = block
        self._words: dict[int, ir.Value] = {}

    @property
    def code_bits(self) -> int:
        return self._format.code_bits

    def weights(self, k: int) -> ir.Value:
        """Input k's 16 weights before scaling, zero point taken off: f32 lanes, exact."""
        e, bits = self._e, self._format.code_bits
        if bits == 32:
            return e.load(self._block, k * 64, V32)
        if self._kind == "f16":
            return e.half_to_float(e.load(self._block, k * 32, V16))
        if self._kind == "bf16":
            wide = e.b.zext(e.load(self._block, k * 32, VI16), VI32)
            return e.b.bitcast(e.b.shl(wide, const_i32(16)), V32)
        if bits == 8:
            word = self._word(k >> 2)
            return self._from_code(self._shifted(word, 8 * (k & 3), 255 if k & 3 < 3 else None))
        nibble = self._shift_right(self._word(k >> 3), 4 * (2 * (k & 3) + ((k >> 2) & 1)))
        if bits == 4:
            return self._from_nibble(nibble)
        return self._from_code(e.b.or_(e.b.and_(nibble, const_i32(15)), self._high_bits(k)))

    def codes(self, i: int) -> ir.Value:
        """The codes of inputs 4i to 4i + 3 as unsigned bytes of 16 words, zero point included. Kinds below 16 bits."""
        e, bits = self._e, self._format.code_bits
        if bits == 8:
            return self._word(i)
        low = e.b.and_(self._shift_right(self._word(i >> 1), 4 * (i & 1)), const_i32(0x0F0F0F0F))
        if bits == 4:
            return low
        width = bits - 4
        per_word = 8 // width
        plane = self._word(self._format.low_bytes // _LANE_WORD_BYTES + i // per_word)
        at, mask = width * (i % per_word), const_i32(0x10101010 * ((1 << width) - 1))
        moved = e.b.lshr(plane, const_i32(at - 4)) if at > 4 else e.b.shl(plane, const_i32(4 - at)) if at < 4 else plane
        return e.b.or_(low, e.b.and_(moved, mask))

    def scales(self) -> list[Scale]:
        """(scale, minimum) for each sub-block; a value is scale · code + minimum. No entry for unquantised kinds."""
        fmt, e = self._format, self._e
        if fmt.code_bits >= 16:
            return []
        at = fmt.scale_offset
        if fmt.unit_blocks == 1:
            scale = self._half(self._block, at)
            return [(scale, self._half(self._block, at + 32) if fmt.scale_bytes > 32 else None)]
        tail = fmt.unit_blocks * fmt.block_bytes
        step = self._half(self._unit, tail)
        if self._kind == "q6_k":
            halves = [e.b.sitofp(e.b.sext(e.load(self._block, at + 16 * i, VI8), VI32), V32) for i in range(2)]
            return [(e.b.fmul(step, half), None) for half in halves]
        low_step = self._half(self._unit, tail + 32)
        scale, low = (e.b.uitofp(e.b.zext(e.load(self._block, at + 16 * i, VI8), VI32), V32) for i in range(2))
        return [(e.b.fmul(step, scale), e.negate(e.b.fmul(low_step, low)))]

    def _word(self, index: int) -> ir.Value:
        if index not in self._words:
            self._words[index] = self._e.load(self._block, index * _LANE_WORD_BYTES, VI32)
        return self._words[index]

    def _half(self, base: ir.Value, offset: int) -> ir.Value:
        return self._e.half_to_float(self._e.load(base, offset, V16))

    def _shift_right(self, word: ir.Value, count: int) -> ir.Value:
        return self._e.b.lshr(word, const_i32(count)) if count else word

    def _shifted(self, word: ir.Value, count: int, mask: int | None) -> ir.Value:
        word = self._shift_right(word, count)
        return word if mask is None else self._e.b.and_(word, const_i32(mask))

    def _high_bits(self, k: int) -> ir.Value:
        """Bits above the nibble, in their place (from bit 4 on); see `packing._high_plane`."""
        width = self._format.code_bits - 4
        i, j = k >> 2, k & 3
        per_word = 8 // width
        word = self._word(self._format.low_bytes // _LANE_WORD_BYTES + i // per_word)
        at = 8 * j + width * (i % per_word)
        b = self._e.b
        moved = b.lshr(word, const_i32(at - 4)) if at > 4 else b.shl(word, const_i32(4 - at)) if at < 4 else word
        return b.and_(moved, const_i32(((1 << width) - 1) << 4))

    def _from_nibble(self, shifted: ir.Value) -> ir.Value:
        """The low 4 bits of each lane (others are ignored)."""
        e = self._e
        if e.target.has_permute:
            zero = ZERO_POINT.get(self._kind, 0)
            table = ir.Constant(V32, [float(code - zero) for code in range(LANES)])
            return e.call("llvm.x86.avx512.permvar.sf.512", V32, table, shifted)
        return self._from_code(e.b.and_(shifted, const_i32(15)))

    def _from_code(self, code: ir.Value) -> ir.Value:
        b = self._e.b
        zero = ZERO_POINT.get(self._kind, 0)
        return b.fsub(b.bitcast(b.or_(code, const_i32(_MAGIC)), V32), const_f32(_MAGIC_VALUE + zero))


def block_addresses(e: Emitter, kind: str, group: ir.Value, index: ir.Value) -> tuple[ir.Value, ir.Value]:
    """(unit, block) addresses of block `index` of the group at `group`."""
    fmt = weight_format(kind)
    if fmt.unit_blocks == 1:
        block = e.at(group, e.b.mul(index, const_i64(fmt.block_bytes)))
        return block, block
    shift = fmt.unit_blocks.bit_length() - 1
    unit = e.at(group, e.b.mul(e.b.lshr(index, const_i64(shift)), const_i64(fmt.unit_bytes)))
    inner = e.b.and_(index, const_i64(fmt.unit_blocks - 1))
    return unit, e.at(unit, e.b.mul(inner, const_i64(fmt.block_bytes)))
