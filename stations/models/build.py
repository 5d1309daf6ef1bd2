"""From a checkpoint to a finished model folder, placed at once or not at all.

Everything is written into a folder beside the target and renamed when complete, under a lock that the kernel drops
with the process: what an interrupted import left is removed by the next one, and is never taken for a model.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from blake3 import blake3

from .card import LAYOUT_VERSION
from .checkpoint import Checkpoint, check_tensors
from .documents import CARD_FILE, MANIFEST_FILE, TOKENIZER_FILE, encode_document
from .errors import DiskSpaceError, ModelError
from .fingerprint import fingerprint
from .folder import ModelFolder
from .manifest import Manifest, needed_files
from .packing import FilePlan, file_bytes, plan_files, source_bytes, write_file
from .roles import RoleSpan

SPARE_BYTES = 64 << 20  # room left free beside a model, so that logs and caches of the machine still fit

Progress = Callable[[str, int, int], None]  # stage, bytes done, bytes in all


def no_progress(stage: str, done: int, total: int) -> None:
    """The progress callback of callers that show none."""


def build_folder(
    checkpoint: Checkpoint,
    target: Path,
    *,
    roles: tuple[RoleSpan, ...] | None = None,
    progress: Progress = no_progress,
) -> ModelFolder:
    """Import a checkpoint into `target`, replacing a model that is there. With `roles`, only their files are kept.

    The manifest lists all files and their digests even so, hence every tensor is read. Raises UnsupportedModelError,
    DiskSpaceError with the numbers, and whatever the checkpoint raises; `target` is then as it was.
    """
    check_tensors(checkpoint.card, checkpoint.tensors)
    plans = plan_files(checkpoint.card, checkpoint.tensors)
    target.parent.mkdir(parents=True, exist_ok=True)
    keep = None if roles is None else needed_files(roles, tied_head=checkpoint.card.tied_embeddings)
    check_disk(target.parent, _needed_bytes(plans, keep), f"importing {checkpoint.card.name}")
    with placing(target) as folder:
        _write_folder(checkpoint, plans, folder, keep, progress)
    return ModelFolder.open(target)


def check_disk(folder: Path, needed_bytes: int, purpose: str) -> None:
    """Raise DiskSpaceError unless `needed_bytes` and SPARE_BYTES are free where `folder` lies."""
    free = shutil.disk_usage(folder).free
    if free < needed_bytes + SPARE_BYTES:
        raise DiskSpaceError(
            f"{purpose} needs {needed_bytes:,} bytes in {folder} and {SPARE_BYTES:,} to spare, {free:,} are free"
        )


@contextmanager
def placing(target: Path) -> Iterator[Path]:
    """An empty folder that becomes `target` when the block ends well, and is removed when it does not.

    Raises ModelError when another process is placing the same target.
    """
    with scratch_folder(target.parent / f".{target.name}.importing") as scratch:
        yield scratch
        _swap(scratch, target)


@contextmanager
def scratch_folder(path: Path) -> Iterator[Path]:
    """An empty folder at `path`, this process's alone, removed at the end; what a killed process left goes first.

    Raises ModelError when another process has it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f"{path.name}.lock"), "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ModelError(f"{path} is in use by another process: the same model is being imported") from error
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


def _swap(scratch: Path, target: Path) -> None:
    if not target.exists():
        scratch.rename(target)
        return
    old = target.parent / f".{target.name}.replaced"
    shutil.rmtree(old, ignore_errors=True)
    target.rename(old)  # stations that have mapped it keep their pages
    try:
        scratch.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _needed_bytes(plans: list[FilePlan], keep: set[tuple[str, int]] | None) -> int:
    """Bytes of the files to keep, and of the largest other one, which lives until it is hashed."""
    kept = sum(file_bytes(p) for p in plans if keep is None or (p.role, p.layer) in keep)
    return kept + max((file_bytes(p) for p in plans if keep and (p.role, p.layer) not in keep), default=0)


def _write_folder(
    checkpoint: Checkpoint,
    plans: list[FilePlan],
    folder: Path,
    keep: set[tuple[str, int]] | None,
    progress: Progress,
) -> None:
    done, total = 0, sum(map(source_bytes, plans))

    def advance(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        progress("import", done, total)

    tokenizer = checkpoint.tokenizer_json.encode()
    entries = []
    for plan in plans:
        entry = write_file(plan, folder, advance)
        entries.append(entry)
        if keep is not None and (plan.role, plan.layer) not in keep:
            (folder / entry.name).unlink()
    manifest = Manifest(LAYOUT_VERSION, blake3(tokenizer).hexdigest(), checkpoint.card.tied_embeddings, tuple(entries))
    card = msgspec.structs.replace(checkpoint.card, fingerprint=fingerprint(checkpoint.card, manifest))
    (folder / TOKENIZER_FILE).write_bytes(tokenizer)
    (folder / MANIFEST_FILE).write_bytes(encode_document(manifest))
    (folder / CARD_FILE).write_bytes(encode_document(card))
