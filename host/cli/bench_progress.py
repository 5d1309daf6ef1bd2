"""Progress of long benches on stderr: a bar on a terminal, a line for each cell elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from .output import note
from .progress import Ticker

if TYPE_CHECKING:
    from host.bench.grid import Outcome, Planned


class _OnStderr:
    """Shows `_bar` inside the block, where stderr is a terminal; it is None elsewhere.

    `is_still`: it is drawn only when it is told something, as no thread may take time from what is measured.
    """

    def __init__(self, *, is_still: bool = False) -> None:
        self._is_still = is_still
        self._bar = _bar(auto_refresh=not is_still) if sys.stderr.isatty() else None

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()


class CountProgress(_OnStderr):
    """A bar of tokens, or whatever `what` counts, where stderr is a terminal; a line every few seconds elsewhere."""

    def __init__(self, total: int, what: str = "tokens", *, is_still: bool = False) -> None:
        super().__init__(is_still=is_still)
        self._total = total
        self._what = what
        self._ticker = Ticker(what)
        self._task = self._bar.add_task("starting stations", total=total) if self._bar is not None else None

    def came(self, count: int) -> None:
        """So many are there."""
        if self._bar is not None:
            self._bar.update(self._task, completed=count, description=self._what, refresh=self._is_still)
        else:
            self._ticker(count, self._total)


class GridProgress(_OnStderr):
    """A bar of estimated seconds over all cells, with the cell that runs; without a terminal a line a cell."""

    def __init__(self, planned: Sequence[Planned]) -> None:
        super().__init__()
        self._num_cells = len(planned)
        self._done_s = 0.0
        self._began_s = 0.0
        total = sum(one.estimate_s for one in planned)
        self._task = self._bar.add_task("", total=total) if self._bar is not None else None

    def began(self, index: int, planned: Planned) -> Callable[[int], None]:
        """A cell starts; what is returned is called with the number of its tokens so far."""
        name = f"{index + 1}/{self._num_cells} {planned.cell.link_delay_ms:g} ms, {planned.cell.way}"
        self._began_s = time.monotonic()
        bar = self._bar
        if bar is None:
            return lambda count: None
        bar.update(self._task, description=f"{name}: starting", completed=self._done_s)

        def came(count: int) -> None:
            share = count / planned.cell.new_tokens
            told = f"{name}: token {count}"
            bar.update(self._task, description=told, completed=self._done_s + share * planned.estimate_s)

        return came

    def ended(self, outcome: Outcome) -> None:
        """The cell that was begun last is over."""
        planned = outcome.planned
        self._done_s += planned.estimate_s
        took = f"({time.monotonic() - self._began_s:.0f} s, {planned.estimate_s:.0f} were estimated)"
        name = f"{planned.cell.link_delay_ms:g} ms, {planned.cell.way}"
        if outcome.measured is None:
            note(f"{name}: {outcome.why}")
            return
        report = outcome.measured.report
        note(f"{name}: {1e3 * report['token_s']:.1f} ms a token, {report['formula_ratio']} x the formula {took}")


def _bar(*, auto_refresh: bool) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=auto_refresh)
