"""Plans: which station carries which roles, checked and costed before anything starts. Pure, no sockets."""

from __future__ import annotations

from .check import check
from .files import make_plan, read_plan_file, to_toml
from .plan import Plan, StationSpec, from_hellos, to_carriers, to_route
from .roles import Role, parse_role, parse_roles

__all__ = [
    "Plan",
    "Role",
    "StationSpec",
    "check",
    "from_hellos",
    "make_plan",
    "parse_role",
    "parse_roles",
    "read_plan_file",
    "to_carriers",
    "to_route",
    "to_toml",
]
