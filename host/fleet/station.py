"""A station of a fleet over its whole life: started, ready, dead, started again on the same port, stopped.

new → starting → ready → dead → starting …        any → stopped
               ↘ dead ↗       ↘ failed (too many restarts in a row)
"""

from __future__ import annotations

import asyncio
import enum
import random
from collections.abc import Callable
from pathlib import Path

import msgspec

from host.plan import StationSpec

from .child import ChildProcess, ErrorLine, ReadyLine
from .errors import StationStartError, describe_exit, describe_log
from .logs import StationLog
from .spec import StationOptions, listen_address, station_command, station_environment


class StationState(enum.StrEnum):
    NEW = "new"
    STARTING = "starting"
    READY = "ready"
    DEAD = "dead"
    FAILED = "failed"
    STOPPED = "stopped"


_NEXT: dict[StationState, frozenset[StationState]] = {
    StationState.NEW: frozenset({StationState.STARTING, StationState.STOPPED}),
    StationState.STARTING: frozenset({StationState.READY, StationState.DEAD, StationState.STOPPED}),
    StationState.READY: frozenset({StationState.DEAD, StationState.STOPPED}),
    StationState.DEAD: frozenset({StationState.STARTING, StationState.FAILED, StationState.STOPPED}),
    StationState.FAILED: frozenset({StationState.STOPPED}),
    StationState.STOPPED: frozenset(),
}


class RestartPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When a dead station is started again. Delays grow twofold from `first_s` to `cap_s`, with full jitter.

    `max_in_a_row` starts without `stable_s` seconds of life between them, then the station is given up.
    """

    first_s: float = 0.2
    cap_s: float = 10.0
    max_in_a_row: int = 8
    stable_s: float = 30.0

    def delay_s(self, attempt: int, rng: random.Random) -> float:
        """Seconds before restart `attempt` (from 0). The first is at once: most deaths are single."""
        return 0.0 if attempt == 0 else rng.uniform(0.0, min(self.cap_s, self.first_s * 2.0**attempt))


class StationContext(msgspec.Struct, frozen=True, kw_only=True):
    """What every station of a fleet is started with."""

    fleet: str
    options: StationOptions
    token_file: Path
    environ: dict[str, str]
    python: str
    start_timeout_s: float
    wrap: Callable[[StationSpec], tuple[str, ...]]  # what goes before a station's command


class PlannedStation:
    """A station of a plan, wherever it runs."""

    def __init__(self, spec: StationSpec) -> None:
        self.spec = spec

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def roles(self) -> tuple[str, ...]:
        """As the station's command line spells them: `attn:0-14`."""
        return tuple(str(role) for role in self.spec.roles)


class FleetStation(PlannedStation):
    """One station: the current process, its address and its log."""

    def __init__(
        self, spec: StationSpec, context: StationContext, log: StationLog, on_change: Callable[[FleetStation], None]
    ):
        super().__init__(spec)
        self.state = StationState.NEW
        self.restarts = 0
        self._url = ""
        self.port = listen_address(spec)[1]
        self.exit_status: int | None = None  # of the last process that ended; negative: killed by that signal
        self._context = context
        self._log = log
        self._on_change = on_change
        self._process: ChildProcess | None = None

    @property
    def pid(self) -> int:
        """0 when no process runs."""
        return self._process.pid if self._process is not None else 0

    @property
    def url(self) -> str:
        """Where it listens; empty while it does not."""
        return self._url if self.state is StationState.READY else ""

    def log_tail(self, lines: int = 5) -> tuple[str, ...]:
        """The last lines it wrote to stderr, oldest first."""
        return self._log.tail[-lines:] if lines > 0 else ()

    async def start(self) -> None:
        """Spawn and wait until ready. Errors: StationStartError, and then no process is left."""
        self._enter(StationState.STARTING)
        context = self._context
        command = station_command(
            self.spec, context.options, token_file=context.token_file, port=self.port, python=context.python
        )
        command[:0] = context.wrap(self.spec)
        env = station_environment(context.environ, fleet=context.fleet, threads=context.options.threads)
        try:
            process = await ChildProcess.spawn(command, env, self._log)
        except OSError as exc:
            self._enter(StationState.DEAD)
            raise StationStartError(f"station {self.name} cannot be started: {exc}", station=self.name) from exc
        self._process = process
        try:
            async with asyncio.timeout(context.start_timeout_s):
                line = await process.announced()
        except TimeoutError:
            await self._abandon(process)
            waited = f"did not become ready within {context.start_timeout_s:g} s"
            raise self._start_error(waited, None) from None
        except BaseException:
            await asyncio.shield(self._abandon(process))
            raise
        if isinstance(line, ReadyLine):
            self._url, self.port = line.url, line.port
            self._enter(StationState.READY)
            return
        await self._abandon(process, grace_s=2.0)  # it is leaving by itself: keep its own exit status
        if isinstance(line, ErrorLine):
            raise self._start_error(f"did not start: {line.message}", self.exit_status, with_log=False)
        raise self._start_error("exited before it was ready", self.exit_status)

    async def wait_dead(self) -> int:
        """Until the running process has exited; the state is then `dead`."""
        assert self._process is not None
        process = self._process
        self.exit_status = await process.wait()
        self._process = None
        if self.state is StationState.READY:
            self._log.note(f"station {self.name} (pid {process.pid}) is gone: {describe_exit(self.exit_status)}")
            self._enter(StationState.DEAD)
        return self.exit_status

    def give_up(self) -> None:
        self._enter(StationState.FAILED)

    def note(self, text: str) -> None:
        """Put a line of the launcher's own into the station's log."""
        self._log.note(text)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    async def stop(self, grace_s: float) -> None:
        """SIGTERM, then SIGKILL after `grace_s`; returns when the process is reaped. Idempotent."""
        if self._process is not None:
            self._process.terminate()
            await self._reap(self._process, grace_s)
        if self.state is not StationState.STOPPED:
            self._enter(StationState.STOPPED)
        self._log.close()

    async def _abandon(self, process: ChildProcess, grace_s: float = 0.0) -> None:
        await self._reap(process, grace_s)
        if self.state is StationState.STARTING:
            self._enter(StationState.DEAD)

    async def _reap(self, process: ChildProcess, grace_s: float) -> None:
        try:
            async with asyncio.timeout(grace_s):
                self.exit_status = await process.wait()
        except TimeoutError:
            process.kill()
            self.exit_status = await process.wait()
        self._process = None

    def _start_error(self, what: str, status: int | None, *, with_log: bool = True) -> StationStartError:
        tail = self._log.tail
        ended = f" ({describe_exit(status)})" if status is not None else ""
        log = describe_log(tail) if with_log else ""
        return StationStartError(
            f"station {self.name} {what}{ended}{log}", station=self.name, exit_status=status, log_tail=tail
        )

    def _enter(self, state: StationState) -> None:
        if state not in _NEXT[self.state]:
            raise AssertionError(f"station {self.name}: {self.state} → {state}")
        self.state = state
        self._on_change(self)
