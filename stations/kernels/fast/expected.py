"""What every unit must make of the fixed input (`numerics.py`). A change here changes the bits of all results."""

from __future__ import annotations

EXPECTED: dict[str, str] = {}
