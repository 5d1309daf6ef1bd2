"""The last result of `aeonflow bench gate` for a model: defaults follow it, and `live` is refused without it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from ..errors import HostError
from ..fleet.state import cache_root

GATE_VERSION = 1


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """One gate: what was measured, what would have passed, and whether it did."""

    name: str
    measured: float
    limit: float
    passed: bool
    note: str = ""


class GateResult(msgspec.Struct, frozen=True, kw_only=True):
    """All gates of one run."""

    version: int
    model: str
    fingerprint: str
    plan: str
    verdicts: tuple[Verdict, ...]
    made: str = ""  # date and time, UTC

    @property
    def permits_live(self) -> bool:
        """Were the seeds of all layers found equal to what the chain delivers, within the gate's limit?"""
        seeds = [verdict for verdict in self.verdicts if verdict.name.startswith("seeds")]
        return bool(seeds) and all(verdict.passed for verdict in seeds)

    @property
    def coalesces(self) -> bool:
        """Does coalescing pay here?"""
        return all(verdict.passed for verdict in self.verdicts if verdict.name == "coalescing")


def gate_path(fingerprint: str) -> Path:
    """Where the result for a model is kept."""
    return cache_root(os.environ) / "pairx" / f"{fingerprint}.gate.json"


def load_gate(fingerprint: str) -> GateResult | None:
    """The last result, None when the gate was not run. HostError for a file that cannot be read."""
    path = gate_path(fingerprint)
    try:
        result = msgspec.json.decode(path.read_bytes(), type=GateResult)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise HostError(f"the gate's result {path} cannot be read: {error}; run aeonflow bench gate anew") from error
    return result if (result.version, result.fingerprint) == (GATE_VERSION, fingerprint) else None


def save_gate(result: GateResult) -> Path:
    """Keep a result in place of an older one, and for whatever is started next whether coalescing pays here."""
    path = gate_path(result.fingerprint)
    path.parent.mkdir(parents=True, exist_ok=True)
    for place, content in ((path, result), (_coalescing_path(), {"coalesce": result.coalesces, "made": result.made})):
        fresh = place.with_suffix(".tmp")
        fresh.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1))
        fresh.replace(place)
    return path


def coalesces_by_default() -> bool:
    """On, unless the gate's last run on this machine found that it does not pay; a file that is broken says nothing."""
    try:
        found = msgspec.json.decode(_coalescing_path().read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        return True
    return bool(found.get("coalesce", True))


def _coalescing_path() -> Path:
    return cache_root(os.environ) / "pairx" / "coalescing.json"
