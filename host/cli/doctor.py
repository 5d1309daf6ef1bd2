"""`aeonflow doctor`: can this machine run a fleet, and is the fleet that runs reachable both ways?"""

from __future__ import annotations

from .options import AsJson, FleetName, TlsCa, TokenFile


def doctor(
    fleet: FleetName = None, token_file: TokenFile = None, tls_ca: TlsCa = None, as_json: AsJson = False
) -> None:
    """Check Python, libraries, cores, memory, cache folder, model, ports, and a running fleet."""
    import typer

    from .checkup import check_fleet, check_machine
    from .output import print_json, print_table

    findings = [*check_machine(), *check_fleet(fleet, token_file, tls_ca)]
    is_well = not any(f.verdict == "bad" for f in findings)
    if as_json:
        print_json(
            {"ok": is_well, "checks": [{"check": f.check, "verdict": f.verdict, "found": f.found} for f in findings]}
        )
    else:
        print_table(("", "check", "found"), [(f.verdict, f.check, f.found) for f in findings])
    if not is_well:
        raise typer.Exit(1)
