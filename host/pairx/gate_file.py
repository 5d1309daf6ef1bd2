"""The last result of `aeonflow bench gate` for a model: defaults follow it, and `live` is refused without it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from ..errors import HostError
from ..fleet.state import cache_root
from ..record_file import load_record, save_record

GATE_VERSION = 1
COMMAND = "aeonflow bench gate"


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


class Coalescing(msgspec.Struct, frozen=True, kw_only=True):
    """What the last gate of any model found of coalescing on this machine."""

    coalesce: bool = True
    made: str = ""  # date and time, UTC


def gate_path(fingerprint: str) -> Path:
    """Where the result for a model is kept."""
    return cache_root(os.environ) / "pairx" / f"{fingerprint}.gate.json"


def load_gate(fingerprint: str) -> GateResult | None:
    """The last result, None when the gate was not run. HostError for a file that cannot be read."""
    result = load_record(gate_path(fingerprint), GateResult, COMMAND)
    return result if result and (result.version, result.fingerprint) == (GATE_VERSION, fingerprint) else None


def save_gate(result: GateResult) -> Path:
    """Keep a result in place of an older one, and for whatever is started next whether coalescing pays here."""
    save_record(_coalescing_path(), Coalescing(coalesce=result.coalesces, made=result.made))
    return save_record(gate_path(result.fingerprint), result)


def coalesces_by_default() -> bool:
    """On, unless the gate's last run on this machine found that it does not pay; a file that is broken says nothing."""
    try:
        found = load_record(_coalescing_path(), Coalescing, COMMAND)
    except HostError:
        return True
    return found is None or found.coalesce


def _coalescing_path() -> Path:
    return cache_root(os.environ) / "pairx" / "coalescing.json"
