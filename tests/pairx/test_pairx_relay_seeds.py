"""Residual seeds on a relay, between a host that sends them and one station: h comes as a seed, f by a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aeonflow import bands, fano
from aeonflow.errors import SeedError
from aeonflow.messages import Open
from aeonflow.passes import PassContext
from aeonflow.tensors import Port
from stations.models.folder import ModelFolder
from tests.station.cores import HOST, Answer, ask, f32, make_core, receive, tensor


def relay_call(station: Any, stream: int, port: Port, rows: Any, layer: int, **fields: Any) -> Any:
    """A call with one input; what came back, a list of tensors or the error."""
    (sent,) = receive(station, stream, [tensor(port, rows, layer=layer, route=0, **fields)])
    answer = Answer("s", sent)
    return answer.error if answer.vent is not None else answer.tensors


def test_a_relayed_layer_takes_h_as_a_seed_and_f_by_a_call(
    make_model: Callable[[str], ModelFolder],
) -> None:
    model = make_model("layers=3")
    core = make_core(model, "attn:0-1,gate_up:0-1,down:0-1")
    ask(core, Open(9, 0, 64))
    x = np.random.default_rng(1).standard_normal((2, 64)).astype(np.float32)
    h, n = (f32(t) for t in relay_call(core, bands.ATTN, Port.X, x, 0))
    (u,) = (f32(t) for t in relay_call(core, bands.GATE_UP, Port.N, n, 0))
    (sent,) = receive(core, bands.DOWN, [tensor(port, rows, route=0) for port, rows in ((Port.H, h), (Port.U, u))])
    whole = f32(Answer("s", sent).tensors[0])
    (f,) = relay_call(core, bands.DOWN, Port.U, u, 0)
    assert f.port == Port.F
    assert (h + f32(f)).tobytes() == whole.tobytes()

    missing = relay_call(core, bands.ATTN, Port.F, f32(f), 1)
    assert type(missing) is SeedError
    assert "its residual seed of position 0 has not come" in str(missing)
    head = tensor(Port.SEED, h, route=0)
    jump = PassContext.of(head).alpha_jump(1, fano.PLUS, np.ascontiguousarray(h).data, 0, "", 0)
    assert receive(core, jump.stream, b"".join(jump.pieces), link=HOST, sequence=0) == []
    bypassed = [bytes(t.data) for t in relay_call(core, bands.ATTN, Port.F, f32(f), 1)]

    other = make_core(model, "attn:0-1")
    ask(other, Open(9, 0, 64))
    assert [bytes(t.data) for t in relay_call(other, bands.ATTN, Port.X, whole, 1)] == bypassed
