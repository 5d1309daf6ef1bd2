"""Residual seeds between station cores: shadow and bypass leave the bits alone, and faults of seeds are contained."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aeonflow import bands, fano
from aeonflow.errors import SeedError
from aeonflow.messages import Close, InstallRoute, Open
from aeonflow.passes import PassContext
from aeonflow.tensors import PREFIX_BYTES, Kind, Port, Want
from stations.core.outgoing import ToLink
from stations.models.folder import ModelFolder
from tests.station.cores import (
    PlainModel,
    ask,
    f32,
    ids_tensor,
    make_core,
    receive,
    tensor,
)

from .nets import SeedMessage, SeedNet, Tamper, as_sent

LAYERS = 3
IDS = [3, 17, 5, 200, 41]
TRISPLIT = ["embed,head", "attn:0-2", "gate_up:0-2", "down:0-2"]
APART = [
    "embed,head", "attn:0", "gate_up:0", "down:0", "attn:1", "gate_up:1", "down:1", "attn:2", "gate_up:2", "down:2",
]  # fmt: skip
PLANS = pytest.mark.parametrize("plan", [TRISPLIT, APART], ids=["trisplit", "per-layer"])


@pytest.fixture(scope="module")
def model(make_model: Callable[[str], ModelFolder]) -> ModelFolder:
    return make_model("layers=3")


@pytest.fixture(scope="module")
def plain(model: ModelFolder) -> Any:
    return PlainModel(model).logits(IDS)


def net(model: ModelFolder, plan: list[str], mode: str, tamper: Tamper = as_sent, **route: Any) -> SeedNet:
    made = SeedNet(model, plan, tamper=tamper, pair_x=mode, seeded=(1, 2), **route)
    made.open()
    return made


def logits(answers: list[Any]) -> Any:
    return np.concatenate([f32(answer.tensors[0]) for answer in answers])


@PLANS
@pytest.mark.parametrize("mode", ["shadow", "bypass"])
def test_the_logits_are_those_of_the_plain_model_in_whatever_order_things_happen(
    model: ModelFolder, plain: Any, plan: list[str], mode: str
) -> None:
    for seed in range(6):
        rng = random.Random(seed)
        stations = net(model, plan, mode)
        chunk = ids_tensor(IDS[:3], want=Want.ALL)
        answers = stations.pipeline(chunk, ids_tensor(IDS[3:4], first=3), ids_tensor(IDS[4:], first=4), rng=rng)
        assert logits(answers).tobytes() == plain.tobytes()
        assert stations.total("seeds_sent") == stations.total("seeds_received") > 0
        assert stations.total("seeds_dropped") == stations.waiting_slots() == 0


@PLANS
def test_shadow_figures_say_how_far_each_layer_is_off_and_that_the_embedding_row_is_not(
    model: ModelFolder, plan: list[str]
) -> None:
    stations = net(model, plan, "shadow")
    stations.decode(IDS)
    shadow: dict[str, Any] = {}
    for station in stations.stations:
        shadow.update(station.counters.snapshot()["shadow"])
    assert shadow["0"] == {"count": 5, "equal": 5, "max_abs": 0.0, "mean_relative": 0.0}
    for layer in ("1", "2"):
        assert (shadow[layer]["count"], shadow[layer]["equal"]) == (5, 0)
        assert 0 < shadow[layer]["mean_relative"] < 10
        assert shadow[layer]["max_abs"] > 1e-4


def test_a_shadow_seed_of_the_layer_s_input_is_off_by_attention_too(model: ModelFolder) -> None:
    figures = []
    for seed in ("h", "x"):
        stations = net(model, TRISPLIT, "shadow", seed=seed)
        stations.decode(IDS)
        figures.append(stations.stations[1].counters.snapshot()["shadow"]["1"]["max_abs"])
    assert figures[0] != figures[1]


def test_seeds_are_counted_by_line_on_both_ends(model: ModelFolder) -> None:
    stations = net(model, APART, "shadow")
    stations.decode(IDS)
    told = [station.counters.snapshot()["seed_lines"] for station in stations.stations]
    assert told[0] == {"123": {"sent": 5, "received": 0}}, "embed"
    assert told[1] == {"123": {"sent": 0, "received": 5}, "145": {"sent": 5, "received": 0}}, "attn 0"
    assert told[4] == {"145": {"sent": 5, "received": 5}}, "attn 1"


def test_bypass_sends_fewer_bytes_for_the_same_rows(model: ModelFolder) -> None:
    sizes = []
    for mode in ("off", "bypass"):
        stations = SeedNet(model, TRISPLIT, pair_x=mode, seeded=(1, 2) if mode == "bypass" else ())
        stations.open()
        num_bytes = 0
        put = stations.put

        def counted(source: int, target: int, stream: int, payload: bytes, *rest: Any, put: Any = put) -> None:
            nonlocal num_bytes
            num_bytes += len(payload)
            put(source, target, stream, payload, *rest)

        stations.put = counted  # type: ignore[method-assign]
        stations.decode(IDS)
        sizes.append(num_bytes)
    # h stays on the attn station: of each seeded layer one message of a prefix and 64 floats less.
    assert sizes[0] - sizes[1] == 2 * len(IDS) * (PREFIX_BYTES + 4 * 64)


def test_seeds_of_sharded_embeddings_leave_line_0_closed(model: ModelFolder) -> None:
    plan = ["embed:0/2,head", "embed:1/2", "attn:0-2", "gate_up:0-2", "down:0-2"]
    stations = net(model, plan, "shadow")
    assert logits(stations.decode(IDS)).shape[0] == len(IDS)
    assert "0" not in stations.stations[2].counters.snapshot()["shadow"]
    assert stations.total("seeds_dropped") == 0


# Faults.


def lost(seed: SeedMessage) -> list[SeedMessage]:
    return []


def doubled(seed: SeedMessage) -> list[SeedMessage]:
    return [seed, seed]


def damaged(seed: SeedMessage) -> list[SeedMessage]:
    at = PREFIX_BYTES + 5
    return [seed._replace(payload=seed.payload[:at] + bytes([seed.payload[at] ^ 1]) + seed.payload[at + 1 :])]


def cut_short(seed: SeedMessage) -> list[SeedMessage]:
    return [seed._replace(payload=seed.payload[:-3])]


def turned(seed: SeedMessage) -> list[SeedMessage]:
    return [seed._replace(stream=seed.stream ^ fano.MINUS)]


def renumbered(seed: SeedMessage) -> list[SeedMessage]:
    return [seed._replace(sequence=seed.sequence + 1)]


def on_another_line(seed: SeedMessage) -> list[SeedMessage]:
    return [seed._replace(stream=bands.seed_stream(4, fano.PLUS))]


FAULTS: dict[str, tuple[Tamper, str]] = {
    "lost": (lost, ""),
    "doubled": (doubled, "seeds_duplicate"),
    "damaged": (damaged, "seeds_corrupt"),
    "cut short": (cut_short, "seeds_corrupt"),
    "of the wrong sign": (turned, "seeds_wrong_sign"),
    "of another position": (renumbered, "seeds_corrupt"),
    "on another line": (on_another_line, "seeds_unknown"),
}


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_no_fault_of_a_shadow_seed_changes_a_bit_or_leaves_more_than_slots_that_expire(
    model: ModelFolder, plain: Any, fault: str
) -> None:
    tamper, event = FAULTS[fault]
    stations = net(model, APART, "shadow", tamper)
    assert logits(stations.decode(IDS)).tobytes() == plain.tobytes()
    counted = stations.counters()
    if event and fault != "damaged":
        assert counted[event] == stations.seeds_seen
    if fault == "damaged":  # a shadow seed has no fingerprint to be held against: it is one more that differs
        assert counted["seeds_completed"] == stations.seeds_seen
    waiting = stations.waiting_slots()
    assert (waiting > 0) == (fault not in ("doubled", "damaged"))
    for station in stations.stations:
        station.tick(31.0)
    assert stations.waiting_slots() == 0
    assert stations.total("seeds_expired") == waiting
    for station in stations.stations:
        assert not station.sessions.join_gauge.num_bytes


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_a_fault_of_a_bypass_seed_is_the_right_bits_an_error_or_no_answer_and_the_next_epoch_is_well(
    model: ModelFolder, plain: Any, fault: str
) -> None:
    tamper, event = FAULTS[fault]
    stations = net(model, APART, "bypass", tamper)
    answers = stations.decode(IDS[:1])
    if event:
        assert stations.total(event) == stations.total("seeds_dropped") > 0
    if fault == "doubled":
        assert logits(answers).tobytes() == plain[:1].tobytes()
    elif fault in ("damaged", "of another position", "of the wrong sign"):
        (answer,) = answers
        assert type(answer.error) is SeedError
    else:
        assert answers == [], "the pass waits for its h; the host finds where it stands still"
    stations.tamper = as_sent
    later = stations.decode(IDS, epoch=2)
    assert logits(later).tobytes() == plain.tobytes()
    assert stations.waiting_slots() == 0
    for station in stations.stations:
        assert not station.sessions.join_gauge.num_bytes


def test_a_seed_with_the_other_orientation_of_an_open_line_is_a_wrong_sign_and_poisons_a_bypass(
    model: ModelFolder,
) -> None:
    stations = net(model, APART, "bypass")
    rows = np.ones((1, 64), np.float32)
    head = tensor(Port.SEED, rows)
    jump = PassContext.of(head).alpha_jump(1, fano.MINUS, rows.data, 0, "", 0)
    (sent,) = receive_seed(stations.stations[4], jump.stream, jump.sequence, b"".join(jump.pieces))
    assert isinstance(sent, ToLink)
    counted = stations.stations[4].counters.events
    assert (counted["seeds_wrong_sign"], counted["seeds_dropped"], counted["poisoned"]) == (1, 1, 1)


def test_two_different_canonical_seeds_of_one_position_poison_the_session(model: ModelFolder) -> None:
    stations = net(model, APART, "bypass")
    for value in (1.0, 2.0):
        rows = np.full((1, 64), value, np.float32)
        jump = PassContext.of(tensor(Port.SEED, rows)).alpha_jump(1, fano.PLUS, rows.data, 0, "", 0)
        sent = receive_seed(stations.stations[4], jump.stream, jump.sequence, b"".join(jump.pieces))
    assert stations.stations[4].counters.events["seeds_conflict"] == 1
    assert len(sent) == 1
    assert "conflict" in str(sent[0].pieces[0])


def test_seeds_of_unknown_sessions_older_epochs_and_closed_lines_are_counted_and_dropped(model: ModelFolder) -> None:
    stations = net(model, APART, "bypass")
    attn = stations.stations[4]
    rows = np.ones((1, 64), np.float32)

    def seed(**fields: Any) -> list[Any]:
        head = tensor(Port.SEED, rows, **fields)
        jump = PassContext.of(head).alpha_jump(1, fano.PLUS, rows.data, fields.pop("layer", 0), "", head.first)
        return receive_seed(attn, jump.stream, jump.sequence, b"".join(jump.pieces))

    assert seed(session=77) == seed(layer=5) == seed(kind=Kind.DRAFT) == seed(route=3) == []
    assert attn.counters.events["seeds_unknown"] == 4
    assert seed(epoch=2) == [], "a newer epoch is adopted by whatever frame says it first"
    assert seed(epoch=1) == []
    assert (attn.counters.events["epochs"], attn.counters.events["seeds_late"]) == (1, 1)
    assert receive_seed(attn, bands.seed_stream(2, 0), 0, b"nonsense") == []
    assert attn.counters.events["seeds_corrupt"] == 1
    assert attn.counters.events["seeds_dropped"] == 6


def test_a_table_of_slots_that_is_full_drops_shadow_seeds_and_changes_nothing(model: ModelFolder) -> None:
    attn = make_core(model, "attn:0-2", max_seed_slots=2)
    stations = net(model, APART, "shadow")
    stations.stations[4] = attn_in_place_of(attn, stations)
    for first in range(4):
        rows = np.ones((1, 64), np.float32)
        head = tensor(Port.SEED, rows, first=first, kind=Kind.SHADOW)
        jump = PassContext.of(head).alpha_jump(1, fano.PLUS, rows.data, 0, "", first)
        assert receive_seed(attn, jump.stream, jump.sequence, b"".join(jump.pieces)) == []
    assert attn.counters.events["seeds_over_limit"] == 2
    (session,) = attn.sessions
    assert len(session.seeds) == 2


def test_a_closed_session_takes_its_slots_with_it(model: ModelFolder) -> None:
    stations = net(model, APART, "shadow", lost)
    stations.decode(IDS)
    waiting = stations.waiting_slots()
    for station in stations.stations:
        ask(station, Close(9))
        assert not station.sessions.join_gauge.num_bytes
    assert stations.total("seeds_expired") == waiting > 0


def test_a_seed_held_back_until_the_next_position_is_late_and_its_slot_goes_with_time(
    model: ModelFolder, plain: Any
) -> None:
    held: list[SeedMessage] = []

    def hold_back(seed: SeedMessage) -> list[SeedMessage]:
        """Every seed of layer 1 takes the place of the one after it."""
        if seed.stream != bands.seed_stream(1, fano.PLUS):
            return [seed]
        held.append(seed)
        return [held.pop(0)] if len(held) > 2 else []

    stations = net(model, APART, "shadow", hold_back)
    assert logits(stations.decode(IDS)).tobytes() == plain.tobytes()
    assert stations.total("seeds_dropped") == stations.total("seeds_late") <= stations.total("seeds_received")
    stations.stations[4].tick(31.0)
    stations.stations[7].tick(31.0)
    assert stations.waiting_slots() == 0


def receive_seed(station: Any, stream: int, sequence: int, payload: bytes) -> list[Any]:
    """A seed from the station on link 100."""
    return receive(station, stream, payload, link=100, sequence=sequence)


def attn_in_place_of(attn: Any, stations: SeedNet) -> Any:
    """`attn` with the route and session of the net's station 4."""
    attn.link_opened(100, False)
    ask(attn, InstallRoute(stations.route, 4))
    ask(attn, Open(9, stations.route.route, 64))
    return attn


