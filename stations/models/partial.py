"""A model folder that is filled from elsewhere: begun from a bundle alone, each file resumable, verified, then placed.

Synchronous and without a network: `fetch.py` brings the bytes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO

from blake3 import blake3

from aeonflow.frames import Buffer

from .documents import CARD_FILE, MANIFEST_FILE, TOKENIZER_FILE, Bundle, encode_document
from .errors import CorruptModelError, ModelError
from .fingerprint import fingerprint
from .folder import ModelFolder
from .manifest import FileEntry

READ_BYTES = 1 << 20


def check_bundle(bundle: Bundle) -> None:
    """Raise CorruptModelError unless the bundle's digests agree: it came from a peer."""
    tokenizer = blake3(bundle.tokenizer_json.encode()).hexdigest()
    if tokenizer != bundle.manifest.tokenizer_blake3:
        raise CorruptModelError(f"bundle: tokenizer has blake3 {tokenizer}, not {bundle.manifest.tokenizer_blake3}")
    if (found := fingerprint(bundle.card, bundle.manifest)) != bundle.card.fingerprint:
        raise CorruptModelError(f"bundle: fingerprint {bundle.card.fingerprint!r} is claimed, its content has {found}")


def begin_folder(bundle: Bundle, target: Path) -> ModelFolder:
    """A model folder without weights at `target`, or the one that is there if it is of the same model.

    Raises ModelError naming both fingerprints when another model is there, CorruptModelError for a bad bundle.
    """
    check_bundle(bundle)
    if not (target / CARD_FILE).is_file():
        _write_documents(bundle, target)
    found = ModelFolder.open(target)
    if found.card.fingerprint != bundle.card.fingerprint:
        raise ModelError(
            f"{target} holds another model: fingerprint {found.card.fingerprint}, offered {bundle.card.fingerprint}"
        )
    return found


def _write_documents(bundle: Bundle, target: Path) -> None:
    """Place a folder of the three documents at once; when another process was first, its folder stays."""
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.begun-", dir=target.parent))
    try:
        scratch.chmod(0o755)  # mkdtemp's folders are private; models are shared like any other cache
        (scratch / TOKENIZER_FILE).write_text(bundle.tokenizer_json, encoding="utf-8")
        (scratch / MANIFEST_FILE).write_bytes(encode_document(bundle.manifest))
        (scratch / CARD_FILE).write_bytes(encode_document(bundle.card))
        scratch.rename(target)
    except OSError:
        if not (target / CARD_FILE).is_file():
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


class PartialFile:
    """A weight file on its way into a model folder. `received` bytes are there; the next ones belong at that offset.

    What was received before, by this process or a killed one, is kept and continued. One process at a time.
    """

    def __init__(self, folder: Path, entry: FileEntry, file: IO[bytes]) -> None:
        self.entry = entry
        self._target = folder / entry.name
        self._file = file
        self._digest = blake3()
        self.received = 0

    @classmethod
    def open(cls, folder: Path, entry: FileEntry) -> PartialFile | None:
        """Begin or resume; None when another process is fetching the same file."""
        file = open(folder / f".{entry.name}.part", "a+b")  # noqa: SIM115 - closed by finish and close
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            return None
        if not _is_same(file):  # placed by the process that held the lock until now
            file.close()
            return None
        partial = cls(folder, entry, file)
        partial._read_back()
        return partial

    @property
    def is_complete(self) -> bool:
        return self.received == self.entry.bytes

    def write(self, data: Buffer) -> None:
        """Append the next bytes. Raises CorruptModelError for none at all, or more than the file has."""
        if not len(data) or self.received + len(data) > self.entry.bytes:
            raise CorruptModelError(
                f"{self.entry.name}: {len(data)} bytes at {self.received} of {self.entry.bytes} were sent"
            )
        self._file.write(data)
        self._digest.update(data)
        self.received += len(data)

    def finish(self) -> None:
        """Verify the digest and place the file; a file that differs is dropped and raises CorruptModelError."""
        self._file.flush()
        part = Path(self._file.name)
        found = self._digest.hexdigest()
        if not self.is_complete or found != self.entry.blake3:
            part.unlink()
            self.close()
            raise CorruptModelError(
                f"{self.entry.name}: {self.received} of {self.entry.bytes} bytes with blake3 {found}, "
                f"expected {self.entry.blake3}"
            )
        part.rename(self._target)
        self.close()

    def close(self) -> None:
        """Let go of the file; what was received stays for the next attempt."""
        self._file.close()

    def _read_back(self) -> None:
        self._file.seek(0)
        while piece := self._file.read(READ_BYTES):
            self._digest.update(piece)
            self.received += len(piece)
        if self.received > self.entry.bytes:  # of another model under the same name
            self._file.truncate(0)
            self._digest, self.received = blake3(), 0


def _is_same(file: IO[bytes]) -> bool:
    """True when the open file still lies under its name."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(file.name))
    except FileNotFoundError:
        return False
