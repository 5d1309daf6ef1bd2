"""Where what a station has for another on a route goes: to that station, to a host that sends it on, or it stays."""

from __future__ import annotations

from aeonflow.errors import PlanError
from aeonflow.messages import Route

HERE = ""
HOST = "host"  # the one of the session; no url: those begin with ws:// or wss://


def address_of(route: Route, self_index: int, station: int) -> str:
    """Of what station `self_index` has for `station`: a url, HERE or HOST. PlanError where there is no way."""
    if station == self_index:
        return HERE
    if route.through_host:
        return HOST
    there = route.stations[station]
    if not there.url:
        raise PlanError(f"route {route.route}: station {there.name} has no address")
    return there.url
