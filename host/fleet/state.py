"""Running fleets on this machine: one state file each, and a lock that its supervisor holds as long as it lives.

`<cache>/fleets/<name>.json` (0600: it holds the secret) is replaced atomically, so a reader sees a whole state or none.
Whether the supervisor lives is asked of the lock, never of the process id: ids are used again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from .errors import FleetError, UnknownFleetError, describe_exit

DEFAULT_NAME = "default"
LOCK_PATIENCE_S = 0.5  # somebody who only asks whether the fleet lives holds its lock for a moment
LOCK_POLL_S = 0.02
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


class StationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One station as its supervisor last saw it."""

    name: str
    roles: tuple[str, ...]
    url: str
    pid: int
    state: str
    exit_status: int | None = None
    restarts: int = 0

    def __str__(self) -> str:
        """`station attn is dead (killed by SIGKILL)`."""
        ended = f" ({describe_exit(self.exit_status)})" if self.exit_status is not None else ""
        return f"station {self.name} is {self.state}{ended}"


class FleetState(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet as its supervisor last saw it. `started_at`: Unix time, seconds. `is_up`: all stations were ready.

    `directory`: of token and logs; "" in states written before it was told.
    """

    name: str
    token: str
    supervisor_pid: int
    started_at: float
    plan: str
    model: str
    kernels: str
    threads: int
    transport: str
    coalesce: bool
    is_up: bool
    stations: tuple[StationRecord, ...]
    link_delay_ms: float = 0.0
    directory: str = ""

    @property
    def urls(self) -> tuple[str, ...]:
        """Where all stations listen. Errors: FleetError naming those that do not."""
        away = [str(station) for station in self.stations if not station.url]
        if away:
            doing = "is not whole" if self.is_up else "is still starting"
            raise FleetError(f"fleet {self.name!r} {doing}: {', '.join(away)}")
        return tuple(station.url for station in self.stations)


def state_path(directory: Path) -> Path:
    """The state file of the fleet whose token and logs are in `directory`."""
    return directory.with_name(f"{directory.name}.json")


def read_state(path: Path) -> FleetState:
    """Errors: OSError, msgspec.DecodeError."""
    return msgspec.json.decode(path.read_bytes(), type=FleetState)


def cache_root(environ: Mapping[str, str]) -> Path:
    """`$AEONFLOW_HOME`, or `~/.cache/aeonflow`: models, fleets, compiled kernels."""
    if home := environ.get("AEONFLOW_HOME"):
        return Path(home).expanduser()
    return Path(environ.get("HOME") or os.path.expanduser("~")) / ".cache" / "aeonflow"


def already_runs(name: str) -> str:
    """What to say to somebody who starts a fleet under a name that is taken."""
    return f"fleet {name!r} runs already; stop it with: aeonflow down --fleet {name}"


class FleetRegistry:
    """The fleets below `<cache>/fleets`."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "fleets"

    def directory(self, name: str) -> Path:
        """Token file and logs of the fleet."""
        return self.folder / self._checked(name)

    def names(self) -> list[str]:
        """Names with a state file, dead ones included."""
        return sorted(path.stem for path in self.folder.glob("*.json"))

    def read(self, name: str) -> FleetState:
        """The state of a fleet, alive or not. Errors: UnknownFleetError with the names there are."""
        path = state_path(self.directory(name))
        try:
            return read_state(path)
        except FileNotFoundError:
            known = ", ".join(self.names()) or "none"
            raise UnknownFleetError(
                f"no fleet {name!r} was started here (known: {known}); start one with: aeonflow up"
            ) from None
        except msgspec.DecodeError as exc:
            raise FleetError(f"state file {path} cannot be read: {exc}; remove it") from exc

    def read_live(self, name: str) -> FleetState:
        """Like `read`, but FleetError when the supervisor is gone: its stations left with it."""
        state = self.read(name)
        if not self.is_alive(name):
            raise FleetError(
                f"fleet {name!r} is not running: its supervisor (pid {state.supervisor_pid}) died without a clean-up; "
                f"clear what it left with: aeonflow down --fleet {name}"
            )
        return state

    def write(self, state: FleetState) -> None:
        """Replace the state atomically; mode 0600 from the first byte on."""
        path = state_path(self.directory(state.name))
        descriptor, temporary = tempfile.mkstemp(prefix=f".{state.name}.", dir=self.folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(state), indent=1) + b"\n")
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise

    def remove(self, name: str, *, keep_logs: bool = True) -> None:
        """Forget a fleet. Its logs stay until the next fleet of that name, or go with it."""
        state_path(self.directory(name)).unlink(missing_ok=True)
        if not keep_logs:
            shutil.rmtree(self.directory(name), ignore_errors=True)

    def is_alive(self, name: str) -> bool:
        """Is the fleet's lock held?"""
        try:
            with self.lock(name, patience_s=0.0):
                return False
        except FleetError:
            return True

    @contextlib.contextmanager
    def lock(self, name: str, *, patience_s: float = LOCK_PATIENCE_S) -> Iterator[None]:
        """Hold the fleet's lock. Errors: FleetError when another process holds it for longer than `patience_s`."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self.folder / f"{self._checked(name)}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            deadline = time.monotonic() + patience_s
            while not try_lock(descriptor):
                if time.monotonic() >= deadline:
                    raise FleetError(already_runs(name))
                time.sleep(LOCK_POLL_S)
            yield
        finally:
            os.close(descriptor)

    def _checked(self, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise UnknownFleetError(
                f"fleet name {name!r}: letters, digits, '_', '.' and '-' are allowed, 1 to 64 of them"
            )
        return name


def try_lock(descriptor: int) -> bool:
    """Take the lock of an open file, until it is closed; False when another has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
