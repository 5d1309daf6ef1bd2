"""Prefill and decode rates of the plans on one model, fast kernels beside reference ones (METHOD.md)."""

from __future__ import annotations

import argparse
import asyncio
import json

from aeonflow import new_event_loop
from host.bench import bench_decode

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default="smollm2", help="name in the cache, or synthetic:…")
parser.add_argument("--prompt-tokens", type=int, default=256)
parser.add_argument("--new-tokens", type=int, default=64)
parser.add_argument("--runs", type=int, default=3)

if __name__ == "__main__":
    options = parser.parse_args()
    measuring = bench_decode(
        model=options.model, prompt_tokens=options.prompt_tokens, new_tokens=options.new_tokens, runs=options.runs
    )
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        print(json.dumps(runner.run(measuring)))
