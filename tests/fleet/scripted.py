"""A child that misbehaves on cue, for what a real station cannot be brought to do. Its name says what it does.

Run in the place of the Python interpreter: `<this> -P -m stations station --name NAME … --listen HOST:PORT …`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path


def main() -> None:
    arguments = sys.argv
    name = arguments[arguments.index("--name") + 1]
    port = int(arguments[arguments.index("--listen") + 1].rpartition(":")[2]) or 20000 + os.getpid() % 40000
    print(f"{name} begins", file=sys.stderr, flush=True)
    if name == "refuses":
        print(json.dumps({"event": "error", "message": "port 9 is in use"}), flush=True)
        sys.exit(3)
    if name == "crashes":
        print("out of memory: 12 of 8 GB", file=sys.stderr, flush=True)
        sys.exit(7)
    if name == "segfaults":
        os.kill(os.getpid(), signal.SIGSEGV)
    if name == "silent":
        time.sleep(600)
    if name == "once" and _was_here(Path(arguments[arguments.index("--token-file") + 1]).parent / "was-here"):
        sys.exit(9)
    if name == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if name == "chatty":
        print("a library prints to stdout", flush=True)
        print("x" * 50_000, file=sys.stderr, flush=True)
        for i in range(500):
            print(f"line {i}", file=sys.stderr)
    ready = {"event": "ready", "name": name, "url": f"ws://127.0.0.1:{port}", "port": port, "pid": os.getpid()}
    print(json.dumps({**ready, "later": "fields"}), flush=True)
    sys.stdin.read()
    if name == "stubborn":
        time.sleep(600)


def _was_here(path: Path) -> bool:
    if path.exists():
        return True
    path.touch()
    return False


main()
