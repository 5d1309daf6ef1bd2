"""A whole generated model of sliding layers at 128, 4,096 and 32,768 positions: bytes and time of a row (METHOD.md)."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

from aeonflow import new_event_loop
from host.bench.kv_window import PERIODS, POSITIONS, WAYS, WINDOW, bench_kv_window

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--ways", nargs="+", default=list(WAYS), metavar="NAME=VALUE …")
parser.add_argument("--positions", type=int, nargs="+", default=list(POSITIONS))
parser.add_argument("--window", type=int, default=WINDOW, help="rows that every layer of the generated model sees")
parser.add_argument("--model", help="another model (default: generated, with that window)")
parser.add_argument("--plan", default="solo")
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--periods", type=int, default=PERIODS, help="decoded at each position, of window + 1 rows")

if __name__ == "__main__":
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        found = runner.run(
            bench_kv_window(
                options.ways, positions=options.positions, window=options.window, model=options.model,
                plan=options.plan, threads=options.threads, periods=options.periods,
                progress=lambda said: print(said, file=sys.stderr, flush=True),
            )
        )  # fmt: skip
    print(json.dumps(found))
