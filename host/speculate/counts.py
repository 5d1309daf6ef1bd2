"""What speculation did in one generation, counted: the field `speculation` of a result."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Source = Literal["lookup", "model", "draft"]


class SourceCounts(msgspec.Struct):
    """Guesses of one source that were sent to be verified, and those that plain decoding agreed with."""

    drafted: int = 0
    accepted: int = 0


class DraftCounts(msgspec.Struct):
    """Of the pipelined draft: results that came, were held until the window had room, came for what was past."""

    results: int = 0
    held: int = 0
    late: int = 0
    overtaken: int = 0  # the truth was there before the draft
    refused: int = 0  # passes from which none was grown because stations are busy


class Counts(msgspec.Struct):
    """`passes` of the decode and the `tokens` chosen from them; `restarts`: epochs that guesses gone wrong began."""

    passes: int = 0
    rows: int = 0
    tokens: int = 0
    restarts: int = 0
    errors: int = 0
    sources: dict[Source, SourceCounts] = {}
    drafts: DraftCounts = msgspec.field(default_factory=DraftCounts)

    def of(self, source: Source) -> SourceCounts:
        """The counts of a source, made when it is first used."""
        return self.sources.setdefault(source, SourceCounts())

    def to_json(self, mode: str) -> dict[str, Any]:
        """As results show it; rates are 0 where nothing was drafted or decoded."""
        drafted = sum(one.drafted for one in self.sources.values())
        accepted = sum(one.accepted for one in self.sources.values())
        return {
            "mode": mode,
            "passes": self.passes,
            "drafted": drafted,
            "accepted": accepted,
            "acceptance": round(accepted / drafted, 4) if drafted else 0.0,
            "tokens_per_pass": round(self.tokens / self.passes, 4) if self.passes else 0.0,
            "rows": self.rows,
            "restarts": self.restarts,
            "errors": self.errors,
            "sources": msgspec.to_builtins(self.sources),
            "drafts": msgspec.to_builtins(self.drafts),
        }
