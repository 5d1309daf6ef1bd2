"""The link itself, over the memory transport: what is the same wherever its bytes travel."""

from __future__ import annotations

import asyncio

import pytest

from aeonflow import Flags, LinkOptions, Message, check_exact, memory_pair
from aeonflow.assembly import cut_message
from aeonflow.bands import ATTN
from aeonflow.calls import FIRST_CALL_ID, MAX_ABANDONED_CALLS, CallTable
from aeonflow.errors import (
    AeonflowError,
    BadTensorError,
    DeadlineError,
    LinkClosedError,
    LocalProtocolError,
    RemoteProtocolError,
    UnknownStreamError,
    VersionMismatchError,
)
from aeonflow.link import Link
from aeonflow.transport.base import cut_reason
from aeonflow.transport.memory import MemoryWire
from aeonflow.turn import turn_of

from .peers import CALM, WAIT_S, Recorder, hello, hold_up_reading, linked, read_again

MEMORY = ("memory", "memory")


async def test_numerics_that_differ_are_refused_when_exactness_is_asked_for() -> None:
    ours, theirs = hello("h", "host", numerics="n1"), hello("s", numerics="n2")
    with pytest.raises(VersionMismatchError, match=r"n1.*n2"):
        await memory_pair(ours, theirs, options=LinkOptions(check=check_exact))
    a, b = await memory_pair(ours, theirs)
    await a.close()
    await b.close()


async def test_a_link_without_a_handler_vents_everything() -> None:
    a, b = await memory_pair(hello("h", "host"), hello("s"))
    with pytest.raises(UnknownStreamError, match="'s' takes no messages"):
        await a.call(ATTN, b"", timeout_s=WAIT_S)
    await a.close()
    await b.close()


async def test_handlers_may_be_given_with_the_pair() -> None:
    at_a, at_b = Recorder(), Recorder()
    a, b = await memory_pair(
        hello("h", "host"), hello("s"), on_message_a=at_a.on_message, on_message_b=at_b.on_message, options=CALM
    )
    a.send(ATTN, 1, b"to b")
    b.send(ATTN, 2, b"to a")
    assert (await at_a.count(1))[0].payload == b"to a"
    assert (await at_b.count(1))[0].payload == b"to b"
    await a.close()
    await b.close()


async def test_what_the_two_sides_start_never_shares_a_sequence() -> None:
    async with linked(MEMORY) as pair:
        ours = {pair.client.next_sequence() for _ in range(100)}
        theirs = {pair.server.next_sequence() for _ in range(100)}
        assert ours == set(range(100))
        assert all(number >= FIRST_CALL_ID and number % 2 == 0 for number in theirs)
        call = asyncio.create_task(pair.client.call(ATTN, b"", timeout_s=WAIT_S))
        (message,) = await pair.at_server.count(1)
        assert message.sequence >= FIRST_CALL_ID
        assert message.sequence % 2 == 1
        pair.server.send(ATTN, message.sequence, b"")
        await call


async def test_call_ids_wrap_and_skip_those_in_use() -> None:
    table = CallTable(asyncio.get_running_loop(), is_dialer=True)
    first, _ = table.open(ATTN, 10)
    table._next_id = 0xFFFF_FFFF
    last, _ = table.open(ATTN, 10)
    following, _ = table.open(ATTN, 10)
    assert (first, last, following) == (0x8000_0001, 0xFFFF_FFFF, 0x8000_0003)


async def test_abandoned_calls_are_remembered_up_to_a_number() -> None:
    table = CallTable(asyncio.get_running_loop(), is_dialer=True)
    ids = [table.open(ATTN, 10_000)[0] for _ in range(MAX_ABANDONED_CALLS + 1)]
    for sequence in ids:
        table.abandon(ATTN, sequence)
    assert not table.take(Message(ATTN, ids[0], Flags.FIN, b""))
    assert table.take(Message(ATTN, ids[1], Flags.FIN, b""))
    assert not table.take(Message(ATTN, ids[1], Flags.FIN, b""))
    assert table.late_replies == 1


