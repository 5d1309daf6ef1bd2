"""Live seeds: ladder models two hops a layer, parallel ones with attention beside the ffn, to the bits of `off`."""

from __future__ import annotations

import random

import numpy as np
import pytest

from aeonflow import Flags, fano
from aeonflow.errors import PlanError
from aeonflow.messages import Close, Stats
from aeonflow.passes import PassContext
from aeonflow.tensors import Kind, Want
from tests.station.cores import Answer, CoreNet, ask, f32, ids_tensor

from .test_pairx_residuals import IDS, LAST, LAYERS, logits_of

TRISPLIT = [f"attn:0-{LAST}", f"gate_up:0-{LAST}", f"down:0-{LAST}", "embed,head"]
SHARED = [f"attn:0-{LAST},gate_up:0-{LAST}", f"down:0-{LAST},embed,head:0/2", "head:1/2"]
ALL = tuple(range(1, LAYERS))
SOME = (1, 2, 5, 6, 7, 12, LAST)


@pytest.mark.parametrize("seeded", [ALL, SOME], ids=["all", "some"])
@pytest.mark.parametrize("stations", [TRISPLIT, SHARED], ids=["trisplit", "roles together"])
@pytest.mark.parametrize("residual", ["ladder", "parallel"])
def test_live_gives_the_bits_of_off_in_any_order_of_events(residual, stations, seeded, make_model) -> None:
    model = make_model(f"layers={LAYERS},residual={residual}")
    off = logits_of(CoreNet(model, [f"embed,block:0-{LAST},head"]), [len(IDS)])
    cuts = [4, 1, 1, 5]
    net = CoreNet(model, stations, pair_x="live", seeded=seeded)
    assert np.array_equal(logits_of(net, cuts, random.Random(1)), off)
    counted = [ask(station, Stats()).values for station in net.stations]
    sent = sum(values["seeds_sent"] for values in counted)
    assert sent == sum(values["seeds_received"] for values in counted)
    assert sent == len(cuts) * len(seeded) * (3 if residual == "ladder" else 1)
    assert sum(values["seeds_dropped"] + values["vents"] for values in counted) == 0


@pytest.mark.parametrize("residual", ["ladder", "parallel"])
def test_a_live_layer_is_two_hops_where_off_has_three(residual, make_model) -> None:
    model = make_model(f"layers={LAYERS},residual={residual}")
    hops = {}
    for mode, seeded in (("off", ()), ("live", ALL)):
        net = CoreNet(model, TRISPLIT, pair_x=mode, seeded=seeded)
        net.open()
        net.send(ids_tensor(IDS))
        (answer,) = net.run()
        hops[mode] = answer.tensors[0].hop
    assert hops["off"] == 3 * LAYERS + 3
    assert hops["live"] == 2 * LAYERS + 4


def test_an_epoch_cuts_live_rows_as_it_cuts_others(make_model) -> None:
    model = make_model(f"layers={LAYERS},residual=ladder")
    net = CoreNet(model, TRISPLIT, pair_x="live", seeded=ALL)
    off = logits_of(CoreNet(model, [f"embed,block:0-{LAST},head"]), [len(IDS)])
    net.open()
    rng = random.Random(4)
    net.send(ids_tensor([*IDS[:3], 1, 2, 3], want=Want.ALL))
    for _ in range(150):
        net.step(rng)
    net.send(ids_tensor(IDS[:3], epoch=2, base=0, want=Want.ALL))
    net.send(ids_tensor(IDS[3:], first=3, epoch=2, base=0, want=Want.ALL))
    found = {a.tensors[0].first: f32(a.tensors[0]) for a in net.run(rng) if a.tensors[0].epoch == 2}
    assert np.array_equal(np.concatenate([found[0], found[3]]), off)
    for station in net.stations:
        assert all(cache.pos_len == len(IDS) for cache in station.sessions.get(9).caches.values())
        ask(station, Close(9))
        assert ask(station, Stats()).values["seed_slots"] == 0


def test_live_on_a_sequential_model_is_the_ladder_over_its_weights(make_model) -> None:
    plain, ladder = make_model(f"layers={LAYERS}"), make_model(f"layers={LAYERS},residual=ladder")
    expected = logits_of(CoreNet(ladder, [f"embed,block:0-{LAST},head"]), [len(IDS)])
    assert np.array_equal(logits_of(CoreNet(plain, TRISPLIT, pair_x="live", seeded=ALL), [4, 7]), expected)
    off = logits_of(CoreNet(plain, TRISPLIT), [len(IDS)])
    assert not np.array_equal(off, expected)


def test_what_live_cannot_be_is_refused_by_name(make_model) -> None:
    model = make_model("layers=2,residual=ladder")
    roles = ["attn:0-1", "gate_up:0-1", "down:0-1", "embed,head"]
    with pytest.raises(PlanError, match="pair_x live with seeds 'x': live takes h"):
        CoreNet(model, roles, pair_x="live", seeded=(1,), seed="x")
    with pytest.raises(PlanError, match="no station carries gate_up of layer 0"):
        CoreNet(model, ["attn:0-1", "ffn:0-1:0/2", "ffn:0-1:1/2", "embed,head"], pair_x="live", seeded=(1,))
    with pytest.raises(PlanError, match="no station carries attn of layer 0"):
        CoreNet(model, ["embed,block:0-1,head"], pair_x="live", seeded=(1,))


def test_live_rows_that_are_not_finite_are_not_sent_on_and_poison_the_session(make_model) -> None:
    net = CoreNet(make_model(f"layers={LAYERS},residual=ladder"), TRISPLIT, pair_x="live", seeded=ALL)
    net.open()
    gate_up = net.stations[1]
    for line, value in ((3, np.inf), (5, 1.0)):
        seed = PassContext(9, 1, 0, 0, Kind.CANONICAL, 0, 1, 0, net.route.route, 1).alpha_jump(
            line, fano.PLUS, np.full((1, 64), value, np.float32).data, 1 if line == 3 else 0, "", 0
        )
        gate_up.receive(100, seed.stream, seed.sequence, Flags.FIN, b"".join(seed.pieces), 0.0)
    (told,) = gate_up.take_outgoing()
    assert told.flags & Flags.POISON
    assert "h of layer 1 has NaN or infinity in rows from 0 on" in Answer("gate_up", told).vent.message
    assert gate_up.sessions.get(9).is_poisoned
    assert gate_up.queue.length == 0
