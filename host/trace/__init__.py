"""Traces: every hop of every token, from the host's and the stations' own records (`docs/tracing.md`).

`collect` records while something runs and brings the stations' events home on the host's clock; `chrome` writes them
for Perfetto and chrome://tracing; `breakdown` says where the time went and names the bottleneck.
"""

from __future__ import annotations

from .breakdown import Breakdown, break_down
from .chrome import chrome_trace, write_chrome_trace
from .collect import Tracing
from .recording import Recording, Track
from .to_file import traced_to

__all__ = [
    "Breakdown",
    "Recording",
    "Tracing",
    "Track",
    "break_down",
    "chrome_trace",
    "traced_to",
    "write_chrome_trace",
]
