"""Installed routes of every host, compiled; and the relay's own table, which is route 0 of everyone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aeonflow.errors import BadTensorError, OverloadedError
from aeonflow.messages import InstallRoute

from ..models.roles import RoleSpan
from .stages import CompiledRoute, compile_local, compile_route


class Routes:
    """Routes by (link of the host, route id)."""

    def __init__(self, spans: Sequence[RoleSpan], num_layers: int, residual: str, max_routes: int) -> None:
        self.local = compile_local(spans, residual)
        self._spans = tuple(spans)
        self._num_layers = num_layers
        self._residual = residual
        self._max_routes = max_routes
        self._by_link: dict[int, dict[int, CompiledRoute]] = {}
        self.changes = 0  # routes installed so far

    def install(self, link: int, request: InstallRoute, in_use: Iterable[int]) -> CompiledRoute:
        """Compile and keep a route; one of the same id is replaced. PlanError or OverloadedError with the numbers."""
        compiled = compile_route(request.route, request.self_index, self._spans, self._num_layers, self._residual)
        routes = self._by_link.setdefault(link, {})
        routes.pop(compiled.route, None)
        if len(routes) >= self._max_routes:
            used = set(in_use)
            oldest = next((route for route in routes if route not in used), None)
            if oldest is None:
                raise OverloadedError(f"{len(routes)} routes are in use: at most {self._max_routes} a host")
            del routes[oldest]
        routes[compiled.route] = compiled
        self.changes += 1
        return compiled

    def find(self, link: int, route: int) -> CompiledRoute | None:
        """The route of that host, if it is installed."""
        return self._by_link.get(link, {}).get(route)

    def get(self, link: int, route: int) -> CompiledRoute:
        """The route of that host; BadTensorError when it is not installed."""
        if route == 0:
            return self.local
        compiled = self.find(link, route)
        if compiled is None:
            raise BadTensorError(f"route {route} is not installed here")
        return compiled

    def urls(self) -> set[str]:
        """Every address that may be dialled: successors on installed routes."""
        return {url for routes in self._by_link.values() for route in routes.values() for url in route.names}

    def forget(self, link: int) -> None:
        """A host is gone, and its routes with it."""
        self._by_link.pop(link, None)
