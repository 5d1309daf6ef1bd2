"""Weights by role from peers: the asyncio driver over stream af40. What was fetched stays in the cache."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from aeonflow import bands
from aeonflow.assembly import Message
from aeonflow.errors import CallError, DeadlineError
from aeonflow.frames import Buffer
from aeonflow.messages import GetCard, GetChunk, WeightsRequest, encode

from .build import Progress, check_disk, no_progress
from .documents import Bundle, decode_bundle
from .errors import CorruptModelError, MissingWeightsError
from .folder import ModelFolder
from .manifest import FileEntry
from .partial import PartialFile, check_bundle
from .roles import RoleSpan
from .serve import MAX_CHUNK_BYTES

CALL_TIMEOUT_S = 30.0  # for one chunk
CHUNKS_IN_FLIGHT = 4  # hides the round trip without filling the peer's queue
BUSY_POLL_S = 0.2  # between looks at a file that another process of this machine fetches
BUSY_TIMEOUT_S = 600.0


class Caller(Protocol):
    """The part of a link that fetching needs."""

    async def call(self, stream: int, pieces: Buffer | Sequence[Buffer], *, timeout_s: float) -> Message: ...


async def fetch_bundle(link: Caller) -> Bundle:
    """Card, tokenizer and manifest of a peer's model, checked against its fingerprint."""
    bundle = decode_bundle(await _ask(link, GetCard()))
    check_bundle(bundle)
    return bundle


async def fetch_missing(
    links: Sequence[Caller],
    folder: ModelFolder,
    spans: Sequence[RoleSpan],
    progress: Progress = no_progress,
) -> list[FileEntry]:
    """Fetch the files that the roles need and the folder lacks, each from the first link that has it.

    Returns what was fetched. An interrupted fetch goes on where it stopped when it is called again. Raises
    MissingWeightsError naming the file that no link has, CorruptModelError, DiskSpaceError, or the link's errors.
    """
    missing = folder.missing(spans)
    total, done = sum(f.bytes for f in missing), 0
    check_disk(folder.path, total, f"fetching {len(missing)} files of {folder.card.name}")
    for entry in missing:
        await _fetch_file(links, folder.path, entry, lambda n, before=done: progress("download", before + n, total))
        done += entry.bytes
    return list(missing)


class _Received(Protocol):
    def __call__(self, received: int, /) -> None: ...


async def _fetch_file(links: Sequence[Caller], folder: Path, entry: FileEntry, received: _Received) -> None:
    partial = await _open_partial(folder, entry)
    if partial is None:
        return
    try:
        reasons = []
        for link in links:
            try:
                await _receive(link, partial, received)
            except CallError as error:  # this peer does not have it, or refuses
                reasons.append(str(error))
                continue
            partial.finish()
            return
        raise MissingWeightsError(f"{entry.name} is nowhere to be had: {'; '.join(reasons) or 'no peers to ask'}")
    finally:
        partial.close()


async def _open_partial(folder: Path, entry: FileEntry) -> PartialFile | None:
    """The file to fill, or None when another process has placed it meanwhile."""
    for _ in range(int(BUSY_TIMEOUT_S / BUSY_POLL_S)):
        if (folder / entry.name).exists():
            return None
        partial = await asyncio.to_thread(PartialFile.open, folder, entry)
        if partial is not None:
            return partial
        await asyncio.sleep(BUSY_POLL_S)
    raise DeadlineError(f"{entry.name} is being fetched by another process for more than {BUSY_TIMEOUT_S:.0f} s")


async def _receive(link: Caller, partial: PartialFile, received: _Received) -> None:
    entry = partial.entry
    while not partial.is_complete:
        last = min(entry.bytes, partial.received + CHUNKS_IN_FLIGHT * MAX_CHUNK_BYTES)
        offsets = range(partial.received, last, MAX_CHUNK_BYTES)
        chunks = await asyncio.gather(
            *(_ask(link, GetChunk(entry.blake3, o, min(MAX_CHUNK_BYTES, entry.bytes - o))) for o in offsets)
        )
        for offset, chunk in zip(offsets, chunks, strict=True):
            if partial.received != offset:
                break  # the chunk before came shorter than asked for: go on from there
            partial.write(chunk)
        received(partial.received)


async def _ask(link: Caller, request: WeightsRequest) -> Buffer:
    reply = await link.call(bands.WEIGHTS, encode(request), timeout_s=CALL_TIMEOUT_S)
    if not reply.payload:
        raise CorruptModelError(f"an empty answer to {request}")
    return reply.payload
