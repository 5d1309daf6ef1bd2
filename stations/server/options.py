"""The command line of a station process, checked. The secret is no argument: it comes from a file or AEONFLOW_TOKEN."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ..kernels import KERNEL_SETS

MAX_THREADS = 256
TOKEN_VARIABLE = "AEONFLOW_TOKEN"
MAX_TOKEN_FILE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class StationOptions:
    """Sizes in bytes, times in seconds. `roles` "" means every role of the model."""

    model: str
    roles: str
    host: str
    port: int
    token: str
    name: str
    kernels: str
    threads: int
    transport: str
    coalesce: bool
    link_delay_s: float
    advertise: str
    insecure: bool
    tls_cert: Path | None
    tls_key: Path | None
    tls_ca: Path | None
    allowed_origins: tuple[str, ...]
    weights_from: tuple[str, ...]
    kv_budget_bytes: int
    drain_s: float
    exit_with_parent: bool


class _Parser(argparse.ArgumentParser):
    """Errors are raised, so that they can be told in one line on both streams."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def parse_arguments(argv: Sequence[str], environment: Mapping[str, str]) -> StationOptions:
    """Raises ValueError that names the option, what was found and what is allowed."""
    parser = _parser()
    a = parser.parse_args(argv)
    host, port = parse_address(a.listen)
    if not 1 <= a.threads <= MAX_THREADS:
        raise ValueError(f"--threads {a.threads}: 1 to {MAX_THREADS}")
    if not 0 <= a.link_delay_ms < math.inf:
        raise ValueError(f"--link-delay-ms {a.link_delay_ms:g}: 0 or more")
    if not 0 <= a.drain_s < math.inf:
        raise ValueError(f"--drain-s {a.drain_s:g}: 0 or more")
    if a.kv_memory_mib < 0:
        raise ValueError(f"--kv-memory-mib {a.kv_memory_mib}: 0 (half of the machine's memory) or more")
    if (a.tls_cert is None) != (a.tls_key is None):
        raise ValueError("--tls-cert and --tls-key go together")
    return StationOptions(
        model=a.model,
        roles=a.roles,
        host=host,
        port=port,
        token=read_token(a.token_file, environment),
        name=a.name or f"station-{os.getpid()}",
        kernels=a.kernels,
        threads=a.threads,
        transport=a.transport,
        coalesce=a.coalesce == "on",
        link_delay_s=a.link_delay_ms / 1e3,
        advertise=a.advertise,
        insecure=a.insecure,
        tls_cert=a.tls_cert,
        tls_key=a.tls_key,
        tls_ca=a.tls_ca,
        allowed_origins=tuple(a.allow_origin),
        weights_from=tuple(a.weights_from),
        kv_budget_bytes=a.kv_memory_mib << 20,
        drain_s=a.drain_s,
        exit_with_parent=a.exit_with_parent,
    )


def parse_address(text: str) -> tuple[str, int]:
    """`HOST:PORT`, `[IPV6]:PORT`; ValueError otherwise."""
    host, separator, port = text.rpartition(":")
    if not separator or not host or (":" in host and not (host.startswith("[") and host.endswith("]"))):
        raise ValueError(f"--listen {text!r}: HOST:PORT is expected, 127.0.0.1:0 for any free port")
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError(f"--listen {text!r}: port {port!r} is not a number from 0 to 65535")
    return host.strip("[]"), int(port)


def read_token(token_file: Path | None, environment: Mapping[str, str]) -> str:
    """The fleet's secret: from the file if one is named, else from AEONFLOW_TOKEN. ValueError without one."""
    if token_file is None:
        token = environment.get(TOKEN_VARIABLE, "").strip()
        if not token:
            raise ValueError(f"no token: give --token-file or set {TOKEN_VARIABLE}")
        return token
    try:
        with open(token_file, encoding="utf-8") as file:
            text = file.read(MAX_TOKEN_FILE_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--token-file {token_file}: {getattr(error, 'strerror', None) or error}") from None
    if len(text) > MAX_TOKEN_FILE_BYTES or not text.strip():
        raise ValueError(f"--token-file {token_file}: one token of at most {MAX_TOKEN_FILE_BYTES} bytes is expected")
    return text.strip()


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="aeonflow station",
        allow_abbrev=False,
        description="One station: a process that holds a part of a model and serves it. Its stdout is for launchers: "
        "one line of JSON, ready or error.",
    )
    add = parser.add_argument
    add("--model", required=True, metavar="M", help="name in the cache, path of a model folder, or synthetic:…")
    add(
        "--roles",
        default="",
        metavar="LIST",
        help="embed|head[:i/n], attn|gate_up|down|block:LO-HI, ffn:LO-HI:i/k, separated by commas (default: all)",
    )
    add(
        "--listen",
        default="127.0.0.1:0",
        metavar="HOST:PORT",
        help="where to listen; port 0: any free one (default %(default)s)",
    )
    add("--token-file", type=Path, metavar="FILE", help=f"the fleet's secret (default: the variable {TOKEN_VARIABLE})")
    add("--name", default="", metavar="NAME", help="in plans, status and errors (default: station- and its process id)")
    add("--kernels", default="fast", choices=KERNEL_SETS, help="kernel set (default %(default)s)")
    add("--threads", type=int, default=1, metavar="N", help="compute threads (default %(default)s)")
    add(
        "--transport",
        default="auto",
        choices=("auto", "websockets", "picows"),
        help="WebSocket library (default %(default)s)",
    )
    add("--coalesce", default="on", choices=("on", "off"), help="small frames share a message (default %(default)s)")
    add(
        "--link-delay-ms",
        type=float,
        default=0.0,
        metavar="D",
        help="hold every message back by D ms, for measurements (default 0)",
    )
    add("--advertise", default="", metavar="URL", help="where other stations reach it (default: as the host does)")
    add("--insecure", action="store_true", help="allow to listen beyond loopback without TLS")
    add("--tls-cert", type=Path, metavar="FILE", help="certificate chain, PEM; with --tls-key: serve wss://")
    add("--tls-key", type=Path, metavar="FILE", help="its private key, PEM")
    add(
        "--tls-ca",
        type=Path,
        metavar="FILE",
        help="certificates to trust other stations by, PEM (default: the system's)",
    )
    add("--allow-origin", action="append", default=[], metavar="ORIGIN", help="a web page that may connect; repeatable")
    add(
        "--weights-from",
        action="append",
        default=[],
        metavar="URL",
        help="a station to fetch missing weights from; repeatable",
    )
    add(
        "--kv-memory-mib",
        type=int,
        default=0,
        metavar="MIB",
        help="for the KV of all sessions (default: half of the machine's memory)",
    )
    add(
        "--drain-s",
        type=float,
        default=5.0,
        metavar="S",
        help="seconds to finish what runs after SIGTERM (default %(default)g)",
    )
    add("--exit-with-parent", action="store_true", help="leave when stdin ends")
    return parser
