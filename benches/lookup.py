"""What prompt lookup gains by the shortest n-gram that counts, on greedy answers of smollm2 in solo (METHOD.md).

python benches/lookup.py                 # chat, edit, and 24 chat prompts on which nothing was chosen: 3 idle minutes
python benches/lookup.py --prompts FILE.json --new-tokens 256
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

from aeonflow import new_event_loop
from host import Engine
from host.bench.lookup import Answered, replay
from host.bench.prompts import load_prompts
from host.cli.pull import StageBar

HELD_OUT = str(Path(__file__).parent / "chat_held_out.json")
EXTRA = (0.0, 0.005, 0.02, 0.05, 0.1, 0.32)  # cost of one more row in plain passes: slow links to solo on one thread

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="smollm2")
parser.add_argument("--prompts", nargs="+", default=["chat", "edit", HELD_OUT])
parser.add_argument("--new-tokens", type=int, default=256, help="at most (default 256); answers end where they end")
parser.add_argument("--limits", type=int, nargs="+", default=[30, 100, 256], help="answers cut after so many tokens")


async def answered(options: argparse.Namespace, bar: StageBar) -> dict[str, list[Answered]]:
    sets = {Path(name).stem: load_prompts(name).texts for name in options.prompts}
    total = sum(map(len, sets.values()))
    answers: dict[str, list[Answered]] = {name: [] for name in sets}
    async with Engine.launch(model=options.model) as engine:
        for name, texts in sets.items():
            for text in texts:
                done = sum(map(len, answers.values()))
                bar.update({"stage": "answers", "done": done, "total": total, "unit": "answers"})
                found = await engine.generate(text, max_tokens=options.new_tokens).collect()
                answers[name].append((found.prompt_ids, found.token_ids))
    return answers


def counted(answers: list[Answered], limit: int) -> list[dict[str, Any]]:
    cut = [(prompt, answer[:limit]) for prompt, answer in answers]
    rows = []
    for extra in EXTRA:
        for shortest in (2, 1):
            found = replay(cut, extra=extra, shortest=shortest)
            told = {"gain": found.gain, "worst": found.worst, "tokens_per_pass": found.tokens_per_pass}
            rows.append({"extra": extra, "shortest": shortest, **{key: round(value, 4) for key, value in told.items()}})
    return rows


if __name__ == "__main__":
    options = parser.parse_args()
    with StageBar() as bar, asyncio.Runner(loop_factory=new_event_loop) as runner:
        answers = runner.run(answered(options, bar))
    sets = {name: {str(limit): counted(of, limit) for limit in options.limits} for name, of in answers.items()}
    print(json.dumps({"bench": "lookup", "model": options.model, "new_tokens": options.new_tokens, "sets": sets}))
