"""One command for `docs/kv-cache.md`, *Measured*: all KV options at three contexts, the table and the picture.

python benches/kv_table.py --json kv.json        # at most 15 minutes on 2 cores; --minutes M for another bound
python benches/kv_table.py --from kv.json        # table and picture of what was measured
python benches/kv_table.py --contexts 2048 --ways "kv=q8" "kv=q4" --windows 24 --merge kv.json    # some of it anew
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from aeonflow import new_event_loop
from host.bench.kv_table import WAYS, WINDOWS, bench_kv_table, merged, pairs_text, table_text, with_table
from host.bench.kv_texts import default_texts

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("files", type=Path, nargs="*", help="texts (default: Python's documentation, licence, docstrings)")
parser.add_argument("--minutes", type=float, default=15.0, help="ways that do not fit are left out and named")
parser.add_argument("--contexts", type=int, nargs="+", default=list(WINDOWS))
parser.add_argument("--ways", nargs="+", default=list(WAYS), metavar="NAME=VALUE …")
parser.add_argument("--windows", type=int, help=f"of text, at each context (default {WINDOWS})")
parser.add_argument("--first-window", type=int, default=0, help="windows of the texts that come before are left out")
parser.add_argument("--model", default="smollm2")
parser.add_argument("--plan", default="solo")
parser.add_argument("--threads", type=int, default=None)
parser.add_argument("--json", type=Path, help="where the figures go")
parser.add_argument("--from", type=Path, dest="measured", help="figures that were measured before")
parser.add_argument("--merge", type=Path, help="figures in which those measured now take the place of older ones")
parser.add_argument("--into", type=Path, help="a document whose tables of these columns are replaced")
parser.add_argument("--plot", type=Path, help="an .svg or .png: KV bytes and decode rate against context")


def measured(options: argparse.Namespace) -> dict[str, Any]:
    texts = {path.name: path.read_text("utf-8") for path in options.files} or default_texts()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(
            bench_kv_table(
                texts, contexts=options.contexts, ways=options.ways, minutes=options.minutes, model=options.model,
                num_windows=options.windows, first_window=options.first_window, plan=options.plan,
                threads=options.threads, say=lambda line: print(line, file=sys.stderr, flush=True),
            )
        )  # fmt: skip


if __name__ == "__main__":
    options = parser.parse_args()
    found = json.loads(options.measured.read_text("utf-8")) if options.measured else measured(options)
    if options.merge:
        found = merged(json.loads(options.merge.read_text("utf-8")), found)
    if options.json or options.merge:
        (options.json or options.merge).write_text(json.dumps(found) + "\n", "utf-8")
    tables = table_text(found), pairs_text(found)
    print(*tables, sep="\n\n")
    if options.into:
        document = options.into.read_text("utf-8")
        for table in tables:
            document = with_table(document, table)
        options.into.write_text(document, "utf-8")
    for context, ways in found["left_out"].items():
        for way, why in ways.items():
            print(f"left out at {context}: {way}: {why}", file=sys.stderr)
    if options.plot:
        from kv_plot import draw  # needs the extra `plots`

        draw(found, options.plot)
