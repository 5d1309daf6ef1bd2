"""Speculating beside plain decoding, answer by answer, with the noise of plain beside plain (METHOD.md).

python benches/speculate.py --plan trisplit --link-delay-ms 2 --speculate auto --pair-x draft --at-once --minutes 8
python benches/speculate.py --plan layers:4 --link-delay-ms 5 --minutes 8        # lookup; answers in turn
python benches/speculate.py --plan trisplit --link-delay-ms 10 --speculate off --pair-x draft --blind --count 1
"""

from __future__ import annotations

import argparse
import asyncio
import json
from itertools import chain, zip_longest
from pathlib import Path

from aeonflow import new_event_loop
from host.bench.prompts import load_prompts
from host.bench.speculate import bench_speculate
from host.bench.speculate_report import Asked
from host.cli.pull import StageBar

GOLDEN = Path(__file__).parents[1] / "tests" / "golden" / "smollm2.json"

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="smollm2")
parser.add_argument("--plan", default="solo")
parser.add_argument("--speculate", default="lookup")
parser.add_argument("--pair-x", choices=("off", "draft"), default="off")
parser.add_argument("--link-delay-ms", type=float, default=0.0)
parser.add_argument("--threads", type=int)
parser.add_argument("--prompts", nargs="+", default=["chat", "edit", "golden"], help="chat, edit, golden or files")
parser.add_argument("--count", type=int, default=10, help="of each set, at most (default 10: 25 prompts)")
parser.add_argument("--new-tokens", type=int, default=72, help="at most (default 72)")
parser.add_argument("--runs", type=int, default=1)
parser.add_argument("--blind", action="store_true", help="all drafts of Pair X wrong, and never switched off")
parser.add_argument("--at-once", action="store_true", help="the three answers side by side: slow links only")
parser.add_argument("--minutes", type=float, help="prompts that do not fit are left out, and counted")


def texts_of(name: str) -> list[str]:
    if name == "golden":
        return [one["prompt"] for one in json.loads(GOLDEN.read_text("utf-8"))["prompts"]]
    return list(load_prompts(name).texts)


def prompts_of(names: list[str], count: int) -> list[Asked]:
    """The sets in turn, so that a bench that is cut short has seen them all."""
    sets = [[Asked(name, text) for text in texts_of(name)[:count]] for name in names]
    return [asked for asked in chain.from_iterable(zip_longest(*sets)) if asked is not None]


if __name__ == "__main__":
    options = vars(parser.parse_args())
    prompts = prompts_of(options.pop("prompts"), options.pop("count"))
    with StageBar() as bar, asyncio.Runner(loop_factory=new_event_loop) as runner:

        def progress(done: int, total: int) -> None:
            bar.update({"stage": "prompts answered by all sides", "done": done, "total": total, "unit": "prompts"})

        found = runner.run(bench_speculate(prompts=prompts, progress=progress, **options))
    print(json.dumps(found))
