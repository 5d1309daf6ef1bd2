"""One conformance suite for every transport: the same behaviour over memory and all four client × server pairs."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest

from aeonflow import Flags, LinkOptions, Message, Vent
from aeonflow.bands import ATTN, CONTROL, DOWN
from aeonflow.errors import (
    CallError,
    CancelledCallError,
    DeadlineError,
    FrameTooLargeError,
    GapError,
    LinkClosedError,
    OverloadedError,
    UnknownStreamError,
)
from aeonflow.frames import MAX_PAYLOAD_BYTES
from aeonflow.vents import read_vent

from .peers import (
    ALL_PAIRS,
    SOCKET_PAIRS,
    WAIT_S,
    Pair,
    hello,
    hold_up_reading,
    limited,
    linked,
    read_again,
    transport_of,
)

every_pair = pytest.mark.parametrize("transports", ALL_PAIRS, ids="-".join)
every_socket_pair = pytest.mark.parametrize("transports", SOCKET_PAIRS, ids="-".join)


def echo(pair: Pair) -> None:
    """Let the server answer every message with its payload."""
    pair.server.on_message = lambda m: pair.server.send(m.stream, m.sequence, [m.payload])


@every_pair
async def test_both_sides_know_each_other_after_hello(transports: tuple[str, str]) -> None:
    host, station = hello("the-host", "host"), hello("attn-0", roles=("attn:0-1",), pid=7)
    async with linked(transports, client_hello=host, server_hello=station) as pair:
        assert (pair.client.local, pair.client.remote) == (host, station)
        assert (pair.server.local, pair.server.remote) == (station, host)
        assert (pair.client.transport, pair.server.transport) == transports
        assert pair.client.permission == pair.server.permission == "full"


@every_pair
async def test_messages_arrive_whole_and_in_order_both_ways(transports: tuple[str, str]) -> None:
    payloads = [bytes([n % 251]) * (n * n % 9000) for n in range(200)]
    async with linked(transports) as pair:
        for n, payload in enumerate(payloads):
            pair.client.send(ATTN, n, [payload[:10], payload[10:]])
            pair.server.send(DOWN, n, payload)
        for recorder, stream in ((pair.at_server, ATTN), (pair.at_client, DOWN)):
            received = await recorder.count(len(payloads))
            assert received == [Message(stream, n, Flags.FIN, payload) for n, payload in enumerate(payloads)]


@every_pair
async def test_sixteen_small_frames_of_one_turn_are_one_websocket_message(transports: tuple[str, str]) -> None:
    async with linked(transports) as pair:
        before = pair.client.stats.messages_sent
        frames_before, received_before = pair.server.stats.frames_received, pair.server.stats.messages_received
        for n in range(16):
            pair.client.send(ATTN, n, bytes(100))
        await pair.at_server.count(16)
        assert pair.client.stats.messages_sent == before + 1
        assert pair.server.stats.messages_received == received_before + 1
        assert pair.server.stats.frames_received == frames_before + 16


@every_pair
async def test_without_coalescing_every_frame_is_a_message(transports: tuple[str, str]) -> None:
    async with linked(transports, coalesce=False) as pair:
        before = pair.client.stats.messages_sent
        for n in range(16):
            pair.client.send(ATTN, n, b"x")
        await pair.at_server.count(16)
        assert pair.client.stats.messages_sent == before + 16


@every_pair
async def test_payloads_may_be_kept_after_the_handler_has_returned(transports: tuple[str, str]) -> None:
    async with linked(transports) as pair:
        for n in range(50):
            pair.client.send(ATTN, n, bytes([n]) * 5000)
            pair.client.flush()
        received = await pair.at_server.count(50)
        assert all(bytes(m.payload) == bytes([m.sequence]) * 5000 for m in received)


@every_pair
async def test_what_is_sent_is_copied_at_once(transports: tuple[str, str]) -> None:
    async with linked(transports) as pair:
        buffer = bytearray(b"before")
        pair.client.send(ATTN, 1, [buffer])
        buffer[:] = b"after!"
        (message,) = await pair.at_server.count(1)
        assert message.payload == b"before"


@every_pair
async def test_a_message_over_16_mib_travels_as_several_frames(transports: tuple[str, str]) -> None:
    payload = bytes(range(251)) * (MAX_PAYLOAD_BYTES // 251 + 1000)
    async with linked(transports) as pair:
        before = pair.client.stats.frames_sent
        pair.client.send(ATTN, 5, payload)
        (message,) = await pair.at_server.count(1)
        assert message.payload == payload
        assert pair.client.stats.frames_sent == before + 2


@every_pair
async def test_a_message_at_the_limit_passes_and_one_byte_more_is_refused_with_the_sizes(
    transports: tuple[str, str],
) -> None:
    limit = 100_000
    async with linked(transports, server_hello=limited(limit)) as pair:
        assert pair.client.limits.max_message_bytes == limit
        pair.client.send(ATTN, 1, bytes(limit - 1))
        pair.client.send(ATTN, 2, bytes(limit))
        with pytest.raises(FrameTooLargeError, match="100,001 bytes on stream af20: this connection takes 100,000"):
            pair.client.send(ATTN, 3, bytes(limit + 1))
        assert [len(m.payload) for m in await pair.at_server.count(2)] == [limit - 1, limit]
        assert not pair.client.is_closed


@every_pair
async def test_a_call_is_answered_under_its_own_id(transports: tuple[str, str]) -> None:
    async with linked(transports) as pair:
        echo(pair)
        replies = await asyncio.gather(*(pair.client.call(ATTN, [b"%d" % n], timeout_s=WAIT_S) for n in range(40)))
        assert [bytes(reply.payload) for reply in replies] == [b"%d" % n for n in range(40)]
        assert pair.client.calls_in_flight == 0
        assert pair.client.stats.calls == 40


@every_pair
async def test_both_sides_may_call_at_the_same_time_on_the_same_stream(transports: tuple[str, str]) -> None:
    async with linked(transports) as pair:
        echo(pair)
        pair.client.on_message = lambda m: pair.client.send(m.stream, m.sequence, [b"client:", m.payload])
        ours, theirs = await asyncio.gather(
            pair.client.call(CONTROL, b"a", timeout_s=WAIT_S), pair.server.call(CONTROL, b"b", timeout_s=WAIT_S)
        )
        assert (bytes(ours.payload), bytes(theirs.payload)) == (b"a", b"client:b")


@every_pair
async def test_what_a_handler_raises_is_vented_and_the_link_lives(transports: tuple[str, str]) -> None:
    async with linked(transports) as pair:

        def refuse(message: Message) -> None:
            raise GapError("gap: have 41, got 43")

        pair.server.on_message = refuse
        with pytest.raises(GapError, match="station: gap: have 41, got 43"):
            await pair.client.call(ATTN, b"", timeout_s=WAIT_S)
        echo(pair)
        assert (await pair.client.call(ATTN, b"again", timeout_s=WAIT_S)).payload == b"again"


@every_pair
async def test_an_unknown_stream_vents_the_call_and_the_link_lives(transports: tuple[str, str]) -> None:
    async with linked(transports) as pair:
        echo(pair)
        pair.server.accepted_streams = {ATTN}
        with pytest.raises(UnknownStreamError, match="stream 1234 is not one that 'station' takes"):
            await pair.client.call(0x1234, b"", timeout_s=WAIT_S)
        assert (await pair.client.call(ATTN, b"fine", timeout_s=WAIT_S)).payload == b"fine"


@every_pair
async def test_a_call_that_reaches_its_deadline_tells_the_peer_and_drops_the_late_reply(
    transports: tuple[str, str],
) -> None:
    async with linked(transports) as pair:
        with pytest.raises(DeadlineError, match=r"no reply on stream af20 within 0.02 s"):
            await pair.client.call(ATTN, b"slow", timeout_s=0.02)
        call, vent = await pair.at_server.count(2)
        assert (vent.sequence, vent.flags & Flags.VENT) == (call.sequence, Flags.VENT)
        assert isinstance(read_vent(vent), DeadlineError)
        pair.server.send(ATTN, call.sequence, b"too late")
        pair.server.send(ATTN, 7, b"a message")
        assert [m.payload for m in await pair.at_client.count(1)] == [b"a message"]
        assert pair.client.stats.late_replies == 1


@every_pair
async def test_cancelling_a_caller_cancels_the_call_at_the_peer(transports: tuple[str, str]) -> None:
    async with linked(transports) as pair:
        caller = asyncio.create_task(pair.client.call(ATTN, b"", timeout_s=WAIT_S))
        await pair.at_server.count(1)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        _, vent = await pair.at_server.count(2)
        assert isinstance(read_vent(vent), CancelledCallError)
        assert pair.client.calls_in_flight == 0


@every_pair
async def test_calls_beyond_the_negotiated_number_are_refused_at_once(transports: tuple[str, str]) -> None:
    few = hello(limits=hello().limits.__class__(max_calls=2))
    async with linked(transports, server_hello=few) as pair:
        callers = [asyncio.create_task(pair.client.call(ATTN, b"", timeout_s=WAIT_S)) for _ in range(2)]
        await pair.at_server.count(2)
        with pytest.raises(OverloadedError, match="2 calls in flight: 2 are allowed"):
            await pair.client.call(ATTN, b"", timeout_s=WAIT_S)
        for call in pair.at_server.messages:
            pair.server.send(ATTN, call.sequence, b"ok")
        await asyncio.gather(*callers)


@every_pair
async def test_closing_says_goodbye_and_delivers_what_was_sent_before(transports: tuple[str, str]) -> None:
    async with linked(transports) as pair:
        for n in range(20):
            pair.client.send(ATTN, n, bytes(50_000))
        await pair.client.close("drain", "going home")
        assert await pair.at_server.closing() is None
        assert len(pair.at_server.messages) == 20
        goodbye = pair.server.goodbye
        assert goodbye is not None
        assert (goodbye.code, goodbye.reason) == ("drain", "going home")
        assert pair.at_client.closed == [None]
        with pytest.raises(LinkClosedError):
            pair.client.send(ATTN, 1, b"")
        with pytest.raises(LinkClosedError, match="going home"):
            pair.server.send(ATTN, 1, b"")
        await pair.client.close()


@every_pair
async def test_a_close_with_an_error_code_is_that_error_on_the_other_side(transports: tuple[str, str]) -> None:
    async with linked(transports) as pair:
        await pair.server.close("overloaded", "9 sessions, at most 8")
        error = await pair.at_client.closing()
        assert isinstance(error, OverloadedError)
        assert str(error) == "9 sessions, at most 8"


@every_pair
async def test_calls_in_flight_fail_when_the_link_closes(transports: tuple[str, str]) -> None:
    async with linked(transports) as pair:
        callers = [asyncio.create_task(pair.client.call(ATTN, b"", timeout_s=WAIT_S)) for _ in range(3)]
        await pair.at_server.count(3)
        await pair.server.close("drain", "leaving")
        results = await asyncio.gather(*callers, return_exceptions=True)
        assert [type(result) for result in results] == [LinkClosedError] * 3
        assert "leaving" in str(results[0])
        with pytest.raises(LinkClosedError):
            await pair.client.call(ATTN, b"", timeout_s=WAIT_S)
        with pytest.raises(LinkClosedError):
            await pair.client.drain(WAIT_S)


@every_pair
async def test_a_slow_reader_holds_up_drain_and_not_send(transports: tuple[str, str]) -> None:
    options = LinkOptions(high_water_bytes=100_000)
    async with linked(transports, options=options) as pair:
        hold_up_reading(pair)
        for n in range(40):
            pair.client.send(ATTN, n, bytes(1 << 20))
        with pytest.raises(DeadlineError, match=r"bytes still waiting after 0.05 s, high-water mark 100,000"):
            await pair.client.drain(0.05)
        draining = asyncio.create_task(pair.client.drain(WAIT_S))
        read_again(pair)
        await draining
        assert pair.client.waiting_bytes <= 100_000
        await pair.at_server.count(40)


@every_pair
async def test_a_reader_that_never_reads_is_cut_off_at_the_cap_with_the_numbers(transports: tuple[str, str]) -> None:
    async with linked(transports, options=LinkOptions(max_outbound_bytes=8 << 20)) as pair:
        hold_up_reading(pair)
        for n in range(64):
            if not pair.client.is_closed:
                pair.client.send(ATTN, n, bytes(1 << 20))
        with pytest.raises(LinkClosedError, match="does not read"):
            pair.client.send(ATTN, 64, b"")
        error = await pair.at_client.closing()
        assert isinstance(error, OverloadedError)
        assert "at most 8,388,608" in str(error)
        assert len(pair.at_client.closed) == 1
        read_again(pair)


@every_socket_pair
async def test_sockets_have_no_delay(transports: tuple[str, str]) -> None:
    async with linked(transports) as pair:
        for link in (pair.client, pair.server):
            sock = transport_of(link).get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


@every_socket_pair
async def test_a_connection_cut_without_goodbye_is_an_error_on_both_sides(transports: tuple[str, str]) -> None:
    async with linked(transports) as pair:
        transport_of(pair.client).abort()
        for recorder in (pair.at_client, pair.at_server):
            assert isinstance(await recorder.closing(), LinkClosedError)
            assert len(recorder.closed) == 1


@every_socket_pair
async def test_a_half_closed_connection_is_noticed_at_once(transports: tuple[str, str]) -> None:
    async with linked(transports) as pair:
        with socket.socket(fileno=os.dup(transport_of(pair.client).get_extra_info("socket").fileno())) as same:
            same.shutdown(socket.SHUT_WR)
        assert isinstance(await pair.at_server.closing(), LinkClosedError)
        assert isinstance(await pair.at_client.closing(), LinkClosedError)


@every_pair
async def test_a_vent_for_a_one_way_message_reaches_its_sender(transports: tuple[str, str]) -> None:
    async with linked(transports) as pair:
        sequence = pair.client.next_sequence()
        pair.client.send(ATTN, sequence, b"one way")
        (message,) = await pair.at_server.count(1)
        pair.server.vent(message, GapError("gap: have 1, got 3"), session=9, epoch=2, first=3, layer=4)
        (vent,) = await pair.at_client.count(1)
        assert (vent.stream, vent.sequence, vent.flags) == (ATTN, sequence, Flags.VENT | Flags.FIN)
        assert type(read_vent(vent)) is GapError


@every_pair
async def test_errors_of_unknown_kind_still_name_their_text(transports: tuple[str, str]) -> None:
    async with linked(transports) as pair:
        pair.server.on_message = lambda m: pair.server.send_vent(m.stream, m.sequence, Vent("of-later", "a new cause"))
        with pytest.raises(CallError, match="a new cause"):
            await pair.client.call(ATTN, b"", timeout_s=WAIT_S)
