"""Named geometries for `--model`: deep and wide models of the sizes that trisplit fleets were first run with.

`synthetic:28-layers` and `synthetic:60-layers` are whole models of 7 and 26 billion weights, generated. The `-thin`
ones keep what the wire sees, the depth and the width of the residual (14,336 and 21,504 bytes a row), and have few
heads and a narrow ffn, so that they fit a small machine and a hop weighs more than a compute.
"""

from __future__ import annotations

from pathlib import Path

from ..errors import InvalidRequestError

GEOMETRIES: dict[str, str] = {
    "28-layers": "layers=28,hidden=3584,heads=28,kv_heads=4,head_dim=128,ffn=18944,vocab=152064,context=4096",
    "60-layers": "layers=60,hidden=5376,heads=32,kv_heads=16,head_dim=128,ffn=21504,vocab=262144,context=4096",
    "28-layers-thin": "layers=28,hidden=3584,heads=7,kv_heads=1,head_dim=128,ffn=1024,vocab=2048,context=4096",
    "60-layers-thin": "layers=60,hidden=5376,heads=4,kv_heads=1,head_dim=128,ffn=1024,vocab=2048,context=4096",
}
PREFIX = "synthetic:"
BITS_PER_WEIGHT = 5  # of q4_1, which generated models have
SPARE = 1.25  # of memory, for the processes and their KV


def resolve_model(model: str, available_bytes: int | None) -> str:
    """`synthetic:60-layers-thin` as the text that makes it; any other name as it is.

    `available_bytes`: memory there is, None where unknown; InvalidRequestError for a geometry that does not fit it.
    """
    name = model.removeprefix(PREFIX)
    if not model.startswith(PREFIX) or name not in GEOMETRIES:
        return model
    geometry = GEOMETRIES[name]
    needed = int(weight_bytes(geometry) * SPARE)
    if available_bytes is not None and needed > available_bytes:
        thin = f"; {PREFIX}{name}-thin fits" if f"{name}-thin" in GEOMETRIES else ""
        sizes = f"about {needed / 2**30:.1f} GiB are needed, {available_bytes / 2**30:.1f} GiB are free"
        raise InvalidRequestError(f"model {model}: {sizes}{thin}")
    return PREFIX + geometry


def weight_bytes(geometry: str) -> int:
    """Bytes of the weights of a geometry; embedding and head are one matrix."""
    of = {key: int(value) for key, value in (item.split("=") for item in geometry.split(","))}
    attn = of["hidden"] * of["head_dim"] * 2 * (of["heads"] + of["kv_heads"])
    weights = of["layers"] * (attn + 3 * of["hidden"] * of["ffn"]) + of["vocab"] * of["hidden"]
    return weights * BITS_PER_WEIGHT // 8


def available_memory_bytes() -> int | None:
    """Memory that processes can have without swapping; None where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")), None)
