"""Which fleet a command means: a name with a state file, or addresses and a secret."""

from __future__ import annotations

import os
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from host.fleet.state import DEFAULT_NAME, FleetRegistry, FleetState, cache_root

from .failure import CommandFailedError, UsageError

if TYPE_CHECKING:
    from host.engine import Engine

MAX_TOKEN_BYTES = 4096


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Stations to connect to. `state` is None for addresses given by hand; `tls_ca` None: the system's authorities."""

    name: str
    urls: tuple[str, ...]
    token: str
    state: FleetState | None = None
    tls_ca: Path | None = None

    def connecting(self, **keywords: Any) -> AbstractAsyncContextManager[Engine]:
        """The context of an engine on these stations; `keywords` are those of `Engine.connect`."""
        from aeonflow.transport.tls import client_context
        from host.engine import Engine

        ssl = client_context(self.tls_ca) if self.tls_ca is not None else None
        return Engine.connect(self.state or self.urls, token=self.token, ssl=ssl, **keywords)


def fleet_title(fleet: str) -> str:
    """`--fleet NAME|URL[,URL…]` for people: addresses are counted, not repeated."""
    if "://" not in fleet:
        return f"fleet {fleet}"
    num_addresses = fleet.count("://")
    return f"fleet of {num_addresses} address{'es' if num_addresses > 1 else ''}"


def registry() -> FleetRegistry:
    return FleetRegistry(cache_root(os.environ))


def choose_fleet(fleets: FleetRegistry, name: str | None) -> str:
    """The name given, else `default`, else the only fleet there is."""
    if name is not None and "://" in name:
        raise UsageError(
            f"--fleet {name!r}: stations at addresses were not started here; name a fleet of `aeonflow up`"
        )
    if name is not None:
        return name
    names = fleets.names()
    if DEFAULT_NAME in names:
        return DEFAULT_NAME
    if len(names) == 1:
        return names[0]
    if not names:
        raise CommandFailedError("no fleet runs here; start one with: aeonflow up --plan trisplit --detach")
    raise UsageError(f"several fleets run here ({', '.join(names)}): name one with --fleet")


def find_target(fleet: str | None, token_file: Path | None, tls_ca: Path | None) -> Target:
    """The stations that `--fleet NAME|URL[,URL…]` means, with their secret and what certificates are trusted by."""
    if fleet is not None and "://" in fleet:
        urls = tuple(url.strip() for url in fleet.split(",") if url.strip())
        for url in urls:
            if not url.startswith(("ws://", "wss://")):
                raise UsageError(f"--fleet {url!r}: an address begins with ws:// or wss://")
        if tls_ca is not None and not any(url.startswith("wss://") for url in urls):
            raise UsageError("--tls-ca goes with wss:// addresses: links to ws:// ones have no certificates")
        if tls_ca is not None:
            _check_authorities(tls_ca)
        return Target(name=fleet, urls=urls, token=given_token(token_file), tls_ca=tls_ca)
    refuse_for_names(token_file, tls_ca)
    fleets = registry()
    state = fleets.read_live(choose_fleet(fleets, fleet))
    return Target(name=state.name, urls=tuple(s.url for s in state.stations if s.url), token=state.token, state=state)


def _check_authorities(path: Path) -> None:
    """UsageError for a file that is not there or holds no certificates, before anything is dialled."""
    from aeonflow.errors import LocalProtocolError
    from aeonflow.transport.tls import client_context

    try:
        client_context(path)
    except LocalProtocolError as error:
        raise UsageError(f"--tls-ca: {error}") from None


def refuse_for_names(token_file: Path | None, tls_ca: Path | None) -> None:
    """UsageError for options that say how to reach addresses, where a fleet is meant that was started here."""
    for option, path in (("--token-file", token_file), ("--tls-ca", tls_ca)):
        if path is not None:
            raise UsageError(
                f"{option} goes with addresses (--fleet ws://…); a fleet started here knows its secret, its links "
                "stay on loopback"
            )


def given_token(token_file: Path | None) -> str:
    """The secret from `--token-file` or AEONFLOW_TOKEN. Errors: UsageError when there is none."""
    if token_file is not None:
        return read_token_file(token_file)
    if token := os.environ.get("AEONFLOW_TOKEN", "").strip():
        return token
    raise UsageError("a fleet at addresses needs its secret: --token-file FILE, or AEONFLOW_TOKEN")


def read_token_file(path: Path) -> str:
    """The secret in a file. Errors: UsageError naming what is wrong with it."""
    try:
        size = path.stat().st_size
        if not 0 < size <= MAX_TOKEN_BYTES:
            raise UsageError(f"token file {path} has {size} bytes; 1 to {MAX_TOKEN_BYTES} are expected")
        token = path.read_text(encoding="ascii").strip()
    except OSError as exc:
        raise UsageError(f"token file {path}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise UsageError(f"token file {path} is not ASCII text") from exc
    if not token:
        raise UsageError(f"token file {path} holds nothing but white space")
    return token
