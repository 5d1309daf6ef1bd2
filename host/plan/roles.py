"""The grammar of roles: `attn:0-14`, `embed:2/8`, `ffn:0-29:1/4`. Pure text in, values out, and back.

One role names what a station computes, for which layers (both ends included) and as which part of how many. The same
grammar is spoken in plan files, on the command line and in a station's hello.
"""

from __future__ import annotations

import re

import msgspec

from aeonflow.errors import PlanError, UnsupportedError

LAYER_ROLES = ("attn", "gate_up", "down", "block", "ffn")
SHARDED_ROLES = ("embed", "head")
IDLE_ROLES = ("warden", "spare")
RUNNABLE_ROLES = (*SHARDED_ROLES, *LAYER_ROLES)
FFN_SLICES = (2, 4, 8)  # the sum over the ffn width has 8 fixed segments, so other cuts would change bits
MAX_SHARDS = 32  # the part index has 5 bits in the options byte of a tensor

GRAMMAR = "embed[:i/n], head[:i/n], attn:LO-HI, gate_up:LO-HI, down:LO-HI, block:LO-HI, ffn:LO-HI:i/k, warden, spare"
_SUPPORTED = "this version runs " + ", ".join(RUNNABLE_ROLES)

_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")
_PART = re.compile(r"(\d{1,3})/(\d{1,3})")


class Role(msgspec.Struct, frozen=True, order=True):
    """`name` over layers lo..hi, both included (0, 0 where layers do not apply), as `part` of `parts`."""

    name: str
    lo: int = 0
    hi: int = 0
    part: int = 0
    parts: int = 1

    def __str__(self) -> str:
        text = f"{self.name}:{self.lo}-{self.hi}" if self.name in LAYER_ROLES else self.name
        if self.parts > 1 or self.name == "ffn":
            text += f":{self.part}/{self.parts}"
        return text

    @property
    def is_runnable(self) -> bool:
        return self.name in RUNNABLE_ROLES


def parse_role(text: str) -> Role:
    """One role from its text. PlanError names the text and the grammar; ranges inside a model are checked later."""
    name, *fields = text.strip().split(":")
    if name in IDLE_ROLES and not fields:
        return Role(name)
    if name in SHARDED_ROLES and len(fields) <= 1:
        part, parts = _part(text, fields[0]) if fields else (0, 1)
        if parts > MAX_SHARDS:
            raise PlanError(f"role {text!r}: {parts} shards, at most {MAX_SHARDS} are allowed")
        return Role(name, part=part, parts=parts)
    if name in LAYER_ROLES and len(fields) == (2 if name == "ffn" else 1):
        lo, hi = _range(text, fields[0])
        part, parts = _part(text, fields[1]) if name == "ffn" else (0, 1)
        if name == "ffn" and parts not in FFN_SLICES:
            allowed = ", ".join(str(k) for k in FFN_SLICES)
            raise PlanError(f"role {text!r}: {parts} ffn slices; allowed are {allowed}")
        return Role(name, lo, hi, part, parts)
    raise PlanError(f"role {text!r} is not understood; roles are {GRAMMAR}")


def parse_roles(text: str) -> tuple[Role, ...]:
    """Roles separated by commas, as on the command line; at least one."""
    parts = [part for part in text.split(",") if part.strip()]
    if not parts:
        raise PlanError(f"no role in {text!r}; roles are {GRAMMAR}")
    return tuple(parse_role(part) for part in parts)


def require_runnable(role: Role, owner: str) -> None:
    """UnsupportedError for roles that parse but are not built yet, naming the station and what is supported."""
    if not role.is_runnable:
        raise UnsupportedError(f"{owner}: role {role} is not supported yet; {_SUPPORTED}")


def _range(text: str, field: str) -> tuple[int, int]:
    match = _RANGE.fullmatch(field)
    if not match:
        raise PlanError(f"role {text!r}: layers must be LO-HI, both ends included, found {field!r}")
    lo = int(match[1])
    hi = int(match[2]) if match[2] is not None else lo
    if lo > hi:
        raise PlanError(f"role {text!r}: the first layer {lo} is beyond the last layer {hi}")
    return lo, hi


def _part(text: str, field: str) -> tuple[int, int]:
    match = _PART.fullmatch(field)
    if not match:
        raise PlanError(f"role {text!r}: a part must be i/n, found {field!r}")
    part, parts = int(match[1]), int(match[2])
    if parts < 1 or part >= parts:
        raise PlanError(f"role {text!r}: part {part} of {parts}; parts count from 0 to {max(parts - 1, 0)}")
    return part, parts
