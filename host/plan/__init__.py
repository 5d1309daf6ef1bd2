"""Plans: which station carries which roles, checked and costed before anything starts. Pure, no sockets."""

from __future__ import annotations

from .check import check
from .cost import Machine, PlanCost, StationCost, plan_cost
from .explain import Effect, effect_of, exactness, explain, mixed_numerics
from .files import make_plan, read_plan_file, to_toml
from .plan import Plan, StationSpec, from_hellos, to_carriers, to_route
from .roles import Role, parse_role, parse_roles
from .sizes import DeclaredAttention, Geometry, WeightSizes, weights_from_geometry, weights_from_manifest

__all__ = [
    "DeclaredAttention",
    "Effect",
    "Geometry",
    "Machine",
    "Plan",
    "PlanCost",
    "Role",
    "StationCost",
    "StationSpec",
    "WeightSizes",
    "check",
    "effect_of",
    "exactness",
    "explain",
    "from_hellos",
    "make_plan",
    "mixed_numerics",
    "parse_role",
    "parse_roles",
    "plan_cost",
    "read_plan_file",
    "to_carriers",
    "to_route",
    "to_toml",
    "weights_from_geometry",
    "weights_from_manifest",
]
