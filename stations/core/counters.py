"""Counters of a station, as *Stats* of `docs/protocol.md` names them. Plain integers, added to in the hot path."""

from __future__ import annotations

from typing import Any

from aeonflow.fano import LINES

# Everything that is counted and has no number of its own to keep. All are in Stats from the start, at 0.
EVENTS = (
    "jobs",
    "batches",
    "batches_inline",
    "batches_threaded",
    "messages_in",
    "messages_forwarded",
    "messages_delivered_inside",
    "answers",
    "acknowledgements",
    "vents",
    "stale_frames",
    "stale_jobs",
    "stale_results",
    "duplicate_rows",
    "duplicate_parts",
    "gaps",
    "poisoned",
    "poisoned_frames",
    "unknown_sessions",
    "bad_messages",
    "overloads",
    "drafts_grown",
    "drafts_attended",
    "drafts_answered",
    "drafts_stale",
    "drafts_unfinished",
    "drafts_starved",
    "drafts_unreadable",
    "drafts_over_limit",
    "drafts_dropped",
    "draft_scratch_reads",
    "closed_drops",
    "epochs",
    "sessions_opened",
    "sessions_closed",
    "sessions_expired",
    "sessions_orphaned",
    "cancels",
    "seeds_sent",
    "seeds_received",
    "seeds_completed",
    "seeds_dropped",
    "seeds_duplicate",
    "seeds_conflict",
    "seeds_late",
    "seeds_unknown",
    "seeds_corrupt",
    "seeds_wrong_sign",
    "seeds_over_limit",
    "seeds_expired",
    "stations_lost",
)


class ShadowFigures:
    """Of one layer: seeds held against the chain's rows, how many were equal, and how far the others were off.

    `relative_sum` adds max |seed − x| / max |x| of every one that was not equal.
    """

    __slots__ = ("count", "equal", "max_abs", "relative_sum")

    def __init__(self) -> None:
        self.count = self.equal = 0
        self.max_abs = self.relative_sum = 0.0

    def snapshot(self) -> dict[str, Any]:
        """Plain values; the mean is over all comparisons, an equal one being off by 0."""
        mean = self.relative_sum / self.count if self.count else 0.0
        return {"count": self.count, "equal": self.equal, "max_abs": self.max_abs, "mean_relative": mean}


class Counters:
    """`events[name]` counts; rows and compute seconds by role; seeds by line, shadow figures by layer."""

    __slots__ = ("_seeds_received", "_seeds_sent", "_shadow", "compute_s", "events", "max_batch_jobs", "rows")

    def __init__(self) -> None:
        self.events: dict[str, int] = dict.fromkeys(EVENTS, 0)
        self.rows: dict[str, int] = {}
        self.compute_s: dict[str, float] = {}
        self.max_batch_jobs = 0
        self._seeds_sent = [0] * len(LINES)
        self._seeds_received = [0] * len(LINES)
        self._shadow: dict[int, ShadowFigures] = {}

    def seed_sent(self, line: int) -> None:
        """A seed of `line` leaves."""
        self.events["seeds_sent"] += 1
        self._seeds_sent[line] += 1

    def seed_received(self, line: int) -> None:
        """A seed of `line` has come, whatever becomes of it."""
        self.events["seeds_received"] += 1
        self._seeds_received[line] += 1

    def shadow_of(self, layer: int) -> ShadowFigures:
        """The figures of `layer`, to add to."""
        figures = self._shadow.get(layer)
        if figures is None:
            figures = self._shadow[layer] = ShadowFigures()
        return figures

    def computed(self, role: str, jobs: int, rows: int, seconds: float) -> None:
        """One batch was computed."""
        events = self.events
        events["batches"] += 1
        events["jobs"] += jobs
        self.rows[role] = self.rows.get(role, 0) + rows
        self.compute_s[role] = self.compute_s.get(role, 0.0) + seconds
        if jobs > self.max_batch_jobs:
            self.max_batch_jobs = jobs

    def computed_alone(self, role: str, rows: int, seconds: float) -> None:
        """So many batches of one row each, in the event loop."""
        if not rows:
            return
        self.events["batches_inline"] += rows
        self.events["batches"] += rows
        self.events["jobs"] += rows
        self.rows[role] = self.rows.get(role, 0) + rows
        self.compute_s[role] = self.compute_s.get(role, 0.0) + seconds
        self.max_batch_jobs = self.max_batch_jobs or 1

    def snapshot(self) -> dict[str, Any]:
        """Values for a Stats reply."""
        return {
            **self.events,
            "max_batch_jobs": self.max_batch_jobs,
            "rows": dict(self.rows),
            "compute_s": dict(self.compute_s),
            "seed_lines": self._seed_lines(),
            "shadow": {str(layer): self._shadow[layer].snapshot() for layer in sorted(self._shadow)},
        }

    def _seed_lines(self) -> dict[str, dict[str, int]]:
        """Seeds sent and received by line, as in {"145": {"sent": 3, "received": 3}}; lines without any left out."""
        both = zip(LINES, self._seeds_sent, self._seeds_received, strict=True)
        return {
            "".join(map(str, line.points)): {"sent": sent, "received": received}
            for line, sent, received in both
            if sent or received
        }
