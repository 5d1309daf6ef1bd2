"""`python -m stations import SOURCE [--name N] [--roles …]`: import a model into the cache, then warm the kernels."""

from __future__ import annotations

import os
from typing import Any

from .events import EventParser, ProgressLines, run_verb


def main(argv: list[str]) -> int:
    """Import; the result has name, path, fingerprint, bytes, roles, and `already` when nothing was to do."""
    parser = EventParser(prog="import", description=__doc__)
    parser.add_argument("source", help="smollm2, PATH.gguf, a Hugging Face folder, hf:org/repo or synthetic:…")
    parser.add_argument("--name", help="name in the cache; made from the source by default")
    parser.add_argument("--roles", help="keep the weights of these roles only: attn:0-14,gate_up:0-14,…")
    parser.add_argument("--no-warm", action="store_true", help="leave the compile cache of the kernels as it is")
    arguments = parser.parse_args(argv)
    return run_verb(lambda: _import(arguments.source, arguments.name, arguments.roles, not arguments.no_warm))


def _import(source: str, name: str | None, roles: str | None, warm: bool) -> dict[str, Any]:
    from ..kernels.warm import warm as fill_compile_cache
    from ..models.sources import import_model
    from ..models.store import ModelStore
    from ..models.synthetic_spec import PREFIX

    progress = ProgressLines()
    imported = import_model(source, ModelStore.default(os.environ), name=name, roles=roles, progress=progress)
    folder = imported.folder
    if warm and not imported.already and not source.startswith(PREFIX):  # generated models are not waited for
        fill_compile_cache(folder, progress)  # so that no first token waits for a compiler
    present = [f for f in folder.manifest.files if folder.holds(f)]
    return {
        "name": imported.name,
        "path": str(folder.path),
        "fingerprint": folder.card.fingerprint,
        "bytes": sum(f.bytes for f in present),
        "files": len(present),
        "files_total": len(folder.manifest.files),
        "num_layers": folder.card.num_layers,
        "source": folder.card.source,
        "already": imported.already,
    }
