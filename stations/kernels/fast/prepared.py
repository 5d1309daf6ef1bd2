"""Rows prepared once and computed many times: one role at one layer for one sequence, a row a call.

What a general call works out anew for every batch (records, areas, addresses, arrays for results) is settled here, so
that a call costs its arithmetic. Bits are those of the general call: the same compiled code runs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from ...kv.layer_cache import LayerKvCache
from ...layout import GROUP_ROWS
from ..base import RowShape
from ..rotary import RotaryTable
from . import fields as f
from . import row_fields as r
from .loader import LoadedUnits
from .model_records import ModelRecords
from .units import LAYERS, ROW, lookup_unit
from .workspace import Workspace

_LINE = 64
_OPERATIONS = {"attn": f.OP_ATTN, "gate_up": f.OP_GATE_UP, "down": f.OP_DOWN}

NO_LIMIT = 1 << 32  # beyond every position

Run = Callable[..., int]
I64 = npt.NDArray[np.int64]


class FastRow:
    """`PreparedRow` (base.py) over the compiled unit `row`."""

    __slots__ = ("_keep", "frames", "limit", "run", "took_ns")

    def __init__(
        self, run: Run, record: I64, call: I64, cache: LayerKvCache | None, heads: Sequence[bytes],
        width: int, shape: RowShape, limit: int, keep: object,
    ) -> None:  # fmt: skip
        record[r.ROW_CALL] = call.ctypes.data
        record[r.ROW_DATA], record[r.ROW_PLACE], record[r.ROW_HOP] = shape.data, shape.place, shape.hop
        record[r.ROW_CROSSING], record[r.ROW_NUM_OUTPUTS] = shape.crossing, len(heads)
        span = np.zeros(f.SPAN_FIELDS, np.int64)
        spans = np.array([span.ctypes.data], np.int64)
        if cache is not None:
            span[f.SPAN_TABLE], span[f.SPAN_ROWS] = cache.table.ctypes.data, 1
            call[f.CALL_SPANS], call[f.CALL_NUM_SPANS] = spans.ctypes.data, 1
            record[r.ROW_SPAN] = span.ctypes.data
        self.frames: list[memoryview] = []
        for index, head in enumerate(heads):
            frame = _frame_area(len(head), width)
            frame[: len(head)] = np.frombuffer(head, np.uint8)
            at = r.ROW_OUTPUTS + index * r.OUTPUT_FIELDS
            record[at + r.OUTPUT_ADDRESS], record[at + r.OUTPUT_WIDTH] = frame.ctypes.data + len(head), width
            call[(f.CALL_OUT, f.CALL_OUT2)[index]] = frame.ctypes.data + len(head)
            self.frames.append(frame.data[: len(head) + 4 * width])
        call[f.CALL_ROWS], call[f.CALL_OUT_STRIDE] = 1, 4 * _padded(width)
        self.limit = limit
        self.run: Callable[[bytes, bytes | None], object] = partial(run, record.ctypes.data)
        self.took_ns = record.data[r.ROW_TOOK_NS : r.ROW_TOOK_NS + 1]
        self._keep = (record, call, span, spans, cache, keep)


class RowPreparer:
    """Prepares rows for a backend whose calls run on one thread."""

    def __init__(self, units: LoadedUnits, records: ModelRecords, workspace: Workspace, rotary: RotaryTable) -> None:
        prototype = ctypes.PYFUNCTYPE(ctypes.c_int32, ctypes.c_int64, ctypes.c_char_p, ctypes.c_char_p)
        self._run = prototype(units.address(ROW))
        self._units = units
        self._records = records
        self._workspace = workspace
        self._rotary = rotary

    def layer(
        self, role: str, layer: int, cache: LayerKvCache | None, heads: Sequence[bytes], shape: RowShape
    ) -> FastRow | None:
        """Rows of attn, gate_up or down; None for caches with an overlay, and those that keep attention mass."""
        if cache is not None and (cache.has_overlay or cache.reading.keeps_mass):
            return None
        work = self._workspace.work
        width = int(work[f.WORK_FFN if role == "gate_up" else f.WORK_HIDDEN])
        limit = NO_LIMIT
        if cache is not None:
            limit = self._workspace.keys
            work[f.WORK_ROPE_TABLE] = self._rotary.upto(limit).ctypes.data
        record, call = self._record(), np.zeros(f.CALL_FIELDS, np.int64)
        layers = np.array([self._records.layers.ctypes.data + layer * f.LAYER_FIELDS * 8], np.int64)
        call[f.CALL_OP], call[f.CALL_LAYERS], call[f.CALL_NUM_LAYERS] = _OPERATIONS[role], layers.ctypes.data, 1
        return FastRow(self._run, record, call, cache, heads, width, shape, limit, (layers, self._units))

    def head(self, rows: int, parts: I64, heads: Sequence[bytes], shape: RowShape) -> FastRow:
        """Rows of the head: `rows` logits of the matrix that the PART records `parts` name."""
        norm = self._records.final_norm
        assert norm is not None
        record, call = self._record(), np.zeros(f.CALL_FIELDS, np.int64)
        call[f.CALL_OP], call[f.CALL_PARTS], call[f.CALL_NORM] = f.OP_HEAD, parts.ctypes.data, norm.ctypes.data
        return FastRow(self._run, record, call, None, heads, rows, shape, NO_LIMIT, (parts, self._units))

    def embed(self, heads: Sequence[bytes], shape: RowShape) -> FastRow:
        """Rows of the whole embedding, from one token each."""
        table = self._records.embedding
        assert table is not None
        record, call = self._record(), np.zeros(f.CALL_FIELDS, np.int64)
        record[r.ROW_LOOKUP], record[r.ROW_BLOCKS] = self._units.address(lookup_unit(table.kind)), table.num_blocks
        record[r.ROW_WEIGHTS], record[r.ROW_VOCAB] = table.data.ctypes.data, table.rows
        width = int(self._workspace.work[f.WORK_HIDDEN])
        return FastRow(self._run, record, call, None, heads, width, shape, NO_LIMIT, (table, self._units))

    def _record(self) -> I64:
        record = np.zeros(r.ROW_FIELDS, np.int64)
        record[r.ROW_RUN], record[r.ROW_WORK] = self._units.address(LAYERS), self._workspace.record
        return record


def _padded(width: int) -> int:
    return -(-width // GROUP_ROWS) * GROUP_ROWS


def _frame_area(head_bytes: int, width: int) -> npt.NDArray[np.uint8]:
    """Memory for a message whose values begin on a cache line, where kernels write whole groups of them."""
    area = np.zeros(head_bytes + 4 * _padded(width) + 2 * _LINE, np.uint8)
    return area[-(area.ctypes.data + head_bytes) % _LINE :]
