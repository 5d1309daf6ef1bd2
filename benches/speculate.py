"""Speculating beside plain decoding, answers in turn (METHOD.md). --blind: all drafts of Pair X wrong."""

from __future__ import annotations

import argparse
import asyncio
import json

from aeonflow import new_event_loop
from host.bench.speculate import bench_speculate

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default="smollm2")
parser.add_argument("--plan", default="solo")
parser.add_argument("--speculate", default="lookup")
parser.add_argument("--pair-x", choices=("off", "draft"), default="off")
parser.add_argument("--link-delay-ms", type=float, default=0.0)
parser.add_argument("--threads", type=int)
parser.add_argument("--prompts", default="chat")
parser.add_argument("--count", type=int, default=4)
parser.add_argument("--new-tokens", type=int, default=64)
parser.add_argument("--runs", type=int, default=1)
parser.add_argument("--blind", action="store_true")

if __name__ == "__main__":
    options = vars(parser.parse_args())
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        print(json.dumps(runner.run(bench_speculate(**options))))
