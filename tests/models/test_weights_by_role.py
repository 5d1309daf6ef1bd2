from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import numpy as np
import pytest

from aeonflow import Hello, Link, Message, memory_pair
from aeonflow.errors import CallError, LinkClosedError
from aeonflow.messages import PROTOCOL_VERSION, GetCard, GetChunk
from stations.models import (
    CorruptModelError,
    MissingWeightsError,
    ModelError,
    ModelFolder,
    UnsupportedModelError,
    build_synthetic,
    parse_roles,
)
from stations.models import fetch as fetch_module
from stations.models.build import build_folder
from stations.models.documents import Bundle, decode_bundle, encode_bundle
from stations.models.fetch import fetch_bundle, fetch_missing
from stations.models.partial import PartialFile, begin_folder
from stations.models.serve import MAX_CHUNK_BYTES, WeightsServer
from stations.models.synthetic import SyntheticCheckpoint
from stations.models.synthetic_spec import SyntheticSpec

SPEC = "synthetic:layers=3,hidden=64,heads=4,kv_heads=2,ffn=128,vocab=2048,seed=1,type=f32"
Answer = Callable[[Message, int], bytes | None]  # None: no answer ever


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return build_synthetic(SPEC, tmp_path_factory.mktemp("models") / "whole")


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks far smaller than a file, so that a fetch takes many."""
    monkeypatch.setattr(fetch_module, "MAX_CHUNK_BYTES", 4096)


class TenAnswers:
    """Answers from a model's folder, and none after the tenth; `silent` is set then."""

    def __init__(self, model: ModelFolder) -> None:
        self.silent = asyncio.Event()
        self._server = WeightsServer(model)
        self._num_asked = 0

    def __call__(self, message: Message, max_bytes: int) -> bytes | None:
        self._num_asked += 1
        if self._num_asked > 10:
            self.silent.set()
            return None
        return self._server.answer_message(message, max_bytes)


@asynccontextmanager
async def served(answer: Answer) -> AsyncIterator[Link]:
    """A link whose other side answers af40 by `answer`."""
    hellos = [Hello(PROTOCOL_VERSION, name, kind) for name, kind in (("asks", "station"), ("serves", "station"))]
    asks, serves = await memory_pair(*hellos)

    def on_message(message: Message) -> None:
        reply = answer(message, serves.limits.max_message_bytes)
        if reply is not None:
            serves.send(message.stream, message.sequence, reply)

    serves.on_message = on_message
    try:
        yield asks
    finally:
        await asks.close()
        await serves.close()


def partial_bytes(folder: ModelFolder, name: str) -> int:
    """Bytes of a file that came before a fetch ended."""
    return (folder.path / f".{name}.part").stat().st_size


def bundle_of(folder: ModelFolder) -> Bundle:
    return Bundle(folder.card, folder.tokenizer_json, folder.manifest)


async def test_a_folder_begins_from_the_bundle_and_fills_with_the_roles_asked_for(
    whole: ModelFolder, tmp_path: Path, small_chunks: None
) -> None:
    async with served(WeightsServer(whole).answer_message) as link:
        folder = begin_folder(await fetch_bundle(link), tmp_path / "m")
        assert folder.card == whole.card
        assert folder.tokenizer_json == whole.tokenizer_json
        assert not any(map(folder.holds, folder.manifest.files))
        spans = parse_roles("attn:1,head", 3)
        seen: list[tuple[int, int]] = []
        fetched = await fetch_missing([link], folder, spans, lambda stage, done, total: seen.append((done, total)))
        assert [f.name for f in fetched] == ["embed.safetensors", "attn.001.safetensors", "head.safetensors"]
        total = sum(f.bytes for f in fetched)
        assert seen[-1] == (total, total)
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)
        assert await fetch_missing([link], folder, spans) == []
    folder.verify()
    assert np.array_equal(folder.matrix("attn", 1, "qkv").data, whole.matrix("attn", 1, "qkv").data)
    assert {p.name for p in folder.path.iterdir()} == {f.name for f in fetched} | {
        "card.json", "tokenizer.json", "manifest.json",
    }  # fmt: skip


