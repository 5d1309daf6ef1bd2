"""The errors of the stations that no wire error names: one root, messages with the numbers found and allowed."""

from __future__ import annotations

from aeonflow.errors import AeonflowError


class StationsError(AeonflowError):
    """Root of what this package raises on purpose, itself an `AeonflowError`: a host that embeds a station knows no
    other."""


class LayoutError(StationsError):
    """Weights whose type, shape or size the packed layout cannot hold."""


class KernelError(StationsError):
    """A kernel set cannot be made or used on this machine; the message names what is missing."""
