"""The first figures of residual seeds on SmolLM2 beside probes of now (METHOD.md): a table on stderr, JSON on stdout.

python benches/pairx_facts.py                # texts: the golden prompts and their answers; about 4 idle minutes
python benches/pairx_facts.py --texts prose  # the three pages that `aeonflow pairx probe` takes
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

import msgspec

from aeonflow import new_event_loop
from host.cli.children import run_verb
from host.cli.pull import StageBar
from host.pairx.probe import Material, gather_material, shipped_texts
from host.pairx.probe_facts import DRAFTED, facts, table
from host.pairx.probe_report import to_report
from host.pairx.report import ProbeReport

GOLDEN = Path(__file__).parents[1] / "tests" / "golden" / "smollm2.json"

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--texts", choices=("golden", "prose"), default="golden")
parser.add_argument("--tokens", type=int, default=512, help="of each page of prose")
parser.add_argument("--new-tokens", type=int, default=80, help="of each answer, past its end, that is drafted again")
parser.add_argument("--prompts", type=int, default=12, help="answered, of chat and of edit")


def golden_texts() -> list[list[int]]:
    """Prompts through the chat template and 64 tokens that follow, past the end of the answer."""
    golden = json.loads(GOLDEN.read_text("utf-8"))["prompts"]
    return [[*one["prompt_ids"], *one["f32_ref"]["greedy_ids"]] for one in golden]


def measured(options: argparse.Namespace, bar: StageBar) -> tuple[ProbeReport, list[ProbeReport]]:
    """A probe over the texts, and of drafts with both seeds."""

    def answered(done: int, total: int) -> None:
        bar.update({"stage": "answers of the plain model", "done": done, "total": total, "unit": "answers"})

    gathering = gather_material(
        "smollm2", shipped_texts(), tokens=options.tokens, new_tokens=options.new_tokens,
        prompts_a_set=options.prompts, ignore_eos=True, progress=answered,
    )  # fmt: skip
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        material = runner.run(gathering)
    texts = golden_texts() if options.texts == "golden" else material.texts
    of_texts = Material(texts, material.answers[:1])
    of_drafts = Material(texts[:1], material.answers, [list(DRAFTED)])

    def probed(seed: str, given: Material) -> ProbeReport:
        return to_report(run_verb("seeded", ["smollm2", "--seed", seed], on_progress=bar.update, given=given.to_verb))

    return probed("h", of_texts), [probed("h", of_drafts), probed("x", of_drafts)]


if __name__ == "__main__":
    options = parser.parse_args()
    with StageBar() as bar:
        texts, drafts = measured(options, bar)
    compared = facts(texts, drafts)
    print(table(compared), file=sys.stderr)
    reports = {"facts": compared, "probe": texts, "drafts": drafts}
    print(json.dumps({"bench": "pairx_facts", "texts": options.texts, **msgspec.to_builtins(reports)}))
