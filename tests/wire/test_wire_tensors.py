"""Tensor payloads: vectors, sizes checked before anything is read."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aeonflow.errors import BadTensorError
from aeonflow.tensors import (
    MAX_PARTS,
    PREFIX,
    DType,
    Kind,
    Port,
    Tensor,
    Want,
    data_bytes,
    options_byte,
    pack_tensors,
    session_of,
    unpack_tensors,
)

from .peers import vectors

PAYLOADS = vectors("tensors")["payloads"]


def tensor(**fields: Any) -> Tensor:
    base: dict[str, Any] = {
        "session": 1, "epoch": 0, "base": 0, "settled": 0, "first": 0, "rows": 1, "layer": 0, "kind": 0, "port": 1,
        "options": 0, "dtype": 0, "route": 0, "hop": 0, "dim0": 1, "dim1": 1, "data": bytes(4),
    }  # fmt: skip
    return Tensor(**{**base, **fields})


def packed(*tensors: Tensor) -> bytes:
    return b"".join(pack_tensors(tensors))


def plain(one: Tensor) -> Tensor:
    return msgspec.structs.replace(one, data=bytes(one.data))


group = st.fixed_dictionaries(
    {
        "session": st.integers(0, 2**64 - 1),
        "epoch": st.integers(0, 2**32 - 1),
        "base": st.integers(0, 2**32 - 1),
        "settled": st.integers(0, 2**32 - 1),
        "first": st.integers(0, 2**32 - 1),
        "rows": st.integers(1, 2**16 - 1),
        "layer": st.integers(0, 2**16 - 1),
        "kind": st.sampled_from(Kind),
        "route": st.integers(0, 2**16 - 1),
    }
)


@st.composite
def messages_of_tensors(draw: st.DrawFn) -> list[Tensor]:
    shared = draw(group)
    tensors = []
    for _ in range(draw(st.integers(1, 4))):
        dtype = draw(st.sampled_from(DType))
        dim0, dim1 = draw(st.integers(1, 3)), draw(st.integers(1, 4)) * (32 if dtype is DType.Q8 else 1)
        size = data_bytes(dtype, dim0, dim1)
        own = {"port": draw(st.sampled_from(Port)), "dtype": dtype, "dim0": dim0, "dim1": dim1, "hop": 3}
        options = options_byte(want=draw(st.sampled_from(Want)), part=draw(st.integers(0, MAX_PARTS - 1)))
        tensors.append(tensor(**shared, **own, options=options, data=draw(st.binary(min_size=size, max_size=size))))
    return tensors


@pytest.mark.parametrize("case", PAYLOADS, ids=lambda case: case["name"])
def test_a_vector_packs_and_unpacks_to_itself(case: dict[str, Any]) -> None:
    tensors = [Tensor(**{**fields, "data": bytes.fromhex(fields["data"])}) for fields in case["tensors"]]
    assert packed(*tensors).hex() == case["hex"]
    assert [plain(one) for one in unpack_tensors(bytes.fromhex(case["hex"]))] == tensors


def test_the_prefix_is_these_literal_bytes() -> None:
    payload = packed(
        tensor(
            session=0x0102030405060708, epoch=0x11121314, base=0x21222324, settled=0x31323334, first=0x41424344,
            rows=0x5152, layer=0x6162, kind=2, port=8, options=0x1A, dtype=0, route=0x71727374, hop=0x8182,
            dim0=1, dim1=1, data=struct.pack("<f", 1.0),
        )
    )  # fmt: skip
    assert payload.hex(" ", -4) == (
        "08070605 04030201 14131211 24232221 34333231 44434241 52516261 02081a00 74737271 82810200 01000000 01000000"
        " 0000803f"
    )


@given(messages_of_tensors())
def test_tensors_come_back_as_they_were_sent(tensors: list[Tensor]) -> None:
    assert [plain(one) for one in unpack_tensors(packed(*tensors))] == tensors


def test_data_comes_back_as_views_of_the_payload() -> None:
    payload = bytearray(packed(tensor(data=b"abcd")))
    (one,) = unpack_tensors(payload)
    payload[-4:] = b"wxyz"
    assert bytes(one.data) == b"wxyz"


@pytest.mark.parametrize(
    ("position", "layout", "value", "message"),
    [
        (38, "<H", 255, "255 dimensions"),
        (38, "<H", 0, "0 dimensions"),
        (40, "<I", 0, "no dimension may be 0"),
        (44, "<I", 0, "no dimension may be 0"),
        (24, "<H", 0, "no dimension may be 0"),
        (44, "<I", 1 << 24, "needs 67108864 bytes, 4 follow"),
        (31, "<B", 200, "dtype 200"),
        (28, "<B", 3, "kind 3"),
        (29, "<B", 10, "port 10"),
        (30, "<B", 0b110, "want 3"),
    ],
)
def test_a_bad_prefix_is_refused_with_the_value_found(position: int, layout: str, value: int, message: str) -> None:
    payload = bytearray(packed(tensor()))
    struct.pack_into(layout, payload, position, value)
    with pytest.raises(BadTensorError, match=message):
        unpack_tensors(payload)


def test_absurd_shapes_are_refused_by_arithmetic_and_not_by_allocation() -> None:
    prefix = list(PREFIX.unpack_from(packed(tensor())))
    prefix[-2:] = [0xFFFFFFFF, 0xFFFFFFFF]
    with pytest.raises(BadTensorError, match="needs 73786976260478468100 bytes"):
        unpack_tensors(PREFIX.pack(*prefix) + bytes(4))


def test_truncated_and_overlong_payloads_are_refused() -> None:
    whole = packed(tensor(), tensor(port=2))
    for size in range(len(whole)):
        if size != len(whole) // 2:
            with pytest.raises(BadTensorError):
                unpack_tensors(whole[:size])
    with pytest.raises(BadTensorError, match="cut short: 1 of 48"):
        unpack_tensors(whole + b"\0")


def test_five_tensors_are_refused_both_ways() -> None:
    with pytest.raises(BadTensorError, match="5 tensors"):
        pack_tensors([tensor()] * 5)
    with pytest.raises(BadTensorError, match="more than 4"):
        unpack_tensors(packed(tensor()) * 5)
    with pytest.raises(BadTensorError, match="0 tensors"):
        pack_tensors([])
    with pytest.raises(BadTensorError, match="no tensor"):
        unpack_tensors(b"")


def test_tensors_of_one_message_must_agree_on_their_group() -> None:
    with pytest.raises(BadTensorError, match="disagree"):
        unpack_tensors(packed(tensor(first=1)) + packed(tensor(first=2)))


def test_data_of_the_wrong_size_is_not_packed() -> None:
    with pytest.raises(BadTensorError, match="needs 8 bytes, has 4"):
        pack_tensors([tensor(dim1=2)])


def test_sizes_follow_the_dtype() -> None:
    assert data_bytes(DType.F32, 2, 3) == 24
    assert data_bytes(DType.BF16, 2, 3) == 12
    assert data_bytes(DType.Q8, 2, 64) == 2 * 2 * 34
    with pytest.raises(BadTensorError, match="multiple of 32"):
        data_bytes(DType.Q8, 1, 33)


def test_the_options_byte_holds_grow_want_and_part() -> None:
    options = options_byte(grow=True, want=Want.ALL, part=31)
    assert options == 0b11111_01_1
    one = tensor(options=options)
    assert (one.want, one.part) == (Want.ALL, 31)
    with pytest.raises(BadTensorError, match="part 32"):
        options_byte(part=32)


@given(st.binary(max_size=300))
def test_any_bytes_unpack_or_are_refused(data: bytes) -> None:
    try:
        tensors = unpack_tensors(data)
    except BadTensorError:
        return
    assert packed(*tensors) == data


@given(messages_of_tensors(), st.integers(0, 10_000), st.integers(0, 255))
def test_a_mutated_payload_unpacks_or_is_refused(tensors: list[Tensor], where: int, value: int) -> None:
    payload = bytearray(packed(*tensors))
    payload[where % len(payload)] = value
    try:
        received = unpack_tensors(payload)
    except BadTensorError:
        return
    assert sum(len(one.data) for one in received) <= len(payload)


def test_the_session_of_a_payload_is_told_without_reading_it_and_of_a_short_one_is_none() -> None:
    payload = packed(tensor(session=0x0102030405060708))
    assert session_of(payload) == session_of(memoryview(payload)) == 0x0102030405060708
    assert session_of(payload[:47]) == 0
