"""docs/protocol.md says what the code does: vectors, error codes, streams, flags, limits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aeonflow import Flags, LinkOptions, bands, endpoint, errors, fano
from aeonflow.assembly import MAX_PARTIAL_MESSAGES
from aeonflow.batcher import MAX_BATCH_BYTES, MAX_BATCH_FRAMES
from aeonflow.errors import AeonflowError
from aeonflow.frames import MAX_FRAMES, MAX_PAYLOAD_BYTES
from aeonflow.messages import Limits
from aeonflow.tensors import DType, Port

from .peers import vectors

DOCUMENT = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()


def section(title: str) -> str:
    return DOCUMENT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def all_hex(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (text for key, text in value.items() if key in ("hex", "key") and isinstance(text, str))
        yield from (found for inner in value.values() for found in all_hex(inner))
    elif isinstance(value, list):
        yield from (found for inner in value for found in all_hex(inner))


@pytest.mark.parametrize("name", ["frames", "tensors", "messages"])
def test_every_golden_vector_stands_in_the_document(name: str) -> None:
    shown = re.sub(r"\s+", "", section("Golden vectors"))
    found = list(all_hex(vectors(name)))
    assert found
    assert [text for text in found if text not in shown] == []


def test_every_error_code_of_the_wire_has_its_row() -> None:
    def walk(cls: type[AeonflowError]) -> Iterator[type[AeonflowError]]:
        yield cls
        for sub in cls.__subclasses__():
            yield from walk(sub)

    codes = {cls.code for cls in walk(AeonflowError) if cls.__module__ == errors.__name__}
    assert set(re.findall(r"^\| `([a-z_]+)` \|", section("Error codes"), re.MULTILINE)) == codes


def test_every_stream_and_flag_is_in_its_table() -> None:
    streams = section("Stream ids")
    for stream in (bands.CONNECTION, bands.CONTROL, *bands.STREAM_ROLES, bands.KV_SLAB, bands.VOLUME_CAPTURE,
                   bands.VOLUME_REPLAY, bands.WEIGHTS, bands.TRACES, bands.SEED_FIRST, bands.SEED_LAST):  # fmt: skip
        assert f"`{stream:04x}`" in streams
    frames = section("Frames")
    for flag in Flags:
        assert f"| {flag.name} | {flag.value:02x} |" in frames


def test_ports_and_dtypes_are_numbered_as_in_the_code() -> None:
    table = section("Tensors")
    assert ", ".join(f"{port.value} {port.name.lower()}" for port in Port) in table
    assert ", ".join(f"{dtype.value} {dtype.name.lower()}" for dtype in DType) in table


def test_fano_lines_stand_in_their_order_with_their_streams() -> None:
    rows = re.findall(r"^\| (\d) \| (\d{3}) \| (\S+)", section("Fano lines"), re.MULTILINE)
    assert [(int(index), points) for index, points, _ in rows] == [
        (line.index, "".join(map(str, line.points))) for line in fano.LINES
    ]
    for line, (_, _, streams) in zip(fano.LINES, rows, strict=True):
        assert streams == (f"`{bands.seed_stream(line.index, 0):04x}`" if line.is_seed else "—")


def test_limits_are_the_defaults_of_the_code() -> None:
    table, limits, options = section("Limits"), Limits(), LinkOptions()
    for shown in (
        f"{MAX_PAYLOAD_BYTES:,} bytes",
        f"{limits.max_message_bytes >> 20} MiB, negotiated",
        f"{MAX_FRAMES:,} taken, {MAX_BATCH_FRAMES} sent",
        f"{limits.max_calls:,} a connection",
        f"{limits.max_sessions:,} a station",
        f"| {MAX_PARTIAL_MESSAGES}, together",
        f"{endpoint.MAX_UNAUTHENTICATED} a server",
        f"{endpoint.MAX_LINKS:,} a server",
        f"{options.handshake_s:g} s, each",
        f"{options.heartbeat_s:g} s · {options.suspected_s:g} s · {options.silence_s:g} s",
        f"{options.high_water_bytes >> 20} MiB: `drain()`",
        f"{options.max_outbound_bytes >> 20} MiB: then",
        f"{MAX_BATCH_FRAMES} frames, {MAX_BATCH_BYTES:,} bytes",
    ):
        assert shown in table