async def test_an_interrupted_fetch_goes_on_where_it_stopped(
    whole: ModelFolder, tmp_path: Path, small_chunks: None
) -> None:
    folder = begin_folder(bundle_of(whole), tmp_path / "m")
    server = WeightsServer(whole)
    spans = parse_roles("embed", 3)
    size = whole.manifest.files_for(spans)[0].bytes
    ten = TenAnswers(whole)
    async with served(ten) as link:
        task = asyncio.ensure_future(fetch_missing([link], folder, spans))
        await ten.silent.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    received = partial_bytes(folder, "embed.safetensors")
    assert 0 < received < size
    assert not folder.has("embed")
    offsets: list[int] = []

    def answer_and_note(message: Message, max_bytes: int) -> bytes:
        request = msgspec.msgpack.decode(message.payload, type=GetChunk)
        offsets.append(request.offset)
        return server.answer_message(message, max_bytes)

    async with served(answer_and_note) as link:
        await fetch_missing([link], folder, spans)
    assert min(offsets) == received
    folder.verify()
    assert folder.has("embed")


async def test_bytes_that_are_not_the_files_are_dropped(whole: ModelFolder, tmp_path: Path) -> None:
    folder = begin_folder(bundle_of(whole), tmp_path / "m")
    server = WeightsServer(whole)

    def answer_wrong(message: Message, max_bytes: int) -> bytes:
        data = bytearray(server.answer_message(message, max_bytes))
        data[-1] ^= 1
        return bytes(data)

    async with served(answer_wrong) as link:
        with pytest.raises(CorruptModelError, match=r"down\.002\.safetensors: .* expected"):
            await fetch_missing([link], folder, parse_roles("down:2", 3))
    assert not list(folder.path.glob("*down*"))
    async with served(server.answer_message) as link:
        await fetch_missing([link], folder, parse_roles("down:2", 3))
    folder.verify()


async def test_each_file_comes_from_the_first_peer_that_has_it(whole: ModelFolder, tmp_path: Path) -> None:
    part = build_folder(
        SyntheticCheckpoint(SyntheticSpec.parse(SPEC)), tmp_path / "part", roles=parse_roles("attn:0", 3)
    )
    folder = begin_folder(bundle_of(whole), tmp_path / "m")
    async with served(WeightsServer(part).answer_message) as near, served(WeightsServer(whole).answer_message) as far:
        await fetch_missing([near, far], folder, parse_roles("attn:0,down:0", 3))
        folder.verify()
        with pytest.raises(MissingWeightsError, match=r"down\.001\.safetensors is nowhere to be had: .*not kept here"):
            await fetch_missing([near], folder, parse_roles("down:1", 3))
    with pytest.raises(MissingWeightsError, match="no peers to ask"):
        await fetch_missing([], folder, parse_roles("down:1", 3))


async def test_a_lost_link_is_an_error_and_keeps_what_came(
    whole: ModelFolder, tmp_path: Path, small_chunks: None
) -> None:
    folder = begin_folder(bundle_of(whole), tmp_path / "m")
    ten = TenAnswers(whole)
    async with served(ten) as link:
        fetching = asyncio.ensure_future(fetch_missing([link], folder, parse_roles("embed", 3)))
        await ten.silent.wait()
        await link.close()
        with pytest.raises(LinkClosedError):
            await fetching
    assert partial_bytes(folder, "embed.safetensors") > 0
    assert not folder.has("embed")


