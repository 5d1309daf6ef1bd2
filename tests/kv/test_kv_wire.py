"""The cache wire, version 2: literal offsets, round trips, refusals that leave the layer untouched, mutations."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from stations.kv import (
    KvFormError,
    LayerKvCache,
    RecordError,
    RecordKind,
    operator_identity,
    pack_shipment,
    unpack_shipment,
)

from .kv_rows import bits, filled, some_rows


def one_row_record() -> bytes:
    """A layer of 1 head × 2 dims with one row, written by hand from the byte table."""
    return (
        b"CMFS"
        + bytes.fromhex("02000000")  # version
        + bytes.fromhex("efcdab8967452301")  # identity 0x0123456789abcdef
        + bytes.fromhex("07000000")  # layer
        + bytes.fromhex("00000000")  # kind full, f32, reserved
        + bytes.fromhex("0100000000000000")  # position
        + bytes.fromhex("000000000100000001000000020000000000000001000000")
        + struct.pack("<f", 0.5)  # importance
        + struct.pack("<I2f", 2, 1.0, -2.0)
        + struct.pack("<I2f", 2, 3.0, 0.25)
    )


def one_row_layer() -> LayerKvCache:
    cache = LayerKvCache(1, 2)
    cache.wire_layer, cache.wire_identity = 7, 0x0123456789ABCDEF
    return cache


def test_a_record_has_the_bytes_of_the_table() -> None:
    cache = one_row_layer()
    cache.append(np.array([1.0, -2.0]), np.array([3.0, 0.25]))
    cache.accumulate_imp(np.array([0.5], np.float32))
    assert cache.export_wire() == one_row_record()
    halves = cache.export_wire(f16=True)
    assert halves[21] == 1
    assert halves[32:36] == bytes.fromhex("01000000")
    assert halves[56:60] == struct.pack("<f", 0.5)
    assert halves[60:] == bytes.fromhex("02000000003c00c00200000000420034")


@pytest.mark.parametrize("f16", [False, True])
def test_a_round_trip_gives_the_same_bytes_and_counters(f16: bool) -> None:
    source, _, _ = filled(2, 4, 37)
    source.linear_state = np.array([0.5, -0.25, 1.0], np.float32)
    source.accumulate_imp(np.abs(some_rows(3, 1, 1, 37)[0, 0]))
    record = source.export_wire(f16)
    target, _, _ = filled(2, 4, 3, seed=9)
    target.linear_scratch = np.ones(3, np.float32)
    target.import_wire(record)
    assert (target.seq_len, target.pos_len, target.base) == (37, 37, 0)
    assert target.linear_scratch.size == 0
    assert target.linear_state.tolist() == [0.5, -0.25, 1.0]
    assert target.export_wire(f16) == record


def test_an_f32_round_trip_gives_outputs_and_probabilities_bit_for_bit() -> None:
    source, _, _ = filled(2, 4, 5)
    target = LayerKvCache(2, 4)
    target.import_wire(source.export_wire())
    q = some_rows(5, 1, 2, 4)[0]
    for head in range(2):
        for ours, theirs in zip(source.attend(q[head], head), target.attend(q[head], head), strict=True):
            assert bits(ours) == bits(theirs)
    assert target.kv_abs_max() == source.kv_abs_max()


def test_an_f16_cache_travels_as_f16_only() -> None:
    source, _, _ = filled(1, 8, 20, "f16")
    record = source.export_wire(f16=True)
    target = LayerKvCache(1, 8, "f16")
    target.import_wire(record)
    assert target.export_wire(f16=True) == record
    with pytest.raises(KvFormError, match="as f16 only"):
        source.export_wire()
    wide, _, _ = filled(1, 8, 20)
    with pytest.raises(RecordError, match="rounded a second time"):
        target.import_wire(wide.export_wire())


@pytest.mark.parametrize("mode", ["q8", "q8k", "q8v", "q4"])
def test_a_coded_cache_takes_no_record_as_it_gives_none(mode: str) -> None:
    cache, _, _ = filled(1, 16, 70, mode)
    before = cache.head_keys(0)
    with pytest.raises(RecordError, match=f"KV mode {mode}: F32 and F16"):
        cache.import_wire(filled(1, 16, 100)[0].export_wire())
    assert cache.seq_len == 70
    assert bits(cache.head_keys(0)) == bits(before)


def test_values_beyond_f16_are_refused_by_an_f16_export() -> None:
    cache = LayerKvCache(1, 2)
    cache.append(np.array([1.0, 70000.0]), np.ones(2))
    with pytest.raises(KvFormError, match=r"70000.*65504"):
        cache.export_wire(f16=True)
    assert cache.export_wire()


def test_dead_heads_travel_as_empty_lists() -> None:
    source = LayerKvCache(3, 4)
    source.append(np.ones(24), np.ones(24), [False, True, False])
    target = LayerKvCache(3, 4)
    target.import_wire(source.export_wire())
    assert [target.head_len(h) for h in range(3)] == [0, 2, 0]
    assert target.export_wire() == source.export_wire()
    target.append(np.ones(12), np.ones(12), [False, True, False])
    assert target.seq_len == 3


def test_a_tail_without_rows_travels_with_its_position_whichever_heads_are_alive() -> None:
    source, alive = LayerKvCache(2, 4), [True, False]
    source.append(np.ones(8 * 30), np.ones(8 * 30), alive)
    assert source.trim_window(5, 5, 10) == 20
    target = LayerKvCache(2, 4)
    target.import_wire(source.export_wire())
    target.truncate_to(20)
    again = LayerKvCache(2, 4)
    again.import_wire(target.export_wire())
    again.append(np.ones(8), np.ones(8), alive)
    assert (again.base, again.seq_len, again.pos_len, again.head_len(1)) == (20, 1, 21, 0)


def test_another_geometry_is_refused_naming_both() -> None:
    record = LayerKvCache(2, 4).export_wire()
    with pytest.raises(RecordError, match=r"2×4.*2×8"):
        LayerKvCache(2, 8).import_wire(record)


def test_sinks_survive_clear_and_import() -> None:
    cache, _, _ = filled(1, 4, 1)
    cache.sinks = np.array([0.5, -0.5], np.float32)
    record = cache.export_wire()
    cache.clear()
    assert cache.sinks.tolist() == [0.5, -0.5]
    cache.import_wire(record)
    assert cache.sinks.tolist() == [0.5, -0.5]
    assert cache.seq_len == 1


def test_a_delta_layer_exports_versioned_and_refuses_the_unversioned_body() -> None:
    cache = LayerKvCache(1, 4)
    cache.set_linear_wire_allowed(False)
    assert cache.export_wire()[:4] == b"CMFS"
    with pytest.raises(RecordError, match="operator identity"):
        cache.import_wire(bytes(4))


def test_an_unversioned_body_is_accepted_by_plain_full_layers() -> None:
    source, _, _ = filled(2, 4, 6)
    target = LayerKvCache(2, 4)
    target.import_wire(source.export_wire()[32:])
    assert target.export_wire() == source.export_wire()
    target.wire_kind = RecordKind.LINEAR
    with pytest.raises(RecordError, match="plain full layers"):
        target.import_wire(source.export_wire()[32:])


def _set(record: bytes, at: int, value: bytes) -> bytes:
    return record[:at] + value + record[at + len(value) :]


NAN = struct.pack("<f", float("nan"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: _set(r, 4, b"\x03"), "version 3.*version 2"),
        (lambda r: _set(r, 8, b"\0"), "0123456789abcd00 in the record, 0123456789abcdef here"),
        (lambda r: _set(r, 16, b"\x08"), "layer 8, this is layer 7"),
        (lambda r: _set(r, 20, b"\x01"), "kind 1 does not match"),
        (lambda r: _set(r, 20, b"\x09"), "kind 9 does not match"),
        (lambda r: _set(r, 21, b"\x02"), "byte 21 is 2"),
        (lambda r: _set(r, 21, b"\x01"), "f16 is 0 in the body, True in the header"),
        (lambda r: _set(r, 23, b"\x01"), "reserved bytes 22..24 are 0x0100"),
        (lambda r: _set(r, 24, b"\x02"), "position 2 is not base 0 . 1 rows"),
        (lambda r: _set(r, 31, b"\x01"), "beyond 4294967295"),
        (lambda r: _set(r, 36, b"\x02"), "1 importance values for 2 rows"),
        (lambda r: _set(r, 40, b"\x02"), "2×2, this layer is 1×2"),
        (lambda r: _set(r, 48, b"\xff\xff\xff\xff"), "recurrent state needs 17179869180 bytes"),
        (lambda r: _set(r, 60, b"\x01"), "K of head 0 has 1 values: 0 or 1×2"),
        (lambda r: _set(r, 64, NAN), "K of head 0 holds a value that is not finite"),
        (lambda r: _set(r, 56, NAN), "importance holds a value that is not finite"),
        (lambda r: _set(r, 59, b"\xbf"), "importance holds a negative value"),
        (lambda r: _set(r, 72, bytes(4))[:76], "1 rows of K and 0 of V"),
        (lambda r: r[:40], "cut short: the body's head needs 24 bytes, 8 follow"),
        (lambda r: r[:-1], "cut short: V of head 0 needs 8 bytes, 7 follow"),
        (lambda r: r + b"\0", "1 trailing bytes"),
        (lambda r: r[:30], "cut short: the header needs 32"),
        (lambda r: b"", "cut short"),
        (lambda r: _set(_set(r, 20, b"\x03"), 32, bytes(8)), "tail with base 0"),
    ],
)  # fmt: skip
def test_a_refused_record_says_why_and_leaves_the_layer_untouched(
    change: Callable[[bytes], bytes], message: str
) -> None:
    cache = one_row_layer()
    cache.append(np.array([9.0, 8.0]), np.array([7.0, 6.0]))
    before, generation = cache.export_wire(), cache.generation
    with pytest.raises(RecordError, match=message):
        cache.import_wire(change(one_row_record()))
    assert cache.export_wire() == before
    assert cache.generation == generation


def mutated(record: bytes, rng: random.Random) -> bytes:
    """One to four changes: bytes set, flipped, cut, inserted, or small integers written over a field."""
    data = bytearray(record)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1) if rng.random() < 0.5 else rng.randrange(64)
        match rng.randrange(6):
            case 0 if at < len(data):
                data[at] = rng.randrange(256)
            case 1 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 2:
                del data[at:]
            case 3:
                data[at:at] = rng.randbytes(rng.randint(1, 9))
            case 4:
                at = at // 4 * 4
                data[at : at + 4] = rng.choice((0, 1, 2, 3, 4, 2**31, 2**32 - 1)).to_bytes(4, "little")
            case _:
                del data[at : at + rng.randint(1, 9)]
        data = data or bytearray(b"\0")
    return bytes(data)


def full_layer() -> LayerKvCache:
    cache, _, _ = filled(2, 4, 2, seed=5)
    return cache


def linear_layer() -> LayerKvCache:
    cache = LayerKvCache(2, 4)
    cache.linear_advance(np.array([[9.0, 8.0]], np.float32))
    return cache


def ring_layer() -> LayerKvCache:
    cache = LayerKvCache(2, 4)
    cache.install_bounded(3)
    return cache


def originals() -> list[tuple[bytes, Callable[[], LayerKvCache]]]:
    """Records of every kind, each with a layer that takes its kind and holds something else."""
    records = []
    for f16 in (False, True):
        cache, _, _ = filled(2, 4, 3)
        cache.linear_state = np.array([1.0, 2.0], np.float32)
        cache.accumulate_imp(np.array([1.0, 0.5, 0.25], np.float32))
        tail, _, _ = filled(2, 4, 9)
        tail.trim_window(2, 0, 2)
        linear = LayerKvCache(2, 4)
        linear.linear_advance(some_rows(1, 1, 1, 2)[:, 0])
        ring = ring_layer()
        for row in some_rows(3, 4, 2, 4):
            ring.bounded.insert(row, row)
        records += [(cache.export_wire(f16), full_layer), (tail.export_wire(f16), full_layer)]
        records += [(linear.export_wire(f16), linear_layer), (ring.export_wire(f16), ring_layer)]
    dead = LayerKvCache(2, 4)
    dead.append(np.ones(8), np.ones(8), [True, False])
    return [*records, (dead.export_wire(), full_layer), (LayerKvCache(2, 4).export_wire(), full_layer)]


def test_10000_mutated_records_are_refused_untouched_or_export_to_the_bytes_they_were() -> None:
    rng = random.Random(20)
    accepted: dict[int, int] = {}
    layers = {make: (make(), make().export_wire()) for make in (full_layer, linear_layer, ring_layer)}
    records = originals()
    for _ in range(10_000):
        original, make = rng.choice(records)
        record = mutated(original, rng)
        target, untouched = layers[make]
        try:
            target.import_wire(record)
        except RecordError:
            assert target.export_wire() == untouched
            continue
        versioned = record[:4] == b"CMFS"
        again = target.export_wire(f16=bool(record[21] if versioned else record[0]))
        assert (again if versioned else again[32:]) == record
        kind = record[20] if versioned else -1
        accepted[kind] = accepted.get(kind, 0) + 1
        layers[make] = (make(), untouched)
    assert all(accepted[kind] > 40 for kind in range(4)), accepted
    assert sum(accepted.values()) < 9_000


def test_10000_mutated_messages_are_refused_or_hold_the_record_that_was_sent() -> None:
    rng = random.Random(21)
    accepted = 0
    records = originals()
    messages = [pack_shipment(record) for record, _ in records]
    for _ in range(10_000):
        index = rng.randrange(len(messages))
        message = mutated(messages[index], rng)
        try:
            record = unpack_shipment(message)
        except RecordError:
            assert message != messages[index]
            continue
        assert record == records[index][0]
        accepted += 1
    assert unpack_shipment(messages[0]) == records[0][0]
    assert accepted < 5_000
    with pytest.raises(RecordError, match="message of 31 bytes: 32 of hash"):
        unpack_shipment(bytes(31))


def test_no_record_makes_an_import_reserve_more_than_its_size() -> None:
    for original, make in originals():
        target = make()
        for at in range(32, min(len(original), 64), 4):
            record = original[:at] + b"\xff\xff\xff\xff" + original[at + 4 :]
            tracemalloc.start()
            try:
                target.import_wire(record)
            except RecordError:
                pass
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < 100_000 + 40 * len(record)


def test_the_identity_covers_everything_that_changes_what_rows_mean() -> None:
    base = {
        "fingerprint": "ab" * 32,
        "layer_kind": "full",
        "num_kv_heads": 3,
        "head_dim": 64,
        "rope": {"theta": 1e5, "dim": 64, "pairs": "interleaved"},
        "window": 0,
    }
    changes = [
        {},
        {"fingerprint": "ba" * 32},
        {"layer_kind": "ring"},
        {"num_kv_heads": 64, "head_dim": 3},
        {"rope": {"theta": 1e4, "dim": 64, "pairs": "interleaved"}},
        {"rope": {"theta": 1e5, "dim": 64, "pairs": "half"}},
        {"window": 128},
    ]
    identities = [operator_identity(**{**base, **change}) for change in changes]
    assert len(set(identities)) == len(changes)
    assert identities[0] == operator_identity(**dict(reversed(base.items())))
    assert identities[0] == 0xA2BD543DA2819B00
