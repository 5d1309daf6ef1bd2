"""KV options beside the exact cache on texts, all in lock step over one engine (METHOD.md, *eval*)."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from aeonflow import new_event_loop
from host.bench.kv_way import kv_way
from host.bench.measure import machine
from host.engine import Engine
from host.evaluate import evaluate, texts_to_windows

DEFAULT_OPTIONS = ("kv=f16", "kv=q8", "kv=q8 exact_recent=64", "kv=q8k", "kv=q8v", "kv=q4")
SAY_EVERY_S = 30.0
DEADLINE_S = 900.0  # a pass that seals O(1) layers computes for many seconds


async def measured(options: argparse.Namespace) -> dict[str, Any]:
    """One engine; for each context all options over the same windows."""
    said_s = time.monotonic()

    def say(done: int, total: int) -> None:
        nonlocal said_s
        if time.monotonic() - said_s >= SAY_EVERY_S:
            said_s = time.monotonic()
            print(f"{done} of {total} rows", file=sys.stderr, flush=True)

    contexts: dict[str, Any] = {}
    async with Engine.launch(
        model=options.model, plan=options.plan, threads=options.threads, deadline_s=DEADLINE_S
    ) as engine:
        texts = [engine.tokenize(path.read_text("utf-8"))[: options.tokens] for path in options.files]
        for context in options.contexts:
            windows = texts_to_windows(texts, context, engine.card.context_length)
            kinds = [kv_way(spec, context) for spec in options.options]
            found = await evaluate(engine, windows, kinds, progress=say)
            contexts[str(context)] = {
                spec: msgspec.to_builtins(one) for spec, one in zip(options.options, found, strict=True)
            }
    return {
        "bench": "kv_eval",
        "machine": machine(),
        "model": options.model,
        "plan": options.plan,
        "files": [path.name for path in options.files],
        "tokens": [len(text) for text in texts],
        "contexts": contexts,
    }


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("files", type=Path, nargs="+")
parser.add_argument("--contexts", type=int, nargs="+", default=[512, 2048, 8000])
parser.add_argument("--tokens", type=int, default=8192, help="at most so many of each file")
parser.add_argument("--options", nargs="+", default=DEFAULT_OPTIONS, metavar="NAME=VALUE …")
parser.add_argument("--model", default="smollm2")
parser.add_argument("--plan", default="solo")
parser.add_argument("--threads", type=int, default=None)

if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        print(json.dumps(runner.run(measured(parser.parse_args()))))
