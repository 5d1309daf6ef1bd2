"""Plans from TOML files, and the one door through which every plan comes: `make_plan`.

The format is described in `docs/plans.md`: an optional `name`, and one `[[station]]` table each with `name`, `roles`
and optionally `url` (it already runs there) or `host` (where it is to listen).
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec

from aeonflow.errors import PlanError

from .check import check
from .plan import Plan, StationSpec
from .presets import expand_preset
from .roles import parse_roles

MAX_FILE_BYTES = 4 << 20  # a plan of 4096 stations takes under 1 MiB; more is not a plan
_TOP_KEYS = ("name", "station")
_STATION_KEYS = ("name", "roles", "url", "host")


def make_plan(text_or_path: str | Path, num_layers: int) -> Plan:
    """The checked plan of a preset's text or a TOML file's path, for a model of `num_layers` layers.

    Raises PlanError (what is wrong and what is allowed) or UnsupportedError (parts that are not built yet).
    """
    text = str(text_or_path)
    if isinstance(text_or_path, Path) or text.endswith(".toml"):
        return check(read_plan_file(Path(text_or_path), num_layers))
    return check(expand_preset(text, num_layers))


def read_plan_file(path: Path, num_layers: int) -> Plan:
    """The plan written in a TOML file, not yet checked against the model."""
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise PlanError(f"plan file {path} has {size} bytes, at most {MAX_FILE_BYTES} are read")
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"plan file {path} cannot be read: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PlanError(f"plan file {path} is not TOML: {error}") from error
    return plan_from_tables(data, num_layers, where=str(path), default_name=path.stem)


def plan_from_tables(data: dict[str, Any], num_layers: int, *, where: str, default_name: str) -> Plan:
    """A plan from parsed TOML tables; PlanError names the table and the key."""
    _only_keys(data, _TOP_KEYS, where)
    tables = data.get("station", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise PlanError(f"{where}: `station` must be tables written [[station]]")
    if not tables:
        raise PlanError(f"{where}: no [[station]] table; at least one is needed")
    stations = tuple(_station(table, f"{where}, station {i + 1}") for i, table in enumerate(tables))
    name = data.get("name", default_name)
    if not isinstance(name, str):
        raise PlanError(f"{where}: name must be a string, found {name!r}")
    return Plan(name, num_layers, stations)


def _station(table: dict[str, Any], where: str) -> StationSpec:
    _only_keys(table, _STATION_KEYS, where)
    roles = table.get("roles")
    if isinstance(roles, list) and all(isinstance(role, str) for role in roles):
        roles = ",".join(roles)
    if not isinstance(roles, str):
        raise PlanError(f"{where}: roles must be a string or a list of strings, found {roles!r}")
    for key in ("name", "url", "host"):
        if not isinstance(table.get(key), str | None):
            raise PlanError(f"{where}: {key} must be a string, found {table[key]!r}")
    if "name" not in table:
        raise PlanError(f"{where}: a name is needed")
    if "url" in table and "host" in table:
        raise PlanError(f"{where}: url (it runs there) and host (it is to listen there) exclude each other")
    url = table.get("url")
    if url is not None and not url.startswith(("ws://", "wss://")):
        raise PlanError(f"{where}: url {url!r} must begin with ws:// or wss://")
    return StationSpec(table["name"], parse_roles(roles), url=url, host=table.get("host"))


def _only_keys(table: dict[str, Any], allowed: tuple[str, ...], where: str) -> None:
    unknown = sorted(set(table) - set(allowed))
    if unknown:
        raise PlanError(f"{where}: unknown key {unknown[0]!r}; keys are {', '.join(allowed)}")


def to_toml(plan: Plan) -> str:
    """The plan as a file that `make_plan` reads back to the same stations."""
    lines = [f"name = {_quoted(plan.name)}"]
    for station in plan.stations:
        lines += ["", "[[station]]", f"name = {_quoted(station.name)}"]
        lines.append("roles = [" + ", ".join(_quoted(str(role)) for role in station.roles) + "]")
        if station.url is not None:
            lines.append(f"url = {_quoted(station.url)}")
        if station.host is not None:
            lines.append(f"host = {_quoted(station.host)}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """A TOML basic string: JSON's escapes are a subset of TOML's."""
    return msgspec.json.encode(text).decode()
