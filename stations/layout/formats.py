"""The packed weight formats: how many bytes a block takes and where its parts lie.

A matrix is stored as groups of 16 output rows × blocks of 32 inputs. All codes of one input column of a group lie
side by side, so that a kernel holds 16 output rows in one vector register. Formats keep the precision of their
GGUF source and its size to within 3 %. `docs/numerics.md` shows the tables.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import LayoutError

GROUP_ROWS = 16
BLOCK_COLS = 32
NIBBLE_BYTES = GROUP_ROWS * BLOCK_COLS // 2


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """One packed format. A *unit* is one block, or for K-quants a super-block of 8 blocks with a tail of f16 scales.

    A block is its low codes, then its high-bit plane, then its scales; offsets count from the start of the block.
    """

    kind: str
    code_bits: int  # bits of one code: 4, 5, 6, 8, 16 or 32
    high_bytes: int  # plane of the bits above the nibble, per block
    scale_bytes: int  # scales that belong to one block
    unit_blocks: int  # blocks in a unit
    tail_bytes: int  # after the unit's blocks
    source_block_cols: int  # inputs in one source block
    source_block_bytes: int

    @property
    def low_bytes(self) -> int:
        """Bytes of the nibble plane, or of the whole codes when they have 8 bits or more."""
        return NIBBLE_BYTES if self.code_bits < 8 else GROUP_ROWS * BLOCK_COLS * self.code_bits // 8

    @property
    def scale_offset(self) -> int:
        return self.low_bytes + self.high_bytes

    @property
    def block_bytes(self) -> int:
        return self.scale_offset + self.scale_bytes

    @property
    def unit_bytes(self) -> int:
        return self.unit_blocks * self.block_bytes + self.tail_bytes

    @property
    def unit_cols(self) -> int:
        return self.unit_blocks * BLOCK_COLS

    def blocks(self, cols: int) -> int:
        """Blocks of 32 inputs that hold `cols` inputs (padded with zero weights)."""
        return -(-cols // BLOCK_COLS)

    def group_bytes(self, cols: int) -> int:
        """Bytes of one group of 16 rows."""
        return -(-cols // self.unit_cols) * self.unit_bytes


def _format(
    kind: str, bits: int, high: int, scales: int, source_cols: int, source_bytes: int, *, unit: int = 1, tail: int = 0
) -> WeightFormat:
    return WeightFormat(kind, bits, high, scales, unit, tail, source_cols, source_bytes)


FORMATS: dict[str, WeightFormat] = {
    f.kind: f
    for f in (
        _format("f32", 32, 0, 0, 1, 4),
        _format("f16", 16, 0, 0, 1, 2),
        _format("bf16", 16, 0, 0, 1, 2),
        _format("q8_0", 8, 0, 32, 32, 34),
        _format("q4_0", 4, 0, 32, 32, 18),
        _format("q4_1", 4, 0, 64, 32, 20),
        _format("q5_0", 5, 64, 32, 32, 22),
        _format("q5_1", 5, 64, 64, 32, 24),
        _format("q4_k", 4, 0, 32, 256, 144, unit=8, tail=64),
        _format("q5_k", 5, 64, 32, 256, 176, unit=8, tail=64),
        _format("q6_k", 6, 128, 32, 256, 210, unit=8, tail=32),
    )
}


def weight_format(kind: str) -> WeightFormat:
    """The format of a packed kind, or of a GGUF type name in any case ("Q4_K", "F16"). Raises LayoutError."""
    try:
        return FORMATS[kind.lower()]
    except KeyError:
        supported = ", ".join(k.upper() for k in FORMATS)
        raise LayoutError(f"weight type {kind} is not supported; supported are {supported}") from None
