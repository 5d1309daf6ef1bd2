"""A model on disk, opened by mmap: what a station reads its weights from.

Opening reads three small files; weight files are mapped when a tensor of theirs is first asked for, so a station
starts at once and stations on one machine share the pages. Arrays are read-only views of the map.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from ..layout import PackedMatrix
from .card import ModelCard
from .digest import file_blake3
from .documents import CARD_FILE, MANIFEST_FILE, TOKENIZER_FILE, decode_card
from .errors import CorruptModelError, MissingWeightsError, ModelNotFoundError
from .fingerprint import fingerprint
from .manifest import VECTOR, FileEntry, Manifest, TensorEntry, decode_manifest
from .roles import RoleSpan

F32 = npt.NDArray[np.float32]


class ModelFolder:
    """A folder of `card.json`, `tokenizer.json`, `manifest.json` and weight files, possibly of some roles only.

    `tokenizer_json` is the text of the tokenizers library's file.
    """

    def __init__(self, path: Path, card: ModelCard, manifest: Manifest, tokenizer_json: str) -> None:
        self.path = path
        self.card = card
        self.manifest = manifest
        self.tokenizer_json = tokenizer_json
        self._files = {(f.role, f.layer): f for f in manifest.files}
        self._maps: dict[str, mmap.mmap] = {}

    @classmethod
    def open(cls, path: str | Path) -> ModelFolder:
        """Open a folder; raises ModelNotFoundError, CorruptModelError (with numbers) or UnsupportedModelError."""
        folder = Path(path)
        raw = {name: _read(folder, name) for name in (CARD_FILE, TOKENIZER_FILE, MANIFEST_FILE)}
        manifest = decode_manifest(raw[MANIFEST_FILE])
        if (found := blake3(raw[TOKENIZER_FILE]).hexdigest()) != manifest.tokenizer_blake3:
            raise CorruptModelError(f"{folder}/{TOKENIZER_FILE}: blake3 {found}, expected {manifest.tokenizer_blake3}")
        card = decode_card(raw[CARD_FILE])
        if (content := fingerprint(card, manifest)) != card.fingerprint:
            raise CorruptModelError(
                f"{folder}: fingerprint {card.fingerprint}, but the content's is {content}: edited by hand, or "
                "imported by an older version; pull it again"
            )
        model = cls(folder, card, manifest, raw[TOKENIZER_FILE].decode())
        for entry in manifest.files:
            size = model._size(entry)
            if size is not None and size != entry.bytes:
                raise CorruptModelError(f"{folder}/{entry.name}: {size} bytes, the manifest says {entry.bytes}")
        return model

    def has(self, role: str, layer: int = 0) -> bool:
        """True when the weight file of this role (embed, attn, gate_up, down, head) and layer is here."""
        entry = self._files.get((role, layer))
        if entry is None or self._size(entry) is None:
            return False
        return role != "head" or not self.manifest.tied_head or self.has("embed")

    def holds(self, entry: FileEntry) -> bool:
        """True when this file of the manifest is here."""
        return self._size(entry) is not None

    @property
    def present_bytes(self) -> int:
        """Of all weight files that are here: what the stations on this machine may hold together."""
        return sum(entry.bytes for entry in self.manifest.files if self.holds(entry))

    def missing(self, spans: Iterable[RoleSpan]) -> tuple[FileEntry, ...]:
        """The files that the roles need and this folder does not have, in execution order."""
        return tuple(f for f in self.manifest.files_for(spans) if not self.holds(f))

    def names(self, role: str, layer: int) -> tuple[str, ...]:
        """Names of the tensors of a role: whether attn holds "qkv" or "q", "k", "v", for instance."""
        return tuple(t.name for t in self._entry(role, layer).tensors)

    def norm(self, role: str, layer: int, name: str) -> F32:
        """A vector of weights, f32, read-only. Names: attn norm1, norm2 [hidden], sinks [query heads] · gate_up norm2 ·
        head final_norm."""
        entry = self._entry(role, layer)
        tensor = self._tensor(entry, name)
        if tensor.kind != VECTOR:
            raise CorruptModelError(f"{self.path}/{entry.name}: {name} is a {tensor.kind} matrix, not a norm")
        return self._bytes(entry, tensor).view("<f4")

    def matrix(self, role: str, layer: int, name: str) -> PackedMatrix:
        """A packed matrix, its data a read-only view of the map. Names as in docs/models.md.

        ("head", 0, "head") of a tied model is embed's matrix. Raises MissingWeightsError that names the file.
        """
        if role == "head" and name == "head" and self.manifest.tied_head:
            return self.matrix("embed", 0, "embedding")
        entry = self._entry(role, layer)
        tensor = self._tensor(entry, name)
        if tensor.kind == VECTOR:
            raise CorruptModelError(f"{self.path}/{entry.name}: {name} is a norm, not a matrix")
        return PackedMatrix(tensor.kind, tensor.rows, tensor.cols, self._bytes(entry, tensor))

    def release(self, role: str, layer: int) -> None:
        """Unmap the file of a role and layer once nothing views it; it is mapped again when it is asked for."""
        self._maps.pop(self._entry(role, layer).name, None)

    def verify(self) -> None:
        """Hash every weight file that is here; raises CorruptModelError at the first that differs."""
        for entry in self.manifest.files:
            if self._size(entry) is None:
                continue
            found = file_blake3(self.path / entry.name)
            if found != entry.blake3:
                raise CorruptModelError(f"{self.path}/{entry.name}: blake3 {found}, expected {entry.blake3}")

    def _size(self, entry: FileEntry) -> int | None:
        try:
            return (self.path / entry.name).stat().st_size
        except FileNotFoundError:
            return None

    def _entry(self, role: str, layer: int) -> FileEntry:
        entry = self._files.get((role, layer))
        if entry is None:
            raise MissingWeightsError(f"{self.path}: no {role} of layer {layer}, {self.card.num_layers} layers")
        return entry

    def _tensor(self, entry: FileEntry, name: str) -> TensorEntry:
        tensor = entry.tensor(name)
        if tensor is None:
            raise MissingWeightsError(f"{entry.name} holds {', '.join(t.name for t in entry.tensors)}, not {name!r}")
        return tensor

    def _bytes(self, entry: FileEntry, tensor: TensorEntry) -> npt.NDArray[np.uint8]:
        mapped = self._maps.get(entry.name)
        if mapped is None:
            try:
                with open(self.path / entry.name, "rb") as file:
                    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except FileNotFoundError as error:
                raise MissingWeightsError(f"{self.path} does not hold {entry.name} ({entry.bytes} bytes)") from error
            if len(mapped) != entry.bytes:
                raise CorruptModelError(f"{self.path}/{entry.name}: {len(mapped)} bytes, expected {entry.bytes}")
            self._maps[entry.name] = mapped
        return np.frombuffer(mapped, np.uint8, tensor.bytes, tensor.offset)


def _read(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ModelNotFoundError(f"{folder} is not a model folder: {name} is not there") from error
