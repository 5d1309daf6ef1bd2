"""Counters of a station, as *Stats* of `docs/protocol.md` names them. Plain integers, added to in the hot path."""

from __future__ import annotations

from typing import Any

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
    "drafts_dropped",
    "closed_drops",
    "epochs",
    "sessions_opened",
    "sessions_closed",
    "sessions_expired",
    "sessions_orphaned",
    "cancels",
    "seeds_sent",
    "seeds_received",
    "seeds_dropped",
    "stations_lost",
)


class Counters:
    """`events[name]` counts; rows and compute seconds by role."""

    __slots__ = ("compute_s", "events", "max_batch_jobs", "rows")

    def __init__(self) -> None:
        self.events: dict[str, int] = dict.fromkeys(EVENTS, 0)
        self.rows: dict[str, int] = {}
        self.compute_s: dict[str, float] = {}
        self.max_batch_jobs = 0

    def computed(self, role: str, jobs: int, rows: int, seconds: float) -> None:
        """One batch was computed."""
        events = self.events
        events["batches"] += 1
        events["jobs"] += jobs
        self.rows[role] = self.rows.get(role, 0) + rows
        self.compute_s[role] = self.compute_s.get(role, 0.0) + seconds
        if jobs > self.max_batch_jobs:
            self.max_batch_jobs = jobs

    def snapshot(self) -> dict[str, Any]:
        """Values for a Stats reply."""
        return {
            **self.events,
            "max_batch_jobs": self.max_batch_jobs,
            "rows": dict(self.rows),
            "compute_s": dict(self.compute_s),
        }