async def test_a_call_too_large_to_send_leaves_nothing_in_flight() -> None:
    async with linked(MEMORY) as pair:
        with pytest.raises(LocalProtocolError, match="this connection takes"):
            await pair.client.call(ATTN, bytes((64 << 20) + 1), timeout_s=WAIT_S)
        assert pair.client.calls_in_flight == 0


async def test_a_peer_is_suspected_after_two_seconds_and_cleared_by_what_it_sends() -> None:
    async with linked(MEMORY, options=LinkOptions(heartbeat_s=600, silence_s=600)) as pair:
        assert not pair.client.is_suspected
        pair.client._heart.heard_at -= 2.1
        assert pair.client.is_suspected
        assert pair.client.silence_s > 2
        pair.server.send(ATTN, 1, b"")
        await pair.at_client.count(1)
        assert not pair.client.is_suspected


async def test_two_replies_to_one_call_are_one_answer() -> None:
    async with linked(MEMORY) as pair:

        def answer_twice(message: Message) -> None:
            for text in (b"first", b"second"):
                pair.server.send(message.stream, message.sequence, text)

        pair.server.on_message = answer_twice
        assert (await pair.client.call(ATTN, b"", timeout_s=WAIT_S)).payload == b"first"


async def test_a_poison_flag_reaches_the_handler() -> None:
    async with linked(MEMORY) as pair:
        pair.client.send(ATTN, 1, b"row", Flags.FIN | Flags.POISON)
        (message,) = await pair.at_server.count(1)
        assert message.flags == Flags.FIN | Flags.POISON


async def test_what_a_handler_sends_leaves_when_its_reader_is_done_as_one_message() -> None:
    async with linked(MEMORY) as pair, linked(MEMORY) as next_pair:
        sent: list[int] = []

        def forward(message: Message) -> None:
            for n in range(3):
                next_pair.client.send(ATTN, n, message.payload)
            sent.append(next_pair.client.waiting_bytes)

        pair.server.on_message = forward
        before = next_pair.client.stats.messages_sent
        pair.client.send(ATTN, 1, b"x")
        pair.client.send(ATTN, 2, b"x")
        await next_pair.at_server.count(6)
        assert sent == [3 * 11, 6 * 11]
        assert next_pair.client.stats.messages_sent == before + 1


def test_each_loop_has_a_turn_of_its_own() -> None:
    one, other = asyncio.new_event_loop(), asyncio.new_event_loop()
    try:
        assert turn_of(one) is turn_of(one)
        assert turn_of(one) is not turn_of(other)
    finally:
        one.close()
        other.close()


async def test_a_connection_that_fails_to_send_keeps_nothing_back_on_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    turn, sent = turn_of(asyncio.get_running_loop()), []

    def fail() -> None:
        raise OSError("no buffer space")

    turn.begin()
    turn.begin()
    turn.schedule(fail)
    turn.schedule(lambda: sent.append("the other's"))
    turn.end()
    assert sent == []
    turn.end()
    assert sent == ["the other's"]
    assert "no buffer space" in caplog.text


async def test_the_reason_of_a_hello_that_never_comes_names_the_wait() -> None:
    wire, _ = MemoryWire.pair()
    link = Link(wire, hello("h", "host"), LinkOptions(handshake_s=0.01), is_dialer=True)
    with pytest.raises(LinkClosedError, match=r"no hello within 0.01 s"):
        await link.opened()
    with pytest.raises(LinkClosedError, match="no hello has come"):
        assert link.remote
    await link.close()


