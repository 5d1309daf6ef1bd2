"""A pass through cores equals the same kernels called in one process, bit for bit, however the model is cut."""

from __future__ import annotations

import random

import numpy as np
import pytest

from aeonflow import bands
from aeonflow.messages import Where
from aeonflow.tensors import Port, Want
from stations.models.folder import ModelFolder

from .cores import CoreNet, PlainModel, ask, f32, ids_tensor

PLANS = {
    "one station, whole blocks": ["embed,block:0-2,head"],
    "one station, every role apart": ["embed,attn:0-2,gate_up:0-2,down:0-2,head"],
    "trisplit": ["attn:0-2", "gate_up:0-2", "down:0-2", "embed,head"],
    "two ranges of layers": ["embed,block:0-0", "block:1-2,head"],
    "per layer, mixed with a block": ["attn:0-0", "gate_up:0-0", "down:0-0", "block:1-1", "attn:2-2,gate_up:2-2",
                                      "down:2-2", "embed", "head"],
    "shards": ["attn:0-2", "gate_up:0-2,embed:0/3", "down:0-2,embed:2/3", "embed:1/3,head:1/2", "head:0/2"],
    "ffn slices": ["attn:0-2", "ffn:0-2:0/2", "ffn:0-2:1/2", "embed,head"],
    "ffn slices and shards": ["attn:0-2,head:1/2", "ffn:0-2:0/4", "ffn:0-2:1/4,embed:1/2", "ffn:0-2:2/4,embed:0/2",
                              "ffn:0-2:3/4,head:0/2"],
    "slices on one station, other layers whole": ["embed,attn:0-0,block:1-1", "ffn:0-0:1/2,ffn:0-0:0/2,attn:2-2",
                                                  "ffn:2-2:0/4,ffn:2-2:2/4,head:0/3,head:1/3",
                                                  "ffn:2-2:1/4,ffn:2-2:3/4,head:2/3"],
    "every slice and the head on one station": ["attn:0-2,ffn:0-2:0/2,ffn:0-2:1/2,embed,head"],
    "all shards on one station": ["block:0-2", "embed:0/2,embed:1/2,head:0/3,head:1/3,head:2/3"],
}  # fmt: skip
IDS = [17, 300, 511, 0, 42, 42, 256, 99, 7, 128]


def joined(answers: list, parts: int) -> np.ndarray:
    tensors = sorted((tensor for answer in answers for tensor in answer.tensors), key=lambda tensor: tensor.part)
    assert [tensor.part for tensor in tensors] == list(range(parts))
    assert {tensor.port for tensor in tensors} == {Port.LOGITS}
    return np.concatenate([f32(tensor) for tensor in tensors], axis=1)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
@pytest.mark.parametrize("chunk", [1, 4, len(IDS)])
def test_logits_of_a_chain_are_those_of_one_process(
    model: ModelFolder, plain: PlainModel, plan: list[str], chunk: int
) -> None:
    net = CoreNet(model, plan)
    net.open()
    parts = sum(c.role == "head" for c in net.route.carriers)
    expected = plain.logits(IDS)
    for first in range(0, len(IDS), chunk):
        ids = IDS[first : first + chunk]
        net.send(ids_tensor(ids, first=first, want=Want.ALL))
        answers = net.run(random.Random(chunk))
        assert np.array_equal(joined(answers, parts), expected[first : first + len(ids)])
        assert all(answer.tensors[0].first == first for answer in answers)


def test_hops_of_a_trisplit_chain_are_counted_along_its_longest_way(model: ModelFolder) -> None:
    net = CoreNet(model, PLANS["trisplit"])
    net.open()
    net.send(ids_tensor(IDS))
    (answer,) = net.run()
    assert answer.tensors[0].hop == 3 * model.card.num_layers + 3
    assert answer.message.stream == bands.HEAD
    assert answer.message.sequence >= 0x8000_0000
    assert answer.message.sequence % 2 == 0


