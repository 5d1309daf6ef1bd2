"""`python -m stations models [rm NAME | verify NAME]`: what the cache holds."""

from __future__ import annotations

import os
from typing import Any

from .events import EventParser, run_verb


def main(argv: list[str]) -> int:
    """List the models; `rm` deletes one, `verify` hashes every weight file of one."""
    parser = EventParser(prog="models", description=__doc__)
    parser.add_argument("action", nargs="?", choices=("list", "rm", "verify"), default="list")
    parser.add_argument("name", nargs="?", help="of rm and verify")
    arguments = parser.parse_args(argv)
    if (arguments.name is None) != (arguments.action == "list"):
        parser.error("list takes no name" if arguments.action == "list" else f"{arguments.action} takes a model's name")
    return run_verb(lambda: _act(arguments.action, arguments.name))


def _act(action: str, name: str) -> dict[str, Any]:
    from ..models.store import ModelStore

    store = ModelStore.default(os.environ)
    if action == "rm":
        return {"removed": name, "bytes": store.remove(name)}
    if action == "verify":
        store.open(name).verify()
        return {"verified": name}
    return {"models": [{**m._asdict(), "path": str(m.path)} for m in store.list()]}
