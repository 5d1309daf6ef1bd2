"""Stations that answer nonsense: the generation fails at once with a typed error, nothing waits or piles up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aeonflow import Flags, Message, bands
from aeonflow.errors import AeonflowError, BadTensorError, CallError, DeadlineError
from aeonflow.tensors import PREFIX, PREFIX_BYTES, DType, Kind, Port, Tensor, pack_tensors
from host import Engine
from stations.core.outgoing import Outgoing, ToLink
from stations.models.folder import ModelFolder

from .local_stations import TOKEN, LocalFleet, LocalStation, local_fleet

Change = Callable[[ToLink], ToLink]


def lie(station: LocalStation, stream: int, change: Change) -> None:
    """From now on what the station answers hosts on `stream` goes through `change`."""
    core = station.core
    take = core.take_outgoing

    def changed(outgoing: Outgoing) -> Outgoing:
        return change(outgoing) if isinstance(outgoing, ToLink) and outgoing.stream == stream else outgoing

    core.take_outgoing = lambda: [changed(outgoing) for outgoing in take()]


def with_prefix(**fields: int) -> Change:
    """The message with fields of its first tensor's prefix replaced."""
    names = (*Tensor.__struct_fields__[:13], "ndim", "dim0", "dim1")

    def change(message: ToLink) -> ToLink:
        payload = b"".join(message.pieces)
        values = dict(zip(names, PREFIX.unpack_from(payload), strict=True)) | fields
        return message._replace(pieces=[PREFIX.pack(*values.values()), payload[PREFIX_BYTES:]])

    return change


def with_vent(payload: bytes) -> Change:
    return lambda message: message._replace(pieces=[payload], flags=Flags.VENT | Flags.FIN)


async def failure(engine: Engine, fleet: LocalFleet, name: str, stream: int, change: Change) -> AeonflowError:
    """What a running generation fails with once the station lies."""
    generation = engine.generate("Hello", max_tokens=400, ignore_eos=True)
    await anext(generation)
    lie(fleet.station(name), stream, change)
    with pytest.raises(AeonflowError) as caught:
        await generation.collect()
    assert not isinstance(caught.value, DeadlineError), "it was waited for"
    return caught.value


@pytest.mark.parametrize(
    ("plan", "name", "stream", "change", "error"),
    [
        ("trisplit", "gate_up", bands.GATE_UP, with_vent(b"\xc1 no msgpack"), CallError),
        ("trisplit", "gate_up", bands.GATE_UP, with_prefix(dtype=DType.U32), BadTensorError),
        ("trisplit", "ends", bands.HEAD, with_prefix(port=Port.H), BadTensorError),
        ("trisplit", "ends", bands.HEAD, with_prefix(first=9), BadTensorError),
        ("trisplit+shards=2", "ends-0", bands.EMBED, with_prefix(dim0=2, dim1=32, rows=2), BadTensorError),
        ("ffslice:2", "ffn-0", bands.FFN, with_prefix(dim0=2, dim1=32, rows=2), BadTensorError),
    ],
)
async def test_a_nonsensical_reply_in_a_relay_is_an_error_at_once(
    plan: str, name: str, stream: int, change: Change, error: type[AeonflowError], model: ModelFolder
) -> None:
    async with (
        local_fleet(plan, model) as fleet,
        Engine.connect(fleet.urls, token=TOKEN, route="relay", transport="websockets") as engine,
    ):
        assert isinstance(await failure(engine, fleet, name, stream, change), error)
        await fleet.until(lambda stations: not any(stations.sessions()))


@pytest.mark.parametrize("change", [with_prefix(first=300), with_prefix(port=Port.X), with_prefix(options=7 << 3)])
async def test_a_nonsensical_head_part_of_a_chain_is_an_error_at_once_and_is_not_kept(
    change: Change, model: ModelFolder
) -> None:
    async with (
        local_fleet("trisplit+shards=2", model) as fleet,
        Engine.connect(fleet.urls, token=TOKEN, transport="websockets") as engine,
    ):
        assert isinstance(await failure(engine, fleet, "ends-0", bands.HEAD, change), BadTensorError)
        assert not engine.network.sequences


async def test_what_belongs_to_nothing_here_is_dropped_and_counted_in_status(model: ModelFolder) -> None:
    async with (
        local_fleet("layers:2", model) as fleet,
        Engine.connect(fleet.urls, token=TOKEN, transport="websockets") as engine,
    ):
        before = await engine.status()
        (head,) = [station for station in engine.network.stations if "head" in station.hello.roles]
        past = Tensor(1, 1, 0, 0, 0, 1, 0, Kind.CANONICAL, Port.TOKEN, 0, DType.U32, 1, 1, 1, 1, bytes(4))
        engine.network.received(head, Message(bands.HEAD, 900, Flags.FIN, b"".join(pack_tensors([past]))))
        engine.network.received(head, Message(bands.HEAD, 901, Flags.FIN, b"no tensor"))
        engine.network.received(head, Message(bands.EMBED, 902, Flags.FIN, b"to nobody"))
        after = await engine.status()
        assert after["stale_answers"] - before["stale_answers"] == 1
        assert after["stray_messages"] - before["stray_messages"] == 2
        assert after["ready"]
