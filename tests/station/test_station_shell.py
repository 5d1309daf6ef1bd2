"""Stations over real sockets: relay, chain, lost neighbours, permissions, compute that does not block the loop."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aeonflow import Heartbeat, Hello, bands, connect, station_key
from aeonflow.errors import AeonflowError, NotForYouError, OverloadedError, StationLostError
from aeonflow.messages import (
    PROTOCOL_VERSION,
    Cancel,
    Drain,
    GetCard,
    InstallRoute,
    Limits,
    Open,
    Route,
    StationAddress,
    Stats,
    Where,
    encode,
)
from aeonflow.tensors import DType, Port, Tensor, Want, pack_tensors
from stations.embedded import Embedded
from stations.kernels.base import Span
from stations.kernels.reference import ReferenceBackend
from stations.models.documents import decode_bundle
from stations.models.folder import ModelFolder
from stations.models.roles import parse_roles
from stations.server.peers import PeerOptions

from .cores import ROUTE, PlainModel, carriers_of, f32, ids_tensor, tensor
from .servers import HOST_HELLO, TOKEN, WAIT_S, Host, serving

TRISPLIT = ["attn:0-2", "gate_up:0-2", "down:0-2", "embed,head"]
IDS = [17, 300, 511, 0, 42, 42, 256, 99]


def of_port(tensors: Sequence[Tensor], port: Port) -> Any:
    (found,) = (one for one in tensors if one.port == port)
    return f32(found)


async def test_a_relayed_pass_equals_the_kernels_in_one_process_bit_for_bit(
    model: ModelFolder, plain: PlainModel
) -> None:
    async with serving(model, TRISPLIT) as host:
        for index in range(4):
            await host.ask(index, Open(9, 0, 64))

        async def call(index: int, stream: int, layer: int, **ports: Any) -> list[Tensor]:
            sent = [tensor(Port[port], array, layer=layer, route=0, want=Want.ALL) for port, array in ports.items()]
            return await host.call(index, stream, *sent)

        embedded = await host.call(3, bands.EMBED, ids_tensor(IDS, route=0))
        x = of_port(embedded, Port.X)
        for layer in range(3):
            first = await call(0, bands.ATTN, layer, X=x)
            h, n = of_port(first, Port.H), of_port(first, Port.N)
            u = of_port(await call(1, bands.GATE_UP, layer, N=n), Port.U)
            x = of_port(await call(2, bands.DOWN, layer, H=h, U=u), Port.X)
        (logits,) = await call(3, bands.HEAD, 0, X=x)
        assert np.array_equal(f32(logits), plain.logits(IDS))
        assert logits.hop == 2, "each call: one crossing there, which the host counts, one back"


async def test_a_chained_pass_equals_the_kernels_in_one_process_bit_for_bit(
    model: ModelFolder, plain: PlainModel
) -> None:
    async with serving(model, TRISPLIT) as host:
        await host.install()
        await host.open()
        expected = plain.logits(IDS)
        for first, count in ((0, 5), (5, 1), (6, 2)):
            one = ids_tensor(IDS[first : first + count], first=first, want=Want.ALL)
            host.links[3].send(bands.EMBED, 1, pack_tensors([one]))
            (logits,) = await host.answer()
            assert np.array_equal(f32(logits), expected[first : first + count])
            assert logits.hop == 12


async def test_an_embedded_station_gives_the_same_logits_without_a_hop_and_ends_cleanly(
    model: ModelFolder, plain: PlainModel
) -> None:
    station = await Embedded.start(str(model.path), kernels="reference")
    link = await station.connect(HOST_HELLO)
    answers: asyncio.Queue[Any] = asyncio.Queue()
    link.on_message = answers.put_nowait
    host = Host([], 3, [])
    host.links, host.answers = [link], answers
    await host.ask(0, Open(9, 0, 64))
    x = await host.call(0, bands.EMBED, ids_tensor(IDS, route=0, hop=0))
    x = await host.call(0, bands.BLOCK, tensor(Port.X, of_port(x, Port.X), route=0, hop=0))
    (logits,) = await host.call(0, bands.HEAD, tensor(Port.X, of_port(x, Port.X), route=0, hop=0, want=Want.ALL))
    np.testing.assert_allclose(f32(logits), plain.logits(IDS), atol=1e-4)  # the embedded set runs rows together
    assert logits.hop == 0
    await link.close()
    await station.close()
    assert [thread for thread in threading.enumerate() if thread.name.startswith("compute")] == []
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


async def test_a_station_key_forwards_and_nothing_else(model: ModelFolder) -> None:
    async with serving(model, TRISPLIT) as host:
        await host.install()
        await host.open()
        hello = Hello(PROTOCOL_VERSION, "peer", "station")
        peer = await connect(host.stations[0].url, hello=hello, token=station_key(TOKEN), transport="websockets")
        x = np.ones((1, 64), np.float32)
        for stream, payload in (
            (bands.CONTROL, encode(Open(10, 0, 8))),
            (bands.CONTROL, encode(Stats())),
            (bands.WEIGHTS, encode(GetCard())),
            (bands.EMBED, b"".join(pack_tensors([ids_tensor([1])]))),
            (bands.ATTN, b"".join(pack_tensors([tensor(Port.X, x, route=0)]))),
        ):
            with pytest.raises(AeonflowError) as refused:
                await peer.call(stream, payload, timeout_s=WAIT_S)
            assert isinstance(refused.value, NotForYouError) or stream == bands.ATTN, refused.value
        peer.send(bands.ATTN, peer.next_sequence(), pack_tensors([tensor(Port.X, x)]))
        (logits,) = await host.answer()
        assert logits.session == 9
        await peer.close()


async def test_the_card_is_served_to_hosts(model: ModelFolder) -> None:
    async with serving(model, ["embed,block:0-2,head"]) as host:
        reply = await host.links[0].call(bands.WEIGHTS, encode(GetCard()), timeout_s=WAIT_S)
        assert decode_bundle(reply.payload).card == model.card


async def test_a_lost_successor_is_reported_to_the_host_and_dialled_again_when_it_is_back(
    model: ModelFolder, plain: PlainModel
) -> None:
    async with serving(model, TRISPLIT) as host:
        await host.install()
        await host.open()
        host.links[3].send(bands.EMBED, 1, pack_tensors([ids_tensor(IDS[:4])]))
        await host.answer()
        await host.stations[1].stop()
        with pytest.raises(StationLostError, match=r"station s1 at ws://.* is lost to s0"):
            await host.answer()
        await host.stations[1].start()
        await host.dial()
        await host.install()
        await host.open()
        host.links[3].send(bands.EMBED, 1, pack_tensors([ids_tensor(IDS, want=Want.ALL)]))
        (logits,) = await host.answer()
        assert np.array_equal(f32(logits), plain.logits(IDS))


async def test_a_successor_that_is_never_there_is_reported_and_the_station_lives(model: ModelFolder) -> None:
    options = PeerOptions(lost_after_s=0.3, backoff_first_s=0.02)
    async with serving(model, TRISPLIT, options=options) as host:
        await host.stations[1].stop()
        host.links.pop(1)
        await _install_without(host, missing=1)
        for index in range(3):
            await host.ask(index, Open(9, ROUTE, 64))
        host.links[2].send(bands.EMBED, 1, pack_tensors([ids_tensor(IDS[:4])]))
        with pytest.raises(StationLostError, match=r"is lost to s0: .*connection refused"):
            await host.answer()
        assert (await host.ask(0, Stats())).values["stations_lost"] == 1
        assert (await host.ask(0, Where(9))).passed == (("attn", 0, 4),)


async def test_what_waits_for_a_successor_is_bounded(model: ModelFolder) -> None:
    options = PeerOptions(lost_after_s=30.0, backoff_first_s=0.02, max_waiting_messages=2)
    async with serving(model, TRISPLIT, options=options) as host:
        await host.stations[1].stop()
        host.links.pop(1)
        await _install_without(host, missing=1)
        for index in range(3):
            await host.ask(index, Open(9, ROUTE, 64))
        for first in range(3):
            host.links[2].send(bands.EMBED, first, pack_tensors([ids_tensor([7], first=first)]))
        with pytest.raises(OverloadedError, match=r"2 messages of .* wait for ws://"):
            await host.answer()


async def _install_without(host: Host, missing: int) -> None:
    addresses = tuple(StationAddress(s.name, s.url) for s in host.stations)
    route = Route(ROUTE, 3, addresses, carriers_of(TRISPLIT, 3))
    places = [index for index in range(len(addresses)) if index != missing]
    for link_index, place in enumerate(places):
        await host.ask(link_index, InstallRoute(route, place))


class Blocking(ReferenceBackend):
    """attn waits, in whichever thread it runs, until the test lets it go."""

    def __init__(self, model: ModelFolder) -> None:
        super().__init__(model, parse_roles("attn:0-2", 3), row_by_row=True)
        self.entered = threading.Event()
        self.released = threading.Event()

    def attn(self, layer: int, x: Any, spans: Sequence[Span]) -> Any:
        self.entered.set()
        assert self.released.wait(WAIT_S)
        return super().attn(layer, x, spans)


async def test_frames_are_read_and_answered_while_a_batch_is_computed(model: ModelFolder) -> None:
    backend = Blocking(model)
    async with serving(model, ["attn:0-2"], backends={0: backend}) as host:
        await host.ask(0, Open(9, 0, 64))
        x = np.ones((1, 64), np.float32)
        call = asyncio.create_task(host.call(0, bands.ATTN, tensor(Port.X, x, route=0)))
        assert await asyncio.to_thread(backend.entered.wait, WAIT_S)
        heartbeat: Heartbeat = host.stations[0].shell.heartbeat()
        assert heartbeat.busy_s > 0
        assert (await host.ask(0, Stats())).values["busy_s"] > 0
        await host.ask(0, Cancel(9, 2, 0))
        assert host.stations[0].core.sessions.get(9).epoch == 2
        backend.released.set()
        with pytest.raises(AeonflowError, match="has left that epoch"):
            await call
        assert host.stations[0].core.sessions.get(9).length(0) == 0


async def test_outputs_for_a_station_that_left_the_route_meanwhile_are_reported(model: ModelFolder) -> None:
    backend = Blocking(model)
    async with serving(model, TRISPLIT, backends={0: backend}) as host:
        await host.install()
        await host.open()
        host.links[3].send(bands.EMBED, 1, pack_tensors([ids_tensor([7])]))
        assert await asyncio.to_thread(backend.entered.wait, WAIT_S)
        await host.install(["", "ws://127.0.0.1:1", "ws://127.0.0.1:1"])
        backend.released.set()
        with pytest.raises(StationLostError, match="no successor on any route"):
            await host.answer()


async def test_short_batches_run_inline_once_their_cost_is_known(model: ModelFolder) -> None:
    async with serving(model, ["embed"]) as host:
        await host.ask(0, Open(9, 0, 64))
        for _ in range(20):
            await host.call(0, bands.EMBED, ids_tensor([5], route=0))
        values = (await host.ask(0, Stats())).values
        assert values["batches"] == 20
        assert values["batches_threaded"] >= 1, "the first, whose cost nobody knows"
        assert values["batches_inline"] >= 1


async def test_the_sessions_of_a_host_that_leaves_are_dropped_everywhere(model: ModelFolder) -> None:
    async with serving(model, TRISPLIT) as host:
        await host.install()
        await host.open()
        other = Host(host.stations, 3, TRISPLIT)
        await other.dial()
        await other.ask(0, Open(11, 0, 8))
        for link in host.links:
            await link.close()
        async with asyncio.timeout(WAIT_S):
            while any(station.core.sessions.get(9) for station in host.stations):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert [len(station.core.sessions) for station in host.stations] == [1, 0, 0, 0]
        await other.close()


async def test_a_host_may_ask_a_station_to_leave(model: ModelFolder) -> None:
    async with serving(model, ["embed"]) as host:
        asked = asyncio.Event()
        host.stations[0].shell.on_drain = asked.set
        await host.ask(0, Drain())
        await asyncio.wait_for(asked.wait(), WAIT_S)
        assert await host.stations[0].shell.drain(timeout_s=5.0)


async def test_an_answer_too_large_for_the_host_is_vented_instead(model: ModelFolder) -> None:
    async with serving(model, ["head"]) as host:
        await host.links[0].close()
        hello = Hello(PROTOCOL_VERSION, "small", "host", limits=Limits(max_message_bytes=2000))
        host.links[0] = await connect(host.stations[0].url, hello=hello, token=TOKEN, transport="websockets")
        await host.ask(0, Open(9, 0, 64))
        with pytest.raises(AeonflowError, match=r"2,096 bytes.*takes 2,000"):
            await host.call(0, bands.HEAD, tensor(Port.X, np.ones((1, 64), np.float32), DType.F32, route=0))


async def test_the_protocol_documents_every_key_of_stats_and_no_other(model: ModelFolder) -> None:
    text = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
    section = text.split("\n## Stats\n")[1].split("\nEvery frame of a chain")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    documented = {key for row in rows for key in re.findall("`([a-z_]+)`", row)}
    async with serving(model, ["embed"]) as host:
        assert documented == set((await host.ask(0, Stats())).values)
