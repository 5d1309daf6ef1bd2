"""`aeonflow up`, `down`, `status`, `logs`: fleets that outlive one command."""

from __future__ import annotations

from typing import Annotated

import typer

from .failure import UsageError
from .options import (
    AsJson,
    Coalesce,
    FleetName,
    KernelsOption,
    LinkDelay,
    Model,
    Threads,
    TlsCa,
    TokenFile,
    TransportOption,
)


def up(
    plan: Annotated[
        str,
        typer.Option(
            metavar="P",
            help="layers:N, trisplit, ffslice:K, trisplit:per-layer (suffix +shards=N), solo, or a .toml file.",
        ),
    ],
    name: Annotated[str, typer.Option(help="Name of the fleet; several may run at once.")] = "default",
    detach: Annotated[bool, typer.Option("--detach", help="Return once it is ready and leave it running.")] = False,
    model: Model = None,
    kernels: KernelsOption = None,
    threads: Threads = None,
    transport: TransportOption = None,
    coalesce: Coalesce = None,
    link_delay_ms: LinkDelay = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
    report_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Start a fleet and keep it, in the foreground until Ctrl-C, or detached."""
    from .output import print_json
    from .supervise import FleetRequest, run_detached, run_foreground, run_reporting

    if as_json and not detach:
        raise UsageError("--json goes with --detach: a fleet in the foreground tells on stderr how it is")
    request = FleetRequest(
        name=name,
        plan=plan,
        model=model,
        kernels=kernels,
        threads=threads,
        transport=transport,
        coalesce=coalesce,
        link_delay_ms=link_delay_ms,
        token_file=token_file.absolute() if token_file is not None else None,
    )
    if report_fd is not None:
        run_reporting(request, report_fd)
    elif detach:
        found = run_detached(request)
        if as_json:
            print_json(found)
    else:
        run_foreground(request)


def down(fleet: FleetName = None, as_json: AsJson = False) -> None:
    """Stop a fleet: its stations finish what they run, then leave."""
    from host.fleet.supervisor import stop_fleet

    from .output import note, print_json
    from .target import choose_fleet, registry

    fleets = registry()
    name = choose_fleet(fleets, fleet)
    told = stop_fleet(fleets, name)
    note(told)
    if as_json:
        print_json({"name": name, "down": True, "told": told})


def status(
    fleet: FleetName = None, token_file: TokenFile = None, tls_ca: TlsCa = None, as_json: AsJson = False
) -> None:
    """Ask a fleet how it is: a probe token goes through the whole chain."""
    from .output import print_json
    from .status import fleet_status, print_status

    found = fleet_status(fleet, token_file, tls_ca)
    if as_json:
        print_json(found)
    else:
        print_status(found)
    if not found["ready"]:
        raise typer.Exit(1)


def logs(
    station: Annotated[str, typer.Argument(metavar="STATION", help="The station's name, or `supervisor`.")],
    fleet: FleetName = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="How many of the last lines.")] = 200,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print what a station wrote to its log."""
    from .logs import last_lines, print_log
    from .output import note, print_json
    from .target import choose_fleet, registry

    fleets = registry()
    name = choose_fleet(fleets, fleet)
    path = fleets.directory(name) / f"{station}.log"
    if "/" in station or not path.is_file():
        known = ", ".join(sorted(p.stem for p in fleets.directory(name).glob("*.log"))) or "none"
        raise UsageError(f"fleet {name} has no log of {station!r} (there: {known})")
    if as_json:
        if follow:
            raise UsageError("--json is one object, --follow has no end: one of them")
        print_json({"fleet": name, "station": station, "path": str(path), "lines": last_lines(path, lines)})
        return
    if not path.stat().st_size:
        note(f"{station} has not written anything")
    print_log(path, lines=lines, follow=follow)
