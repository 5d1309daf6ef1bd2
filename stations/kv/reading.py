"""How a layer's rows are read, whoever reads them: window, softcap, learned sinks, and whether attention mass is kept.

Belongs to the layer, not to the sequence: `clear` and imports keep it. Compiled code finds it in the header of the
layer's table, and where the masses of a pass go.
"""

from __future__ import annotations

import numpy as np

from .streams import F32, I64
from .table import Header


class Reading:
    """`window`: rows visible to a query, the newest, itself included (0: all). `softcap` 0 is off. `sinks`: f32 [query
    heads], or None."""

    __slots__ = ("_masses", "_table", "keeps_mass", "sinks", "softcap", "window")

    def __init__(self, table: I64) -> None:
        self._table = table
        self._masses: F32 | None = None  # of the pass that is being computed
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

    def begin_pass(self, masses: F32) -> None:
        """Probabilities of a pass are added to `masses` f32 [rows, ≥ rows stored], one head after the other: KV heads
        share a row (`Header.MASS_HEAD` stays 0), since one thread computes them all, in their order."""
        self._masses = masses
        table = self._table
        table[Header.MASS], table[Header.MASS_ROW] = masses.ctypes.data, masses.strides[0]

    def end_pass(self) -> F32:
        """The masses that the pass was given, and has filled."""
        assert self._masses is not None, "begin_pass comes first"
        masses, self._masses = self._masses, None
        self._table[Header.MASS] = 0
        return masses