async def test_a_failing_on_link_closes_the_link_and_names_the_kind_of_error(caplog: pytest.LogCaptureFixture) -> None:
    def fail(link: Link) -> None:
        raise KeyError("secret")

    wire_a, wire_b = MemoryWire.pair()
    a = Link(wire_a, hello("h", "host"), CALM, is_dialer=True)
    b = Link(wire_b, hello("s"), CALM, is_dialer=False, on_open=fail)
    at_a = Recorder()
    at_a.attach(a)
    error = await at_a.closing()
    assert isinstance(error, AeonflowError)
    assert str(error) == "internal error while opening the link: KeyError"
    assert b.is_closed
    assert "opening a link to" in caplog.text
    await a.close()
    await b.close()


async def test_a_failing_on_close_is_logged_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async with linked(MEMORY) as pair:

        def fail(error: AeonflowError | None) -> None:
            raise KeyError("x")

        pair.client.on_close = fail
        await pair.client.close()
        assert await pair.at_server.closing() is None
    assert "on_close of memory:station failed" in caplog.text


async def test_a_goodbye_before_hello_fails_the_opening() -> None:
    wire_a, wire_b = MemoryWire.pair()
    a = Link(wire_a, hello("h", "host"), CALM, is_dialer=True)
    wire_b.start(NullReceiver())
    (goodbye,) = cut_message(0, 0, bytes.fromhex("93 03 a4 646f6e65 a0"))
    wire_b.send(goodbye)
    with pytest.raises(LinkClosedError, match="goodbye before hello: done"):
        await a.opened()
    await a.close()


async def test_an_error_while_reading_stops_delivery_of_what_follows() -> None:
    async with linked(MEMORY) as pair:
        wire = pair.client._wire
        good = cut_message(ATTN, 1, b"good")[0]
        wire.send(good + bytes.fromhex("af200000000240000000"))
        wire.send(good)
        assert isinstance(await pair.at_server.closing(), RemoteProtocolError)
        assert pair.at_server.messages == []


async def test_sending_on_a_closed_link_says_why_it_closed() -> None:
    async with linked(MEMORY) as pair:
        await pair.server.close("bad_tensor", "row of 3 bytes")
        error = await pair.at_client.closing()
        assert type(error) is BadTensorError
        with pytest.raises(LinkClosedError, match="the connection is closed: row of 3 bytes"):
            pair.client.send(ATTN, 1, b"")
        pair.client.send_vent(ATTN, 1, None)  # type: ignore[arg-type]  # nothing is sent, nothing raises


async def test_closing_while_a_drain_waits_ends_the_drain() -> None:
    async with linked(MEMORY, options=LinkOptions(high_water_bytes=1, heartbeat_s=600, silence_s=600)) as pair:
        hold_up_reading(pair)
        pair.client.send(ATTN, 1, bytes(100_000))
        draining = asyncio.create_task(pair.client.drain(WAIT_S))
        await asyncio.sleep(0)
        assert not draining.done()
        pair.client._wire.abort()
        with pytest.raises(LinkClosedError):
            await draining
        read_again(pair)


async def test_an_aborted_memory_wire_is_a_broken_connection_for_the_peer() -> None:
    async with linked(MEMORY) as pair:
        pair.client._wire.abort()
        error = await pair.at_server.closing()
        assert isinstance(error, LinkClosedError)
        assert "1006" in str(error)


async def test_a_deadline_of_a_call_that_the_peer_closed_meanwhile_sends_nothing() -> None:
    async with linked(MEMORY) as pair:
        with pytest.raises(DeadlineError):
            await pair.client.call(ATTN, b"", timeout_s=0.001)


def test_a_close_reason_is_cut_between_characters() -> None:
    assert cut_reason("é" * 100) == "é" * 61
    assert cut_reason("short") == "short"


class NullReceiver:
    def on_data(self, message: object) -> None: ...

    def on_fault(self, error: AeonflowError, close_code: int) -> None: ...

    def on_lost(self, error: AeonflowError | None) -> None: ...

    def on_congested(self) -> None: ...

    def on_writable(self) -> None: ...