def test_requests_that_make_no_sense_are_refused_with_the_numbers(whole: ModelFolder) -> None:
    server = WeightsServer(whole)
    entry = whole.manifest.files[0]
    data = (whole.path / entry.name).read_bytes()
    assert server.answer(GetChunk(entry.blake3, 100, 50)) == data[100:150]
    assert server.answer(GetChunk(entry.blake3, entry.bytes - 10, 50)) == data[-10:]
    assert len(server.answer(GetChunk(entry.blake3, 0, 1 << 40))) == min(len(data), MAX_CHUNK_BYTES)
    assert server.answer(GetChunk(entry.blake3, 0, 5000), 1000) == data[:1000]
    for offset, length in ((-1, 10), (entry.bytes, 10), (0, 0), (0, -5)):
        with pytest.raises(ModelError, match=rf"{length} bytes at {offset} are asked for, the file has {entry.bytes}"):
            server.answer(GetChunk(entry.blake3, offset, length))
    with pytest.raises(MissingWeightsError, match="has blake3 '/etc/passwd'"):
        server.answer(GetChunk("/etc/passwd", 0, 10))


async def test_a_refusal_reaches_the_asker_as_a_typed_error(whole: ModelFolder) -> None:
    async with served(WeightsServer(whole).answer_message) as link:
        with pytest.raises(CallError, match="no file of"):
            await fetch_module._ask(link, GetChunk("ab" * 32, 0, 10))


def test_a_bundle_survives_the_wire_and_a_changed_one_is_refused(whole: ModelFolder, tmp_path: Path) -> None:
    data = WeightsServer(whole).answer(GetCard())
    assert decode_bundle(data) == bundle_of(whole)
    bundle = bundle_of(whole)
    changed = [
        bundle._replace(tokenizer_json=bundle.tokenizer_json + " "),
        bundle._replace(card=msgspec.structs.replace(bundle.card, eos_ids=(5,))),
        bundle._replace(manifest=msgspec.structs.replace(bundle.manifest, files=bundle.manifest.files[1:])),
    ]
    for other in changed:
        with pytest.raises(CorruptModelError, match="bundle"):
            begin_folder(decode_bundle(encode_bundle(other)), tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_bundle_is_one_clear_error(whole: ModelFolder) -> None:
    data = bytes(WeightsServer(whole).answer(GetCard()))
    for size in range(0, len(data), 997):
        with pytest.raises(CorruptModelError):
            decode_bundle(data[:size])
    rng = np.random.default_rng(5)
    for _ in range(300):
        changed = bytearray(data)
        for at in rng.integers(0, 3000, 3):
            changed[at] = rng.integers(256)
        with suppress(CorruptModelError, UnsupportedModelError):
            decode_bundle(bytes(changed))


def test_a_folder_of_another_model_is_not_overwritten(whole: ModelFolder, tmp_path: Path) -> None:
    other = build_synthetic(SPEC + ",seed=2", tmp_path / "m")
    with pytest.raises(ModelError, match=f"{other.card.fingerprint}, offered {whole.card.fingerprint}"):
        begin_folder(bundle_of(whole), tmp_path / "m")
    assert ModelFolder.open(tmp_path / "m").card == other.card


def test_one_process_at_a_time_fills_a_file(whole: ModelFolder, tmp_path: Path) -> None:
    entry = whole.manifest.files[0]
    data = (whole.path / entry.name).read_bytes()
    first = PartialFile.open(tmp_path, entry)
    assert first is not None
    assert PartialFile.open(tmp_path, entry) is None
    first.write(data[:1000])
    first.close()
    second = PartialFile.open(tmp_path, entry)
    assert second is not None
    assert second.received == 1000
    with pytest.raises(CorruptModelError, match="were sent"):
        second.write(bytes(entry.bytes))
    second.write(data[1000:])
    assert second.is_complete
    second.finish()
    assert (tmp_path / entry.name).read_bytes() == data
    assert [p.name for p in tmp_path.iterdir()] == [entry.name]


def test_what_is_left_of_a_longer_file_is_begun_anew(whole: ModelFolder, tmp_path: Path) -> None:
    entry = whole.manifest.files[0]
    (tmp_path / f".{entry.name}.part").write_bytes(bytes(entry.bytes + 1))
    partial = PartialFile.open(tmp_path, entry)
    assert partial is not None
    assert partial.received == 0
    partial.write((whole.path / entry.name).read_bytes())
    partial.finish()
