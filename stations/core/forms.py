"""The arithmetic forms of a role, and which ports each takes in and gives out.

The plain form "" is that of models whose attention and ffn follow one another; other forms serve seeded passes and the
other residuals (`docs/pair-x.md`). What a form computes is in `batch.py`.
"""

from __future__ import annotations

from typing import NamedTuple

from aeonflow.tensors import Port

PLAIN = ""
DELTA = "delta"  # without the residual: attention gives a, down f
LADDER = "ladder"  # attention of h of the layer below, the residual on x
PARALLEL = "parallel"  # attention and ffn of the same x
NORMED = "normed"  # gate_up that forms norm₂ itself and passes on what it normed


class Ports(NamedTuple):
    """Inputs in the order of their numbers, outputs in the order in which they are computed."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


_PORTS: dict[tuple[str, str], Ports] = {
    ("embed", PLAIN): Ports((Port.IDS,), (Port.X,)),
    ("attn", PLAIN): Ports((Port.X,), (Port.H, Port.N)),
    ("attn", DELTA): Ports((Port.SEED,), (Port.A,)),
    ("attn", LADDER): Ports((Port.X, Port.H), (Port.H, Port.N)),
    ("attn", PARALLEL): Ports((Port.X,), (Port.H, Port.N)),
    ("gate_up", PLAIN): Ports((Port.N,), (Port.U,)),
    ("gate_up", NORMED): Ports((Port.H,), (Port.H, Port.U)),
    ("down", PLAIN): Ports((Port.H, Port.U), (Port.X,)),
    ("down", DELTA): Ports((Port.U,), (Port.F,)),
    ("ffn", PLAIN): Ports((Port.N,), (Port.F,)),
    ("block", PLAIN): Ports((Port.X,), (Port.X,)),
    ("block", LADDER): Ports((Port.X, Port.H), (Port.X, Port.H)),
    ("block", PARALLEL): Ports((Port.X,), (Port.X,)),
    ("head", PLAIN): Ports((Port.X,), (Port.LOGITS,)),
}
SLICED = (Port.H, Port.F)  # instead of the inputs, above a layer whose ffn is cut into slices


def is_role(role: str) -> bool:
    """Has `role` a place in a chain?"""
    return (role, PLAIN) in _PORTS


def ports_of(role: str, form: str, layer: int) -> Ports:
    """Ports of a role that starts at `layer`: below the first layer of a ladder there is no h."""
    ports = _PORTS[role, form]
    if form == LADDER and layer == 0:
        return Ports((Port.X,), ports.outputs)
    return ports


def residual_form(role: str, residual: str) -> str:
    """The form of `role` in a model of that residual, nothing seeded."""
    return residual if role in ("attn", "block") and residual in (LADDER, PARALLEL) else PLAIN
