"""`aeonflow status`: what the fleet says of itself when asked, beside what its supervisor knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aeonflow.errors import AeonflowError
from host.fleet.state import FleetState, StationRecord

from .failure import one_line
from .loop import run_async
from .target import Target, find_target, fleet_title

CONNECT_PATIENCE_S = 5.0  # of a station that is being restarted


def fleet_status(fleet: str | None, token_file: Path | None, tls_ca: Path | None) -> dict[str, Any]:
    """The engine's status after a real probe; where the fleet cannot be joined, what is known and why.

    Always has `name`, `ready`, `problem`, and `stations` with name, roles, pid, url, state, restarts, exit_status.
    """
    target = find_target(fleet, token_file, tls_ca)
    missing = [s for s in target.state.stations if not s.url] if target.state is not None else []
    try:
        if missing:
            raise AeonflowError(", ".join(f"station {s.name} is {_described(s)}" for s in missing))
        found = run_async(_ask(target))
    except AeonflowError as exc:
        found = {"name": target.name, "ready": False, "problem": one_line(exc), "stations": []}
    found["name"] = target.name
    if target.state is not None:
        _add_supervisor(found, target.state)
    return found


def print_status(found: dict[str, Any]) -> None:
    """A table and a verdict on stdout."""
    from .output import print_table

    rows = [
        (s["name"], ",".join(s["roles"]), str(s["pid"] or ""), s["url"], s["state"], str(s.get("restarts") or ""))
        for s in found["stations"]
    ]
    if rows:  # none where the addresses given cannot be joined
        print_table(("station", "roles", "pid", "address", "state", "restarts"), rows)
        print()
    title = fleet_title(found["name"])
    if found["ready"]:
        exactness = found["exactness"]
        print(
            f"{title}: ready; {found['plan']} of {found['model']}, {found['route']}, {found['kernels']}, "
            f"{found['transport']}; a probe token took {found['probe_s'] * 1e3:.1f} ms; "
            f"{found['frames_per_message']:.2f} frames a message; cut {exactness['cut']}, model {exactness['model']}"
        )
    else:
        print(f"{title}: not ready: {found['problem']}")
    _print_seeds(found.get("pair_x", {}))


def _print_seeds(told: dict[str, Any]) -> None:
    """Residual seeds by line, received of sent, and what is wrong with them; nothing where none ever went."""
    lines = [f"{name} {c['received']} of {c['sent']}" for name, c in told.get("lines", {}).items()]
    if lines:
        problem = f"; {told['problem']}" if told["problem"] else ""
        print(f"residual seeds received by line: {', '.join(lines)}{problem}")


async def _ask(target: Target) -> dict[str, Any]:
    async with target.connecting(rejoin_s=CONNECT_PATIENCE_S) as engine:
        return await engine.status()


def _add_supervisor(found: dict[str, Any], state: FleetState) -> None:
    """What only the supervisor knows: stations that do not answer, restarts, how the last process ended."""
    answered = {station["name"]: station for station in found["stations"]}
    stations = []
    for record in state.stations:
        entry: dict[str, Any] = {
            "name": record.name,
            "roles": list(record.roles),
            "pid": record.pid,
            "url": record.url,
            "state": record.state,
        }
        stations.append(
            {**entry, **answered.get(record.name, {}), "restarts": record.restarts, "exit_status": record.exit_status}
        )
    found.update(
        name=state.name,
        stations=stations,
        supervisor_pid=state.supervisor_pid,
        started_at=state.started_at,
        plan=state.plan,
        model=state.model,
    )


def _described(record: StationRecord) -> str:
    from host.fleet.errors import describe_exit

    ended = f" ({describe_exit(record.exit_status)})" if record.exit_status is not None else ""
    return f"{record.state}{ended}"
