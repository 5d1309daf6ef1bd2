"""A plan: which station carries which roles. Frozen values; how it was written (preset, file, hellos) is forgotten.

`to_carriers` gives the table that routes are made of (`aeonflow.route`); the index of a station in the plan is its
index in the route.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from aeonflow.messages import Carrier, Hello, Route, StationAddress

from .roles import Role, parse_role


class StationSpec(msgspec.Struct, frozen=True):
    """One station of a plan. `url`: where it already runs; else it is started here, to listen on `host` if given."""

    name: str
    roles: tuple[Role, ...]
    url: str | None = None
    host: str | None = None

    @property
    def roles_text(self) -> str:
        """The roles as `--roles` takes them."""
        return ",".join(str(role) for role in self.roles)


class Plan(msgspec.Struct, frozen=True):
    """Stations over a model of `num_layers` layers. `embedded`: the only station lives in the host's process."""

    name: str
    num_layers: int
    stations: tuple[StationSpec, ...]
    embedded: bool = False


def to_carriers(plan: Plan) -> tuple[Carrier, ...]:
    """The route's table: one carrier for every runnable role of every station, in the plan's order."""
    return tuple(
        Carrier(index, role.name, role.lo, role.hi, role.part, role.parts)
        for index, station in enumerate(plan.stations)
        for role in station.roles
        if role.is_runnable
    )


def to_route(plan: Plan, route_id: int, urls: Sequence[str], residual: str = "sequential") -> Route:
    """A route over the plan's stations for a model of that residual; `urls[i]` is where station i is reached (nonzero
    `route_id`)."""
    if len(urls) != len(plan.stations):
        raise ValueError(f"{len(urls)} addresses for {len(plan.stations)} stations")
    addresses = tuple(StationAddress(s.name, url) for s, url in zip(plan.stations, urls, strict=True))
    return Route(route_id, plan.num_layers, addresses, to_carriers(plan), residual=residual)


def from_hellos(hellos: Sequence[Hello], num_layers: int, name: str = "connected", urls: Sequence[str] = ()) -> Plan:
    """The plan that running stations form, from the roles of their hellos, in the order given; not yet checked."""
    where: list[str | None] = list(urls) or [None] * len(hellos)
    if len(where) != len(hellos):
        raise ValueError(f"{len(where)} addresses for {len(hellos)} stations")
    stations = tuple(
        StationSpec(hello.name, tuple(parse_role(text) for text in hello.roles), url=url)
        for hello, url in zip(hellos, where, strict=True)
    )
    return Plan(name, num_layers, stations)
