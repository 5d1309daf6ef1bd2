"""How a layer's rows are read, whoever reads them: window, softcap, learned sinks, and whether attention mass is kept.

Belongs to the layer, not to the sequence: `clear` and imports keep it. Compiled code finds it in the header of the
layer's table; the mass of a pass is collected in an array made for that pass, a part for each KV head.
"""

from __future__ import annotations

import numpy as np

from .memory import LANES, aligned_zeros
from .streams import F32, I64
from .table import Header


class Reading:
    """`window`: rows visible to a query, the newest, itself included (0: all). `softcap` 0 is off. `sinks`: f32 [query
    heads], or None."""

    __slots__ = ("_mass", "_table", "keeps_mass", "sinks", "softcap", "window")

    def __init__(self, table: I64) -> None:
        self._table = table
        self._mass: F32 | None = None  # [kv_heads, rows, keys]
        self.window = 0
        self.softcap = 0.0
        self.sinks: F32 | None = None
        self.keeps_mass = False

    def set(self, *, window: int = 0, softcap: float = 0.0, sinks: F32 | None = None, keeps_mass: bool = False) -> None:
        """All of it at once, before the first row."""
        self.window, self.softcap, self.keeps_mass = window, softcap, keeps_mass
        self.sinks = None if sinks is None else np.ascontiguousarray(sinks, np.float32)
        self._table[Header.WINDOW] = window
        self._table[Header.SOFTCAP] = int(np.float32(softcap).view(np.uint32))
        self._table[Header.SINKS] = 0 if self.sinks is None else self.sinks.ctypes.data

    def begin_pass(self, kv_heads: int, rows: int, stored: int) -> None:
        """Room for the mass of a pass of `rows` rows behind `stored` ones."""
        keys = -(-(stored + rows) // LANES) * LANES
        self._mass = aligned_zeros((kv_heads, rows, keys), np.float32)
        self._table[Header.MASS] = self._mass.ctypes.data
        self._table[Header.MASS_HEAD], self._table[Header.MASS_ROW] = self._mass.strides[:2]

    def end_pass(self) -> F32:
        """What the rows of the pass have read, [rows, keys]: heads added in their order."""
        assert self._mass is not None, "begin_pass comes first"
        heads, self._mass = self._mass, None
        self._table[Header.MASS] = 0
        total: F32 = heads[0]
        for head in heads[1:]:
            total += head
        return total
