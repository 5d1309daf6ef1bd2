"""The fast kernels compiled for this processor and for one without AVX-512, in turn, solo: one hash, two speeds."""

from __future__ import annotations

import argparse
import json
import os
from contextlib import ExitStack
from typing import Any

from host.bench.decode import prompt_ids
from host.bench.measure import machine, spread
from host.bench.side_by_side import Child, own_command
from stations.kernels.fast.target import current_target, settings_without

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default="smollm2")
parser.add_argument("--kernels", nargs="+", default=["fast", "fast-int8"])
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--prompt-tokens", type=int, default=256)
parser.add_argument("--new-tokens", type=int, default=64)
parser.add_argument("--runs", type=int, default=5)


def measured(options: argparse.Namespace, kernels: str) -> dict[str, Any]:
    """Rates of both ways of compiling one kernel set, runs in turn, and whether their logits are the same."""
    environments = {"as_is": {}, "without_avx512": settings_without("avx512", current_target(os.environ))}
    setting = {"model": options.model, "threads": options.threads, "kernels": kernels, "kv": "f32"}
    with ExitStack() as stack:
        sides = {
            name: stack.enter_context(Child(own_command(), setting, (), environment))
            for name, environment in environments.items()
        }
        prompt = prompt_ids(sides["as_is"].about["vocab_size"], options.prompt_tokens)
        hashes = {name: child.ask({"hashed": [prompt, options.new_tokens]}) for name, child in sides.items()}
        answers = {name: [] for name in sides}
        for _ in range(options.runs):
            for name, child in sides.items():
                answers[name].append(child.answer(prompt, options.new_tokens))
    rates = {
        name: {
            "prefill_tok_s": spread([options.prompt_tokens / one.prefill_s for one in taken]),
            "decode_tok_s": spread([(options.new_tokens - 1) / one.decode_s for one in taken]),
        }
        for name, taken in answers.items()
    }
    pairs = list(zip(answers["without_avx512"], answers["as_is"], strict=True))
    return {
        "kernels": kernels,
        **rates,
        "prefill_ratio": spread([b.prefill_s / a.prefill_s for a, b in pairs]),
        "decode_ratio": spread([b.decode_s / a.decode_s for a, b in pairs]),
        "same_logits_hash": len({reply["logits_hash"] for reply in hashes.values()}) == 1,
        "logits_hash": hashes["as_is"]["logits_hash"],
    }


def main() -> None:
    options = parser.parse_args()
    rows = [measured(options, kernels) for kernels in options.kernels]
    print(json.dumps({"bench": "without_avx512", "machine": machine(), "threads": options.threads, "results": rows}))


if __name__ == "__main__":
    main()
