"""`hf:org/repo[@revision]`: fetching a model's files from the Hugging Face hub, sizes known first."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from .build import Progress, check_disk
from .errors import ModelError, ModelNotFoundError

HUB_PREFIX = "hf:"
HUB_TIMEOUT_S = 30.0  # for the list of files; the client waits for ever by default, but for files themselves
PATTERNS = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json",
    "chat_template.jinja", "model*.safetensors", "model.safetensors.index.json",
)  # fmt: skip
_REPOSITORY = re.compile(r"^hf:(?P<id>[A-Za-z0-9][\w.-]*/[\w.-]+)(?:@(?P<revision>[\w./-]+))?$")


class _RemoteFile(NamedTuple):
    name: str
    bytes: int


def fetch_repository(source: str, scratch: Path, progress: Progress) -> Path:
    """Download the files that an import needs into a folder under `scratch`, one after the other.

    Raises ModelError with the hub's reason in one line, DiskSpaceError before anything is fetched.
    """
    match = _REPOSITORY.match(source)
    if match is None:
        raise ModelNotFoundError(f"{source!r} is not of the form hf:org/repo or hf:org/repo@revision")
    folder = scratch / match["id"].split("/")[1]
    try:
        _fetch(match["id"], match["revision"], folder, progress)
    except ModelError:
        raise
    except Exception as error:  # the hub's client raises errors of its own, of its HTTP library, and of the OS
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(f"{source} cannot be fetched from the Hugging Face hub: {reason}") from error
    return folder


def _fetch(repository: str, revision: str | None, folder: Path, progress: Progress) -> None:
    from huggingface_hub import HfApi, hf_hub_download

    info = HfApi().model_info(repository, revision=revision, files_metadata=True, timeout=HUB_TIMEOUT_S)
    files = [
        _RemoteFile(file.rfilename, file.size or 0)
        for file in info.siblings or []
        if any(fnmatch(file.rfilename, pattern) for pattern in PATTERNS)
    ]
    total = sum(f.bytes for f in files)
    check_disk(folder.parent, 2 * total, f"fetching and importing {repository}")
    done = 0
    for file in files:
        progress("download", done, total)
        hf_hub_download(repository, file.name, revision=info.sha, local_dir=folder)
        done += file.bytes
    progress("download", done, total)
