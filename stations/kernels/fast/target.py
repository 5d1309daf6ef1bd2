"""The CPU that code is compiled for: its name, its features, and what the kernels make of them.

`NUMBA_CPU_NAME` and `NUMBA_CPU_FEATURES` override what the machine has, as they do in numba. Results have the same
bits for every target; only speed differs. LLVM is asked what the machine has once, then its answer is read from the
compile cache. Never imports numba.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from blake3 import blake3

_X86 = ("x86_64", "amd64", "i386", "i686")
_ARM = ("aarch64", "arm64")


@dataclass(frozen=True, slots=True)
class Target:
    """One CPU. `features` is LLVM's list, "+avx2,-avx512f,…"."""

    machine: str
    cpu: str
    features: str

    def has(self, feature: str) -> bool:
        return f"+{feature}" in self.features.split(",")

    @property
    def is_x86(self) -> bool:
        return self.machine in _X86

    @property
    def is_arm(self) -> bool:
        return self.machine in _ARM

    @property
    def monotonic_clock(self) -> int:
        """CLOCK_MONOTONIC of the system's C library."""
        return 6 if platform.system() == "Darwin" else 1

    @property
    def has_permute(self) -> bool:
        """A 16-entry table of f32 in one register, indexed by lanes."""
        return self.is_x86 and self.has("avx512f")

    @property
    def has_dot_product(self) -> bool:
        """Four products of bytes added to each of 16 words in one instruction."""
        return self.is_x86 and self.has("avx512vnni")

    @property
    def has_narrow_dot_product(self) -> bool:
        """The same for 8 words."""
        return self.is_x86 and self.has("avxvnni")

    @property
    def has_half_conversion(self) -> bool:
        """f16 → f32 in the CPU; elsewhere LLVM would call a library function that may not exist."""
        return self.is_arm or (self.is_x86 and (self.has("f16c") or self.has("avx512f")))

    @property
    def row_tiles(self) -> tuple[int, ...]:
        """Rows that a kernel handles at once, largest first: as many as the registers hold."""
        if self.has_permute:
            return 12, 4, 2, 1
        return 3, 2, 1


def current_target(environment: Mapping[str, str]) -> Target:
    """The target that numba compiles for under this environment, as LLVM tells."""
    import llvmlite.binding as llvm

    cpu = environment.get("NUMBA_CPU_NAME") or llvm.get_host_cpu_name()
    features = environment.get("NUMBA_CPU_FEATURES")
    if features is None:
        if environment.get("NUMBA_CPU_NAME") == "generic":
            features = ""
        else:
            try:
                features = llvm.get_host_cpu_features().flatten()
            except RuntimeError:  # LLVM cannot tell on this machine
                features = ""
    return Target(platform.machine().lower(), cpu, features)


def settings_without(features: str, target: Target) -> dict[str, str]:
    """The environment that names a CPU like `target` without the features that begin with `features` ("avx512")."""
    kept = [f"-{name[1:]}" if name[1:].startswith(features) else name for name in target.features.split(",")]
    return {"NUMBA_CPU_NAME": target.cpu, "NUMBA_CPU_FEATURES": ",".join(kept)}


def known_target(environment: Mapping[str, str], cache_folder: Path) -> Target:
    """`current_target`, remembered in `cache_folder` for this processor and environment: no LLVM the second time."""
    processor = _processor()
    if processor is None:
        return current_target(environment)
    settings = [environment.get(f"NUMBA_CPU_{name}") for name in ("NAME", "FEATURES")]
    key = blake3(json.dumps([processor, settings, distribution_version("llvmlite")]).encode()).hexdigest()[:20]
    path = cache_folder / "jit" / f"cpu-{key}.json"
    try:
        return Target(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        target = current_target(environment)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(f".{path.name}.{os.getpid()}")
        scratch.write_text(json.dumps(asdict(target)))
        scratch.rename(path)
    except OSError:  # asked again next time
        pass
    return target


def _processor() -> str | None:
    """What the system says of the first processor, as far as it stays the same; None where it does not."""
    try:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return None
    fields = dict(part.split(":", 1) for line in first.splitlines() if ":" in (part := line.replace("\t", "")))
    wanted = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags", "Features")
    found = [f"{name}:{fields[name]}" for name in wanted if name in fields]
    return "\n".join(found) if any(line.startswith(("flags", "Features")) for line in found) else None


def distribution_version(name: str) -> str:
    """The version of an installed distribution, "none" where it is not."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "none"