def test_ffn_slices_make_two_hops_a_layer(model: ModelFolder) -> None:
    net = CoreNet(model, PLANS["ffn slices"])
    net.open()
    net.send(ids_tensor(IDS))
    (answer,) = net.run()
    assert answer.tensors[0].hop == 2 * model.card.num_layers + 3
    assert net.forwarded == 1 + 4 * model.card.num_layers + 1, "x of the embedding, n and f of two slices, one h"
    assert net.stations[0].counters.events["messages_delivered_inside"] == model.card.num_layers - 1


@pytest.mark.parametrize("plan", ["ffn slices", "every slice and the head on one station"])
def test_a_pass_over_slices_gives_the_last_row_or_an_acknowledgement(
    model: ModelFolder, plain: PlainModel, plan: str
) -> None:
    net = CoreNet(model, PLANS[plan])
    net.open()
    net.send(ids_tensor(IDS[:6], want=Want.NONE))
    (answer,) = net.run()
    assert answer.tensors[0].port == Port.TOKEN
    net.send(ids_tensor(IDS[6:], first=6, want=Want.LAST))
    (answer,) = net.run()
    assert np.array_equal(f32(answer.tensors[0]), plain.logits(IDS)[-1:])


def test_a_chain_inside_one_station_makes_no_hop_but_those_of_the_host(model: ModelFolder) -> None:
    net = CoreNet(model, PLANS["one station, every role apart"])
    net.open()
    net.send(ids_tensor(IDS))
    (answer,) = net.run()
    assert answer.tensors[0].hop == 2
    assert net.forwarded == 0


def test_a_pass_that_wants_only_the_last_row_gets_one_row_at_its_position(
    model: ModelFolder, plain: PlainModel
) -> None:
    net = CoreNet(model, PLANS["trisplit"])
    net.open()
    net.send(ids_tensor(IDS[:6], want=Want.LAST))
    (answer,) = net.run()
    (logits,) = answer.tensors
    assert (logits.first, logits.rows, logits.dim0) == (5, 6, 1)
    assert np.array_equal(f32(logits), plain.logits(IDS)[5:6])


def test_a_pass_that_wants_nothing_is_acknowledged_without_a_head_computation(model: ModelFolder) -> None:
    net = CoreNet(model, PLANS["trisplit"])
    net.open()
    net.send(ids_tensor(IDS[:6], want=Want.NONE))
    (answer,) = net.run()
    (token,) = answer.tensors
    assert (token.port, token.first, token.dim0, token.dim1) == (Port.TOKEN, 5, 1, 1)
    assert int.from_bytes(token.data, "little") == 6
    assert "head" not in net.stations[3].counters.rows


def test_sessions_side_by_side_get_what_they_get_alone(model: ModelFolder, plain: PlainModel) -> None:
    net = CoreNet(model, PLANS["trisplit"])
    rng = random.Random(5)
    prompts = {100 + n: [rng.randrange(512) for _ in range(8)] for n in range(5)}
    for session in prompts:
        net.open(session)
    got: dict[int, list] = {session: [] for session in prompts}
    for position in range(0, 8, 2):
        for session, ids in prompts.items():
            net.send(ids_tensor(ids[position : position + 2], session=session, first=position, want=Want.ALL))
        for answer in net.run(rng):
            got[answer.tensors[0].session].append(f32(answer.tensors[0]))
    for session, ids in prompts.items():
        assert np.array_equal(np.concatenate(got[session]), plain.logits(ids))
    assert max(station.counters.max_batch_jobs for station in net.stations) > 1


def test_where_names_the_position_each_role_has_sent_on(model: ModelFolder) -> None:
    net = CoreNet(model, PLANS["two ranges of layers"])
    net.open()
    net.send(ids_tensor(IDS[:4]))
    net.run()
    where = ask(net.stations[1], Where(9))
    assert where.known
    assert (where.epoch, where.queued) == (1, 0)
    assert {(role, layer): at for role, layer, at in where.passed} == {("block", 2): 4, ("head", 0): 4}
