"""Weights in memory of the process' own: the same bytes, files unmapped, and left alone where only parts are read."""

from __future__ import annotations

import numpy as np
import pytest

from stations.kernels.fast import resident as module
from stations.kernels.fast.resident import ResidentWeights, resident
from stations.layout import PackedMatrix
from stations.models.roles import parse_roles

from .tiny import TinyWeights, tiny_card


class Files(TinyWeights):
    """Tiny weights that count how often each file is asked for and let go."""

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__("q4_1", tiny_card(tied_embeddings=tied))
        self.asked: list[tuple[str, str]] = []
        self.released: list[tuple[str, int]] = []

    @property
    def present_bytes(self) -> int:
        return 1_000_000

    def matrix(self, role: str, layer: int, name: str) -> PackedMatrix:
        self.asked.append((role, name))
        return super().matrix(role, layer, "embedding" if name == "head" and self.card.tied_embeddings else name)

    def release(self, role: str, layer: int) -> None:
        self.released.append((role, layer))


def test_matrices_of_whole_roles_are_copied_once_and_their_files_let_go() -> None:
    files = Files()
    weights = ResidentWeights(files, parse_roles("attn:0,down:1,head", 2))
    copy = weights.matrix("attn", 0, "qkv")
    assert weights.matrix("attn", 0, "qkv") is copy
    original = TinyWeights("q4_1").matrix("attn", 0, "qkv")
    assert np.array_equal(copy.data, original.data)
    assert (copy.kind, copy.rows, copy.cols) == (original.kind, original.rows, original.cols)
    assert copy.data.ctypes.data % 64 == 0
    assert not copy.data.flags.writeable
    other = weights.matrix("attn", 0, "output")
    assert np.array_equal(copy.data, original.data), "a later copy lies beside the first"
    assert other.data.ctypes.data >= copy.data.ctypes.data + copy.data.nbytes
    assert files.asked == [("attn", "qkv"), ("attn", "output")]
    assert files.released == [("attn", 0), ("attn", 0)]


def test_shards_slices_and_embeddings_stay_in_their_files() -> None:
    files = Files()
    weights = ResidentWeights(files, parse_roles("head:0/2,ffn:0-1:1/4,embed", 2))
    for role, name in (("head", "head"), ("down", "down"), ("embed", "embedding")):
        assert weights.matrix(role, 0, name).data is files.matrix(role, 0, name).data
    assert not files.released


def test_an_embedding_that_is_the_head_too_is_one_copy() -> None:
    files = Files(tied=True)
    weights = ResidentWeights(files, parse_roles("embed,head", 2))
    head = weights.matrix("head", 0, "head")
    assert weights.matrix("embed", 0, "embedding") is head
    assert files.released == [("embed", 0)]


@pytest.mark.parametrize(("available", "is_copied"), [(2_000_000, True), (1_999_999, False), (None, False)])
def test_weights_are_copied_only_where_there_is_room_for_all_that_this_machine_has(
    available, is_copied, monkeypatch
) -> None:
    monkeypatch.setattr(module, "available_bytes", lambda: available)
    files = Files()
    found = resident(files, parse_roles("block:0-1", 2))
    assert (found is not files) == is_copied
    assert resident(TinyWeights("q4_1"), parse_roles("head", 2)).__class__ is TinyWeights
