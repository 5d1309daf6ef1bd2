"""The pure parts of the engine: windows of a prefill, epochs of a session, answers of head parts, who is behind."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aeonflow.errors import AeonflowError, BadTensorError, DeadlineError, LinkClosedError
from aeonflow.messages import Route, Where, Whereabouts
from aeonflow.tensors import DType, Kind, Port, Tensor, Want, options_byte
from host import watch
from host.chain import join_parts, last_position
from host.deadline import first_behind
from host.links import LinkState, answers, settle
from host.plan import make_plan, to_route
from host.prefill import PassCosts, Prefill, Shape, Window, choose_window, decode_cap, shape_of
from host.sequence import Answer, Detour, Pass, TokenSequence
from host.session import common_prefix

FAST = PassCosts(fixed_s=0.009, row_s=0.0062, hop_s=0.001)
HOPS = {"layers:1": 2, "layers:3": 4, "layers:12": 13, "trisplit": 93, "trisplit:per-layer": 93}


def route_of(plan: str, layers: int = 30) -> Route:
    made = make_plan(plan, layers)
    return to_route(made, 7, ["ws://127.0.0.1:1"] * len(made.stations))


def shape(plan: str, cores: int | None = None) -> Shape:
    return shape_of(route_of(plan), num_hops=HOPS[plan], cores=cores)


class Recorder:
    """A passage that keeps what is sent."""

    def __init__(self) -> None:
        self.route = route_of("layers:1")
        self.passes: list[Pass] = []

    def send(self, sequence: TokenSequence, one: Pass) -> None:
        self.passes.append(one)


def answer(last: int) -> Answer:
    return Answer(last, None, 0, 0)


@pytest.mark.parametrize(
    ("plan", "fixed_s", "chunk"),
    [("layers:3", 0.0093, 20), ("layers:12", 0.0102, 9), ("trisplit:per-layer", 0.018, 4)],
)
def test_chunks_of_a_pipeline_are_those_of_the_simulation(plan: str, fixed_s: float, chunk: int) -> None:
    window = choose_window(512, shape(plan), PassCosts(fixed_s, 0.0062, 0.001))
    assert window.chunk == chunk
    assert window.in_flight >= min(shape(plan).num_stations, 128)


def test_shared_stations_on_a_slow_link_get_more_chunks_in_flight() -> None:
    near = choose_window(512, shape("trisplit"), FAST)
    far = choose_window(512, shape("trisplit"), PassCosts(0.009, 0.0062, 0.020))
    assert far.chunk < near.chunk
    assert far.in_flight > near.in_flight > 1


def test_stations_that_share_one_core_get_the_prompt_in_large_chunks() -> None:
    assert choose_window(512, shape("trisplit", cores=1), FAST).chunk == 512
    assert (
        choose_window(512, shape("trisplit", cores=2), FAST).chunk > choose_window(512, shape("trisplit"), FAST).chunk
    )


@given(
    rows=st.integers(1, 8192),
    plan=st.sampled_from(["layers:1", "layers:3", "trisplit", "trisplit:per-layer"]),
    cores=st.sampled_from([None, 1, 2, 64]),
    fixed=st.floats(1e-6, 10),
    row=st.floats(1e-8, 1),
    hop=st.floats(1e-6, 1),
    limit=st.integers(1, 2048),
)
def test_windows_keep_their_bounds(
    rows: int, plan: str, cores: int | None, fixed: float, row: float, hop: float, limit: int
) -> None:
    costs = PassCosts(fixed, row, hop)
    window = choose_window(rows, shape(plan, cores), costs, max_rows=limit)
    assert 1 <= window.chunk <= min(rows, limit)
    assert 2 <= window.in_flight <= 128
    assert decode_cap(shape(plan, cores), costs) >= 1


@given(
    first=st.integers(0, 50),
    rows=st.integers(1, 300),
    chunk=st.integers(1, 400),
    in_flight=st.integers(1, 9),
    caps=st.lists(st.one_of(st.none(), st.integers(1, 20)), min_size=1, max_size=8),
)
def test_a_prefill_sends_every_row_once_and_never_more_chunks_than_its_window(
    first: int, rows: int, chunk: int, in_flight: int, caps: list[int | None]
) -> None:
    prefill = Prefill(first, first + rows, Window(chunk, in_flight))
    at, turn = first, 0
    while True:
        while sent := prefill.next(caps[turn % len(caps)]):
            cap = caps[turn % len(caps)]
            assert sent <= min(chunk, cap or chunk)
            at += sent
            turn += 1
            assert prefill.unanswered <= in_flight
        if prefill.is_sent:
            break
        assert prefill.unanswered == in_flight
        prefill.answered()
    assert at == first + rows == prefill.at


def test_a_new_epoch_begins_at_rows_that_were_answered_and_forgets_what_is_under_way() -> None:
    passage = Recorder()
    sequence = TokenSequence(9, passage, lambda: 0.0)
    errors: list[AeonflowError] = []
    sequence.on_error = errors.append
    sequence.send([1, 2, 3], Want.NONE)
    sequence.send([4], Want.LAST)
    sequence.answered(answer(2))
    assert (sequence.length, sequence.oldest_in_flight) == (3, 3)
    sequence.restart(2)
    assert (sequence.epoch, sequence.base, sequence.length, list(sequence.tokens)) == (2, 2, 2, [1, 2])
    assert sequence.oldest_in_flight is None
    sequence.send([8], Want.LAST)
    last = passage.passes[-1]
    assert (last.epoch, last.base, last.first, last.rows, last.ids) == (2, 2, 2, 1, struct.pack("<I", 8))
    with pytest.raises(AssertionError):
        sequence.restart(3)
    assert errors == []


def test_rows_that_are_computed_anew_go_by_the_way_of_their_epoch() -> None:
    sequence = TokenSequence(9, Recorder(), lambda: 0.0)
    sequence.send([1, 2, 3, 4], Want.LAST)
    sequence.answered(answer(3))
    sequence.detour = Detour(3, "a seed was lost")
    sequence.restart(4)
    assert sequence.detour == Detour(3, "a seed was lost")
    sequence.restart(1)
    assert sequence.detour == Detour(1, "a seed was lost"), "rows 1 and 2 had seeds, and are gone"


def test_stations_are_to_be_asked_until_they_have_said_what_they_hold() -> None:
    sequence = TokenSequence(9, Recorder(), lambda: 0.0)
    sequence.send([1, 2, 3], Want.LAST)
    sequence.answered(answer(2))
    sequence.begin_resumption(2)
    assert (sequence.epoch, sequence.base, sequence.is_cut_too_deep) == (2, 2, True)
    sequence.restart(1)
    assert sequence.is_cut_too_deep, "another epoch is no answer"
    sequence.resumed()
    assert not sequence.is_cut_too_deep


@pytest.mark.parametrize("is_answered", [True, False])
async def test_a_pass_that_is_answered_while_its_delay_is_looked_into_fails_nothing(
    is_answered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequence = TokenSequence(9, Recorder(), lambda: 0.0)
    errors: list[AeonflowError] = []
    sequence.on_error = errors.append
    sequence.send([1], Want.LAST)
    sequence.send([2], Want.LAST)
    late = DeadlineError("no answer for position 0")

    async def looked_into(*args: object) -> DeadlineError:
        if is_answered:
            sequence.answered(answer(0))
        return late

    monkeypatch.setattr(watch, "who_is_behind", looked_into)
    spawned: asyncio.Future[Coroutine[Any, Any, None]] = asyncio.get_running_loop().create_future()
    looking = watch.Watch(
        {9: sequence},
        list,
        deadline_s=0.01,
        clock=lambda: 100.0,
        spawn=lambda work, name: spawned.set_result(work),
    )
    looking.start()
    await (await spawned)
    looking.stop()
    assert errors == ([] if is_answered else [late])
    assert not sequence.is_suspect


async def test_who_stops_waiting_for_stations_leaves_nothing_to_be_answered() -> None:
    loop = asyncio.get_running_loop()
    asked: list[asyncio.Future[Any]] = []

    def ask(request: Where) -> asyncio.Future[Any]:
        asked.append(loop.create_future())
        return asked[-1]

    stations: Any = [SimpleNamespace(index=index, state=LinkState.READY, ask=ask) for index in range(2)]
    waiting = asyncio.create_task(answers(stations, Where(9), Whereabouts, 60.0))
    while not asked:  # noqa: ASYNC110  one turn of the loop
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert [future.cancelled() for future in asked] == [True, True]
    settle(asked[0], LinkClosedError("the link was closed"))


def test_duplicate_answers_are_dropped_and_answers_out_of_order_are_an_error() -> None:
    sequence = TokenSequence(9, Recorder(), lambda: 0.0)
    seen: list[int] = []
    errors: list[AeonflowError] = []
    sequence.on_answer = lambda one: seen.append(one.last)
    sequence.on_error = errors.append
    sequence.send([1], Want.LAST)
    sequence.send([2], Want.LAST)
    sequence.answered(answer(0))
    sequence.answered(answer(0))
    assert (seen, errors) == ([0], [])
    sequence.answered(answer(5))
    assert "position 5, expected 1" in str(errors[0])


def logits(part: int, values: list[float], *, hop: int = 3, rows: int = 1) -> Tensor:
    data = struct.pack(f"<{len(values)}f", *values)
    width = len(values) // rows
    return Tensor(
        1, 1, 0, 4, 4, 1, 0, Kind.CANONICAL, Port.LOGITS, options_byte(part=part), DType.F32, 7, hop, rows, width, data
    )


def acknowledged(part: int, position: int) -> Tensor:
    data = struct.pack("<I", position)
    return Tensor(1, 1, 0, 4, 4, 1, 0, Kind.CANONICAL, Port.TOKEN, options_byte(part=part), DType.U32, 7, 3, 1, 1, data)


def test_head_parts_are_joined_in_their_order_whatever_order_they_came_in() -> None:
    joined = join_parts(4, [logits(1, [3.0], hop=5), logits(0, [1.0, 2.0])], 3, num_bytes=11)
    assert joined.logits is not None
    assert joined.logits.tolist() == [[1.0, 2.0, 3.0]]
    assert (joined.last, joined.hops, joined.num_bytes) == (4, 5, 11)
    assert last_position(logits(0, [1.0, 2.0])) == 4


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ([logits(0, [1.0]), logits(0, [2.0])], r"parts \[0, 0\]"),
        ([logits(0, [1.0]), logits(2, [2.0])], r"parts \[0, 2\]"),
        ([logits(0, [1.0]), logits(1, [2.0])], "vocabulary has 3"),
        ([logits(0, [1.0, 2.0]), acknowledged(1, 5)], "port 8 of 1 rows up to 4, port 9 of 1 rows up to 4"),
        ([acknowledged(0, 5), acknowledged(1, 6)], "up to 4, port 9 of 1 rows up to 5"),
        ([acknowledged(0, 9)], "position 4 answered with port 9 of 1 rows up to 8"),
        ([logits(0, [1.0, 2.0]), logits(1, [3.0, 4.0], rows=2)], "of 1 rows up to 4, port 8 of 2 rows up to 5"),
    ],
)
def test_head_parts_that_do_not_fit_together_are_refused(parts: list[Tensor], named: str) -> None:
    with pytest.raises(BadTensorError, match=named):
        join_parts(4, parts, 3, num_bytes=0)


def test_the_first_station_that_has_not_passed_a_position_on_is_found() -> None:
    route = route_of("trisplit", 2)
    names = [station.name for station in route.stations]

    def replies(**behind: int) -> dict[int, Whereabouts]:
        found = {}
        for index, name in enumerate(names):
            roles = ("embed", "head") if name == "ends" else (name,)
            passed = tuple((role, layer, behind.get(role, 42)) for role in roles for layer in (0, 1))
            found[index] = Whereabouts(1, 1, True, 0, passed)
        return found

    def found(given: dict[int, Whereabouts]) -> str | None:
        place = first_behind(route, 42, given)
        return place[0].role if place is not None else None

    assert found(replies()) is None
    assert found(replies(down=41)) == "down"
    assert found(replies(down=41, gate_up=41)) == "gate_up"
    assert found(replies(head=40)) == "head"
    silent = replies()
    del silent[names.index("attn")]
    assert found(silent) == "attn"


def test_a_slice_of_the_ffn_that_has_not_passed_a_position_on_is_found() -> None:
    route = route_of("ffslice:2", 2)
    replies = {
        index: Whereabouts(1, 1, True, 0, tuple((role, layer, 42) for role in roles for layer in (0, 1)))
        for index, roles in enumerate((("attn",), ("ffn",), ("ffn",), ("embed", "head")))
    }
    assert first_behind(route, 42, replies) is None
    replies[2] = Whereabouts(1, 1, True, 0, (("ffn", 0, 42), ("ffn", 1, 41)))
    behind = first_behind(route, 42, replies)
    assert behind is not None
    carrier, layer = behind
    assert (carrier.role, carrier.part, layer) == ("ffn", 1, 1)


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_the_common_prefix_is_common_and_the_longest(a: list[int], b: list[int]) -> None:
    count = common_prefix(a, b)
    assert a[:count] == b[:count]
    assert a[: count + 1] != b[: count + 1] or count == min(len(a), len(b))
