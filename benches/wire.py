"""Frames a second: packed and decoded in memory, and through a socket with the batcher off and on (METHOD.md)."""

from __future__ import annotations

import argparse
import asyncio
import json

from aeonflow import new_event_loop
from host.bench import bench_wire

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--runs", type=int, default=5)
parser.add_argument("--link-delay-ms", type=float, default=None, help="also measure the delay a link obtains")

if __name__ == "__main__":
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        print(json.dumps(runner.run(bench_wire(runs=options.runs, link_delay_ms=options.link_delay_ms))))
