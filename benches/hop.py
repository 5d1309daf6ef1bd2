"""One hop of a chain beside half a bare echo of the same bytes over the same library (METHOD.md)."""

from __future__ import annotations

import argparse
import asyncio
import json

from aeonflow import new_event_loop
from host.bench import bench_hop

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--runs", type=int, default=5)
parser.add_argument("--kernels", choices=("fast", "fast-int8", "reference"), default="fast")
parser.add_argument("--link-delay-ms", type=float, metavar="D", help="what a token takes over links with this delay")

if __name__ == "__main__":
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        print(
            json.dumps(
                runner.run(bench_hop(runs=options.runs, kernels=options.kernels, link_delay_ms=options.link_delay_ms))
            )
        )
