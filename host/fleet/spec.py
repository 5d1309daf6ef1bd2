"""How a station of a plan is started: the options all stations of a fleet share, command line, environment. Pure.

`station_command` and `station_environment` are the only places that know how a station is spelled on a command line.
The fleet's secret never appears there: stations read it from a file.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from host.plan import StationSpec

from .errors import FleetError

DEFAULT_HOST = "127.0.0.1"
MAX_PORT = 65535

# A second BLAS thread beside another process on the same core turns microseconds into milliseconds.
_BLAS_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


class StationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options that all stations of a fleet share. `model`: a name in the cache, a path, or `synthetic:…`.

    `extra` are further arguments of `python -m stations station`, passed on as they are.
    """

    model: str
    kernels: str = "fast"
    threads: int = 1
    transport: str = "auto"
    coalesce: bool = True
    link_delay_ms: float = 0.0
    extra: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise FleetError(f"threads is {self.threads}, at least 1 is needed")
        if self.link_delay_ms < 0:
            raise FleetError(f"link delay is {self.link_delay_ms} ms, it cannot be negative")


def listen_address(spec: StationSpec) -> tuple[str, int]:
    """Host and port a station is started on, from the plan's `host` (`HOST` or `HOST:PORT`); port 0 means any."""
    text = spec.host or DEFAULT_HOST
    if text.startswith("[") and "]" in text:
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    else:
        host, port = text, ""
    if port and not (port.isascii() and port.isdigit() and int(port) <= MAX_PORT):
        raise FleetError(f"station {spec.name}: port {port!r} of host {text!r} is not a number from 0 to {MAX_PORT}")
    return host, int(port or 0)


def station_command(
    spec: StationSpec, options: StationOptions, *, token_file: Path, port: int, python: str = sys.executable
) -> list[str]:
    """The command of one station. `-P` keeps the user's working directory out of the module search."""
    return [
        *(python, "-P", "-m", "stations", "station"),
        *("--name", spec.name),
        *("--roles", spec.roles_text),
        *("--listen", f"{_bracketed(listen_address(spec)[0])}:{port}"),
        *("--model", options.model),
        *("--token-file", str(token_file)),
        *("--kernels", options.kernels),
        *("--threads", str(options.threads)),
        *("--transport", options.transport),
        *("--coalesce", "on" if options.coalesce else "off"),
        *(("--link-delay-ms", f"{options.link_delay_ms:g}") if options.link_delay_ms else ()),
        "--exit-with-parent",
        *options.extra,
    ]


def station_environment(environ: Mapping[str, str], *, fleet: str, threads: int) -> dict[str, str]:
    """The environment of a station: thread counts pinned, the fleet's name, and no secret."""
    env = {name: value for name, value in environ.items() if name != "AEONFLOW_TOKEN"}
    env.update(dict.fromkeys(_BLAS_VARIABLES, "1"))
    env["NUMBA_NUM_THREADS"] = str(threads)
    env["AEONFLOW_FLEET"] = fleet
    env["PYTHONFAULTHANDLER"] = "1"  # a crash in native code leaves its stack in the log
    return env


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
