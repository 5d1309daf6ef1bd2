"""Drafts and live seeds by relay: every message between stations goes by the host, and the tokens stay those of one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aeonflow import Flags, Message, bands, fano
from aeonflow.errors import AeonflowError, BadTensorError, StationLostError
from aeonflow.tensors import PREFIX, PREFIX_BYTES, DType, Kind, Port, Tensor, Want, pack_tensors
from host import Engine, forward
from host.forward import takers
from host.links import StationLink
from host.plan import make_plan, to_route
from host.relay import SeedCounts
from host.sequence import TokenSequence
from stations.models.folder import ModelFolder
from tests.engine.local_stations import TOKEN, LocalFleet, local_fleet
from tests.speculate.means import AlwaysDrafts

from .conftest import MakeModel

PROMPT = "The stations pass a token along, and the next takes it on."
LAYERS, TOKENS = 5, 24
SAMPLING: dict[str, Any] = {"temperature": 0.9, "top_k": 40, "seed": 11}
SLOW = pytest.mark.slow
Answered = tuple[tuple[int, ...], str | None]
Args = tuple[int, int, int, Any, bytes, float]  # of a station's `receive`: link, stream, sequence, flags, payload, now


def joined(fleet: LocalFleet, mode: str = "draft", route: str = "relay", **options: Any) -> Any:
    return Engine.connect(fleet.urls, token=TOKEN, transport="websockets", route=route, pair_x=mode, **options)


async def answered(engine: Engine, tokens: int = TOKENS, **options: Any) -> Answered:
    if engine.drafters.drafts is not None:
        engine.drafters.drafts = AlwaysDrafts()
    result = await engine.generate(PROMPT, max_tokens=tokens, ignore_eos=True, logits_hash=True, **options).collect()
    return result.token_ids, result.logits_hash


@pytest.fixture(scope="module")
def model(make_model: MakeModel, tiny_model: object) -> ModelFolder:
    return make_model(f"layers={LAYERS}")


@pytest.fixture(scope="module")
def plain(model: ModelFolder) -> dict[str, Answered]:
    async def one_station() -> dict[str, Answered]:
        async with local_fleet("layers:1", model, "fast") as fleet, joined(fleet, "off", "chain") as engine:
            return {"greedy": await answered(engine), "sampled": await answered(engine, **SAMPLING)}

    return asyncio.run(one_station())


def counted(fleet: LocalFleet, event: str) -> int:
    return sum(station.core.counters.events[event] for station in fleet.stations)


@pytest.mark.parametrize(
    ("plan", "options"),
    [
        ("trisplit+shards=2", {}),
        ("trisplit", {"pair_x_seed": "x", "speculate": "lookup"}),
        pytest.param("trisplit:per-layer", {"speculate": "lookup"}, marks=SLOW),
        pytest.param("trisplit:per-layer", {"pair_x_seed": "x"}, marks=SLOW),
        pytest.param("trisplit+shards=2", {"pair_x_seed": "x", "pair_x_layers": "2,4"}, marks=SLOW),
    ],
)
async def test_drafts_by_relay_give_the_tokens_and_logits_of_one_station(
    plan: str, options: dict[str, Any], model: ModelFolder, plain: dict[str, Answered]
) -> None:
    async with local_fleet(plan, model, "fast") as fleet, joined(fleet, **options) as engine:
        assert await answered(engine) == plain["greedy"]
        assert await answered(engine, **SAMPLING) == plain["sampled"]
        result = await engine.generate(PROMPT, max_tokens=2).collect()
        assert result.hops_per_token == 6 * LAYERS + 4, "what goes from station to station crosses twice"
        told = (await engine.status())["pair_x"]
        assert counted(fleet, "drafts_answered") > 10
        assert not any(station.core.dial_urls() for station in fleet.stations), "no station dials another"
    assert (told["mode"], told["problem"], told["slots"]) == ("draft", "", 0)
    for line in ("145", "246", "347"):
        assert told["lines"][line]["sent"] == told["lines"][line]["received"] > 0


@pytest.mark.parametrize(
    ("residual", "plan", "options", "hops"),
    [
        ("ladder", "trisplit", {"prefill_chunk": 5}, 6 * 6 + 4 - 2 * 5),
        ("parallel", "trisplit", {"pair_x_layers": "2-4", "speculate": "lookup"}, 6 * 6 + 4 - 2 * 3),
        pytest.param("ladder", "trisplit:per-layer", {"pair_x_layers": "2-4"}, 6 * 6 + 4 - 2 * 3, marks=SLOW),
        pytest.param("parallel", "trisplit+shards=2", {"prefill_chunk": 5}, 6 * 6 + 4 - 2 * 5, marks=SLOW),
    ],
)
async def test_live_by_relay_gives_the_tokens_and_logits_of_off(
    residual: str, plan: str, options: dict[str, Any], hops: int, make_model: MakeModel, tiny_model: object
) -> None:
    model = make_model(f"layers=6,residual={residual}")
    async with local_fleet("layers:1", model, "fast") as fleet, joined(fleet, "off", "chain") as engine:
        expected = await answered(engine, 12), await answered(engine, 12, **SAMPLING)
    async with local_fleet(plan, model, "fast") as fleet, joined(fleet, "live", **options) as engine:
        assert (await answered(engine, 12), await answered(engine, 12, **SAMPLING)) == expected
        result = await engine.generate(PROMPT, max_tokens=2).collect()
        assert result.hops_per_token == hops
        told = (await engine.status())["pair_x"]
    assert (told["problem"], told["slots"]) == ("", 0)
    assert all(counts["sent"] == counts["received"] > 0 for counts in told["lines"].values())


async def test_without_drafts_a_token_moves_the_bytes_of_the_relay_and_two_headers_a_layer(model: ModelFolder) -> None:
    sizes = []
    async with local_fleet("trisplit", model, "fast") as fleet:
        for mode in ("off", "draft"):
            async with joined(fleet, mode) as engine:
                result = await engine.generate(PROMPT, max_tokens=3, ignore_eos=True).collect()  # too few for a trial
                sizes.append(result.bytes_per_token)
    assert sizes[1] - sizes[0] == 20 * LAYERS, "h and u reach down apart, h and n leave attention apart"


# Faults on the way of drafts: frames of kind draft are tampered with where they come to a station, by host as by chain.


def is_draft(args: Args) -> bool:
    stream, payload = args[1], args[4]
    is_tensor = stream in bands.STREAM_ROLES or bands.is_seed(stream)
    return is_tensor and len(payload) >= PREFIX_BYTES and PREFIX.unpack_from(payload)[7] == Kind.DRAFT


def tamper(fleet: LocalFleet, fault: str) -> list[int]:
    """A third of the draft frames that come to the stations suffer `fault`; how many did."""
    chance, hit = random.Random(3), [0]
    for station in fleet.stations:
        core = station.core
        receive: Callable[..., None] = core.receive
        held: list[Args] = []

        def changed(*args: Any, receive: Callable[..., None] = receive, held: list[Args] = held) -> None:
            if not is_draft(args):
                receive(*args)
                if held and chance.random() < 0.3:
                    receive(*held.pop(0))
            elif chance.random() < 0.7:
                receive(*args)
            else:
                hit[0] += 1
                link, stream, sequence, flags, payload, now = args
                if fault == "late":
                    held.append((link, stream, sequence, flags, bytes(payload), now))
                elif fault == "doubled":
                    receive(*args)
                    receive(*args)
                elif fault == "cut short":
                    receive(link, stream, sequence, flags, bytes(payload)[:-1], now)
                elif fault in ("damaged", "contradicted"):
                    if fault == "contradicted":
                        receive(*args)
                    other = bytes(payload[:60]) + bytes([payload[60] ^ 0xFF]) + bytes(payload[61:])
                    receive(link, stream, sequence, flags, other, now)
                elif fault == "of the wrong sign" and bands.is_seed(stream):
                    receive(link, stream ^ fano.MINUS, sequence, flags, payload, now)

        core.receive = changed  # type: ignore[method-assign]
    return hit


@pytest.mark.parametrize(
    ("fault", "route"),
    [
        ("late", "relay"),
        *(pytest.param(name, "relay", marks=SLOW) for name in ("lost", "doubled", "damaged", "cut short")),
        *(pytest.param(name, "relay", marks=SLOW) for name in ("contradicted", "of the wrong sign")),
        *(pytest.param(name, "chain", marks=SLOW) for name in ("late", "contradicted")),
    ],
)
async def test_drafts_that_are_tampered_with_on_their_way_change_no_token_and_leave_no_slot(
    fault: str, route: str, model: ModelFolder, plain: dict[str, Answered]
) -> None:
    async with local_fleet("trisplit", model, "fast") as fleet, joined(fleet, route=route) as engine:
        hit = tamper(fleet, fault)
        assert await answered(engine) == plain["greedy"]
        assert await answered(engine) == plain["greedy"]
        assert hit[0] > 10
        await fleet.until(lambda fleet: not any(fleet.sessions()))
        assert all(station.core.sessions.join_gauge.num_bytes == 0 for station in fleet.stations)


async def test_the_host_sends_on_nothing_of_an_epoch_that_it_has_left(
    model: ModelFolder, plain: dict[str, Answered], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with local_fleet("trisplit", model, "fast") as fleet, joined(fleet) as engine:
        network = engine.network
        send = StationLink.send
        newest: dict[int, int] = {}  # epoch sent to each station

        def checked(station: StationLink, stream: int, pieces: Any, **options: Any) -> None:
            session, epoch, *_ = PREFIX.unpack_from(pieces[0])
            assert epoch == network.sequences[session].epoch >= newest.get(station.index, 0)
            newest[station.index] = epoch
            send(station, stream, pieces, **options)

        monkeypatch.setattr(StationLink, "send", checked)
        assert await answered(engine) == plain["greedy"]
        assert max(newest.values()) > 3, "guesses went wrong"
        assert network.stale > 0, "and rows of theirs came by"


@SLOW
async def test_a_station_lost_amid_relayed_drafts_is_named_and_the_next_request_is_right(
    model: ModelFolder, plain: dict[str, Answered]
) -> None:
    async with local_fleet("trisplit", model, "fast") as fleet, joined(fleet) as engine:
        assert await answered(engine) == plain["greedy"]
        seen: list[int] = []

        async def stopped_in_the_middle() -> None:
            async for chunk in engine.generate(PROMPT, max_tokens=200, ignore_eos=True):
                seen.extend(chunk.token_ids)
                if len(seen) == 3:
                    await fleet.station("gate_up").stop()

        with pytest.raises(StationLostError, match="gate_up"):
            await stopped_in_the_middle()
        await fleet.station("gate_up").start()
        assert await answered(engine) == plain["greedy"]


@pytest.mark.parametrize("mode", ["draft", pytest.param("live", marks=SLOW)])
async def test_a_canonical_message_that_cannot_be_read_is_an_error_at_once(
    mode: str, make_model: MakeModel, tiny_model: object
) -> None:
    model = make_model("layers=6,residual=ladder" if mode == "live" else f"layers={LAYERS}")
    async with local_fleet("trisplit", model, "fast") as fleet, joined(fleet, mode) as engine:
        expected = await answered(engine, 4)
        shell = fleet.station("gate_up").core
        take = shell.take_outgoing
        done = 0

        def cut_short() -> list[Any]:
            nonlocal done
            taken = take()
            for index, effect in enumerate(taken):
                if effect.stream == bands.DOWN and not done:
                    done += 1
                    payload = b"".join(map(bytes, effect.pieces))
                    taken[index] = effect._replace(pieces=(payload[:-4],))
            return taken

        shell.take_outgoing = cut_short
        with pytest.raises(BadTensorError):
            await answered(engine, 4)
        assert done
        assert await answered(engine, 4) == expected


@pytest.mark.parametrize("kind", [Kind.CANONICAL, Kind.DRAFT])
async def test_a_pass_that_meets_a_station_whose_loss_is_old_news_ends_in_that_loss(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "LOSS_NOTICE_S", 0.0)
    plan = make_plan("trisplit", 3)
    route = to_route(plan, 7, ["ws://127.0.0.1:1"] * len(plan.stations))

    class Lost:
        is_remote = True

        def __init__(self, name: str) -> None:
            self.name = name

        def send(self, stream: int, pieces: Any, **options: Any) -> None:
            if self.name == "gate_up":
                raise StationLostError("station gate_up is lost")

    stations: Any = [Lost(station.name) for station in plan.stations]
    passage = forward.ForwardedPassage(route, stations, 512, SeedCounts())
    sequence = TokenSequence(9, passage, lambda: 0.0)
    errors: list[AeonflowError] = []
    sequence.on_error = errors.append
    sequence.send([5], Want.LAST)
    rows = np.zeros((1, 4), np.float32)
    sent = Tensor(9, 1, 0, 0, 0, 1, 0, kind, Port.N, 0, DType.F32, 7, 1, 1, 4, rows.data)
    message = Message(bands.GATE_UP, 1, Flags.FIN, b"".join(map(bytes, pack_tensors([sent]))))
    assert passage.take(stations[0], message, {9: sequence})
    assert errors == [], "what is known of the loss comes first"
    await asyncio.sleep(0.001)  # later than the timer of 0 s
    assert [str(error) for error in errors] == (["station gate_up is lost"] if kind is Kind.CANONICAL else [])


def test_every_input_of_a_route_has_its_takers() -> None:
    plan = make_plan("trisplit+shards=2", 3)
    names = [station.name for station in plan.stations]
    found = takers(to_route(plan, 1, [f"ws://{name}" for name in names]))
    assert set(found) == {
        (bands.HEAD, 0),
        *((stream, layer) for layer in range(3) for stream in (bands.ATTN, bands.GATE_UP, bands.DOWN)),
        *((bands.seed_stream(line, fano.PLUS), layer) for layer in range(3) for line in (1, 3, 5)),
    }
    assert len(found[bands.HEAD, 0]) == 2
    assert found[bands.seed_stream(1, fano.PLUS), 2] == found[bands.ATTN, 2] == (names.index("attn"),)
    a, x = (found[bands.seed_stream(line, fano.PLUS), 0] for line in (3, 5))
    assert a == x == found[bands.GATE_UP, 0] == (names.index("gate_up"),)
    blocks = takers(to_route(make_plan("layers:2", 4), 1, ["ws://a", "ws://b"]))
    assert set(blocks) == {(bands.BLOCK, 0), (bands.BLOCK, 2), (bands.HEAD, 0)}
