"""LAYER and PART records of the weights a backend was given; matrices stay where they are (`fields.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...layout import NUM_SEGMENTS, PackedMatrix, ffn_slice, padded_cols, slice_rows
from ..weights import GivenRoles, Weights, gate_up_parts, qkv_parts
from . import fields as f
from .loader import LoadedUnits
from .units import activation_form, product_unit

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]


class SliceRecord(NamedTuple):
    """A slice of a layer's ffn: PART records of its rows of gate and up, its segments of DOWN, its columns."""

    gate_up: I64
    first_segment: int
    end_segment: int
    width: int


class ModelRecords:
    """Records for compiled code, and the arrays whose addresses they hold. `is_int8`: products of 8-bit activations."""

    def __init__(self, weights: Weights, roles: GivenRoles, *, is_int8: bool = False) -> None:
        self._is_int8 = is_int8
        self._keep: list[npt.NDArray[np.generic]] = []
        self._lists: list[tuple[int, int, list[PackedMatrix]]] = []  # layer, field, matrices
        self.kinds: set[str] = set()
        num_layers = weights.card.num_layers
        self.layers = np.zeros((num_layers, f.LAYER_FIELDS), np.int64)
        for layer in roles.layers("attn"):
            self._norm(layer, f.LAYER_NORM1, weights.norm("attn", layer, "norm1"))
            self._norm(layer, f.LAYER_NORM2, weights.norm("attn", layer, "norm2"))
            self._matrices(layer, f.LAYER_QKV, qkv_parts(weights, layer))
            self._matrices(layer, f.LAYER_OUTPUT, [weights.matrix("attn", layer, "output")])
        for layer in roles.layers("gate_up"):
            self._norm(layer, f.LAYER_NORM2, weights.norm("gate_up", layer, "norm2"))
            self._matrices(layer, f.LAYER_GATE_UP, gate_up_parts(weights, layer))
        for layer in roles.layers("down"):
            self._matrices(layer, f.LAYER_DOWN, [weights.matrix("down", layer, "down")])
        self.slices: dict[tuple[int, int, int], SliceRecord] = {}  # (layer, part, parts), once linked
        self._slice_parts: dict[tuple[int, int, int], list[PackedMatrix]] = {}
        for layer, part, parts in sorted(roles.slices):
            bounds = ffn_slice(weights.card.ffn_size, part, parts)
            rows = [slice_rows(matrix, *bounds) for matrix in gate_up_parts(weights, layer)]
            self._slice_parts[layer, part, parts] = rows
            self.kinds.update(matrix.kind for matrix in rows)
            self._matrices(layer, f.LAYER_DOWN, [weights.matrix("down", layer, "down")])
        self.final_norm: F32 | None = None
        self.head: PackedMatrix | None = None
        self.embedding: PackedMatrix | None = None
        if roles.layers("head"):
            self.final_norm = padded_norm(weights.norm("head", 0, "final_norm"))
            self.head = weights.matrix("head", 0, "head")
            self.kinds.add(self.head.kind)
        if roles.layers("embed"):
            self.embedding = weights.matrix("embed", 0, "embedding")

    def _norm(self, layer: int, field: int, weight: F32) -> None:
        norm = padded_norm(weight)
        self._keep.append(norm)
        self.layers[layer, field] = norm.ctypes.data

    def _matrices(self, layer: int, field: int, parts: list[PackedMatrix]) -> None:
        self.kinds.update(part.kind for part in parts)
        self._lists.append((layer, field, parts))

    def link(self, units: LoadedUnits) -> None:
        """Fill in the addresses of the kernels, once they are loaded."""
        for layer, field, parts in self._lists:
            record = self.part_records(parts, units)
            self._keep += [record, *(part.data for part in parts)]
            self.layers[layer, field] = record.ctypes.data
            if field == f.LAYER_QKV:
                self.layers[layer, f.LAYER_QKV_PARTS] = len(parts)
        self._lists.clear()
        for (layer, part, slices), rows in self._slice_parts.items():
            each = NUM_SEGMENTS // slices
            self._keep += [matrix.data for matrix in rows]
            self.slices[layer, part, slices] = SliceRecord(
                self.part_records(rows, units), part * each, (part + 1) * each, rows[0].rows
            )
        self._slice_parts.clear()

    def part_records(self, parts: Sequence[PackedMatrix], units: LoadedUnits) -> I64:
        """PART records of matrices side by side in the output, int64 [parts, PART_FIELDS]."""
        records = np.zeros((len(parts), f.PART_FIELDS), np.int64)
        column = 0
        for record, part in zip(records, parts, strict=True):
            form = activation_form(part.kind, is_int8=self._is_int8)
            record[f.PART_KERNEL] = units.address(product_unit(part.kind, form))
            record[f.PART_WEIGHTS] = part.data.ctypes.data
            record[f.PART_GROUPS], record[f.PART_COLUMN] = part.num_groups, column
            record[f.PART_FORM] = form
            column += part.num_groups * 64
        return records


def padded_norm(weight: F32) -> F32:
    """A copy in whole blocks, zeros behind: kernels read whole vectors."""
    norm = np.zeros(padded_cols(len(weight)), np.float32)
    norm[: len(weight)] = weight
    return norm
