"""From a checkpoint's tensors to weight files: which tensors stand in which file, packed a few rows at a time.

q|k|v and gate|up are stored as one matrix when their weight types agree and none needs padding, else under their own
names. Packing goes by
slabs of whole 16-row groups, so memory stays far below one tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..layout import GROUP_ROWS, PackedMatrix, can_concat_rows, pack, packed_bytes
from .card import ModelCard
from .checkpoint import U8, SourceTensor
from .manifest import FileEntry
from .weight_file import HEADER_BYTES, WeightFileWriter

SLAB_BYTES = 16 << 20  # raw bytes packed at once; a few times that is the import's working memory

Advance = Callable[[int], None]  # told the raw bytes that were packed


class MatrixPlan(NamedTuple):
    """A matrix of a file: the sources whose rows it stacks, all of one type and width."""

    name: str
    sources: tuple[SourceTensor, ...]

    @property
    def type(self) -> str:
        return self.sources[0].type

    @property
    def rows(self) -> int:
        return sum(s.rows for s in self.sources)

    @property
    def cols(self) -> int:
        return self.sources[0].cols


class FilePlan(NamedTuple):
    """A weight file to write: vectors (norms, sinks) by name, then matrices."""

    role: str
    layer: int
    vectors: tuple[tuple[str, SourceTensor], ...]
    matrices: tuple[MatrixPlan, ...]


def plan_files(card: ModelCard, tensors: dict[str, SourceTensor]) -> list[FilePlan]:
    """All weight files of a model in execution order; the head of a tied model holds the final norm only."""
    embedding = MatrixPlan("embedding", (tensors["token_embd.weight"],))
    plans = [FilePlan("embed", 0, (), (embedding,))]
    for layer in range(card.num_layers):
        t = {name: tensors[f"blk.{layer}.{name}.weight"] for name in _LAYER_TENSORS}
        norm1, norm2 = ("norm1", t["attn_norm"]), ("norm2", t["ffn_norm"])
        qkv = _stack("qkv", {"q": t["attn_q"], "k": t["attn_k"], "v": t["attn_v"]})
        gate_up = _stack("gate_up", {"gate": t["ffn_gate"], "up": t["ffn_up"]})
        output, down = MatrixPlan("output", (t["attn_output"],)), MatrixPlan("down", (t["ffn_down"],))
        sinks = (("sinks", tensors[f"blk.{layer}.attn_sinks.weight"]),) if card.attention.has_sinks else ()
        plans.append(FilePlan("attn", layer, (norm1, norm2, *sinks), (*qkv, output)))
        plans.append(FilePlan("gate_up", layer, (norm2,), gate_up))
        plans.append(FilePlan("down", layer, (), (down,)))
    head = () if card.tied_embeddings else (MatrixPlan("head", (tensors["output.weight"],)),)
    plans.append(FilePlan("head", 0, (("final_norm", tensors["output_norm.weight"]),), head))
    return plans


def source_bytes(plan: FilePlan) -> int:
    """Bytes read from the source for a file."""
    sources = [s for m in plan.matrices for s in m.sources] + [s for _, s in plan.vectors]
    return sum(s.bytes for s in sources)


def file_bytes(plan: FilePlan) -> int:
    """Bytes of the weight file, to within its paddings."""
    matrices = sum(packed_bytes(m.type, m.rows, m.cols) for m in plan.matrices)
    return HEADER_BYTES + matrices + sum(4 * source.cols for _, source in plan.vectors)


def write_file(plan: FilePlan, folder: Path, advance: Advance) -> FileEntry:
    """Write one weight file, slab by slab; `advance` hears of every raw byte read."""
    writer = WeightFileWriter(folder, plan.role, plan.layer)
    try:
        for name, source in plan.vectors:
            writer.vector(name, source.vector())
            advance(source.bytes)
        for matrix in plan.matrices:
            writer.matrix(matrix.name, matrix.type.lower(), matrix.rows, matrix.cols, _slabs(matrix, advance))
        return writer.finish()
    except BaseException:
        writer.abort()
        raise


_LAYER_TENSORS = (
    "attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down",
)  # fmt: skip


def _stack(name: str, parts: dict[str, SourceTensor]) -> tuple[MatrixPlan, ...]:
    if can_concat_rows([p.type for p in parts.values()], [p.rows for p in parts.values()]):
        return (MatrixPlan(name, tuple(parts.values())),)
    return tuple(MatrixPlan(part, (source,)) for part, source in parts.items())


def _slabs(matrix: MatrixPlan, advance: Advance) -> Iterator[U8]:
    row_bytes = matrix.sources[0].row_bytes
    step = max(GROUP_ROWS, SLAB_BYTES // row_bytes // GROUP_ROWS * GROUP_ROWS)
    for lo in range(0, matrix.rows, step):
        hi = min(lo + step, matrix.rows)
        yield _pack_rows(matrix, lo, hi).data
        advance((hi - lo) * row_bytes)


def _pack_rows(matrix: MatrixPlan, lo: int, hi: int) -> PackedMatrix:
    return pack(matrix.type, _read_rows(matrix.sources, lo, hi), hi - lo, matrix.cols)


def _read_rows(sources: Sequence[SourceTensor], lo: int, hi: int) -> U8:
    """Rows lo..hi of the stacked sources, u8 [hi - lo, row_bytes]."""
    pieces, start = [], 0
    for source in sources:
        first, last = max(lo - start, 0), min(hi - start, source.rows)
        if first < last:
            pieces.append(source.read(first, last))
        start += source.rows
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
