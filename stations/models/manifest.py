"""The manifest: which weight file holds which role and layer, with every tensor's place, form and digest.

It lists all files of the model, also those that a folder does not keep: what is absent is what can be asked for by
digest over the wire.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from .card import LAYOUT_VERSION
from .errors import CorruptModelError, UnsupportedModelError
from .roles import RoleSpan, layer_roles

VECTOR = "vector"  # layout kind of a norm: plain little-endian f32
TENSOR_ALIGNMENT = 64  # bytes; tensors start at multiples of it, one cache line
FILE_ROLES = ("embed", "attn", "gate_up", "down", "head")
MAX_LAYERS = 1000  # three digits in a file's name


class TensorEntry(msgspec.Struct, frozen=True):
    """One tensor in a weight file. `kind` is a packed kind of `stations.layout`, or "vector" for norms.

    `rows` × `cols` are the logical sizes, `offset` and `bytes` the place in the file, `blake3` hex of those bytes.
    """

    name: str
    kind: str
    rows: int
    cols: int
    offset: int
    bytes: int
    blake3: str


class FileEntry(msgspec.Struct, frozen=True):
    """One weight file: `role` embed, attn, gate_up, down or head at `layer` (0 for the ends)."""

    name: str
    role: str
    layer: int
    bytes: int
    blake3: str
    tensors: tuple[TensorEntry, ...]

    def tensor(self, name: str) -> TensorEntry | None:
        return next((t for t in self.tensors if t.name == name), None)


class Manifest(msgspec.Struct, frozen=True):
    """All weight files of a model, in execution order, and the digest of its tokenizer."""

    layout_version: int
    tokenizer_blake3: str
    tied_head: bool  # head has no matrix of its own and reads embed's file
    files: tuple[FileEntry, ...]

    def files_for(self, spans: Iterable[RoleSpan]) -> tuple[FileEntry, ...]:
        """The files that the roles need, in execution order; a tied head needs embed's file too."""
        needed = needed_files(spans, tied_head=self.tied_head)
        return tuple(f for f in self.files if (f.role, f.layer) in needed)


def needed_files(spans: Iterable[RoleSpan], *, tied_head: bool) -> set[tuple[str, int]]:
    """(role, layer) of the files that the roles need."""
    needed = layer_roles(spans)
    if tied_head and ("head", 0) in needed:
        needed.add(("embed", 0))
    return needed


def file_name(role: str, layer: int) -> str:
    """`embed.safetensors`, `attn.007.safetensors`, …"""
    return f"{role}.safetensors" if role in ("embed", "head") else f"{role}.{layer:03d}.safetensors"


def decode_manifest(data: bytes) -> Manifest:
    """The manifest of `manifest.json`, its shape checked: names, digests, and that no tensor leaves its file.

    Raises CorruptModelError, or UnsupportedModelError for another layout version.
    """
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.DecodeError as error:
        raise CorruptModelError(f"manifest.json: {error}") from error
    if manifest.layout_version != LAYOUT_VERSION:
        raise UnsupportedModelError(
            f"layout version {manifest.layout_version} on disk, this version reads {LAYOUT_VERSION}: pull it again"
        )
    for entry in manifest.files:
        _check_file(entry)
    return manifest


def _check_file(entry: FileEntry) -> None:
    if entry.role not in FILE_ROLES or not 0 <= entry.layer < MAX_LAYERS:
        raise CorruptModelError(f"manifest.json: role {entry.role!r} layer {entry.layer}: roles are {FILE_ROLES}")
    if entry.name != file_name(entry.role, entry.layer):
        raise CorruptModelError(f"manifest.json: {entry.name!r} cannot hold {entry.role} of layer {entry.layer}")
    if len(entry.blake3) != 64:
        raise CorruptModelError(f"manifest.json: {entry.name} has a digest of {len(entry.blake3)} characters, not 64")
    for t in entry.tensors:
        if t.offset % TENSOR_ALIGNMENT or t.offset < 0 or t.bytes <= 0 or t.offset + t.bytes > entry.bytes:
            raise CorruptModelError(
                f"manifest.json: {entry.name} tensor {t.name} at {t.offset}+{t.bytes} of {entry.bytes} bytes"
            )
        if t.rows <= 0 or t.cols <= 0 or (t.kind == VECTOR and t.bytes != 4 * t.rows * t.cols):
            raise CorruptModelError(f"manifest.json: {entry.name} tensor {t.name} is {t.rows}x{t.cols} in {t.bytes} B")