SCHEDULES = st.tuples(
    st.integers(0, 2**32 - 1), st.lists(st.sampled_from(sorted(FAULTS)), min_size=1, max_size=4), st.integers(2, 5)
)


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(SCHEDULES)
def test_shadow_never_changes_a_bit_under_any_schedule_and_mix_of_faults(
    model: ModelFolder, plain: Any, schedule: tuple[int, list[str], int]
) -> None:
    seed, faults, every = schedule
    rng = random.Random(seed)

    def sometimes(message: SeedMessage) -> list[SeedMessage]:
        return FAULTS[rng.choice(faults)][0](message) if rng.randrange(every) == 0 else [message]

    stations = net(model, TRISPLIT, "shadow", sometimes)
    chunk = ids_tensor(IDS[:2], want=Want.ALL)
    answers = stations.pipeline(chunk, *(ids_tensor([t], first=2 + i) for i, t in enumerate(IDS[2:])), rng=rng)
    assert logits(answers).tobytes() == plain.tobytes()
    for station in stations.stations:
        station.tick(31.0)
        assert not station.sessions.join_gauge.num_bytes
    assert stations.waiting_slots() == 0


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(SCHEDULES)
def test_bypass_answers_with_the_plain_bits_or_not_at_all_under_any_schedule_and_mix_of_faults(
    model: ModelFolder, plain: Any, schedule: tuple[int, list[str], int]
) -> None:
    seed, faults, every = schedule
    rng = random.Random(seed)

    def sometimes(message: SeedMessage) -> list[SeedMessage]:
        return FAULTS[rng.choice(faults)][0](message) if rng.randrange(every) == 0 else [message]

    stations = net(model, APART, "bypass", sometimes)
    for at, token in enumerate(IDS):
        stations.send(ids_tensor([token], first=at))
        for answer in stations.run(rng):
            if answer.vent is None:
                assert f32(answer.tensors[0]).tobytes() == plain[at : at + 1].tobytes()
            else:
                assert answer.vent.code in ("bad_seed", "gap")
    stations.tamper = as_sent
    assert logits(stations.decode(IDS, epoch=2)).tobytes() == plain.tobytes()
