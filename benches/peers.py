"""aeonflow in solo beside llama-cpp-python on the same GGUF file: every ratio that the project sets itself (METHOD.md).

The peer runs under `--peer-python`, in an environment of its own if that is where it is installed. Prints one JSON
object; its `goals` say what was found and whether it suffices.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from aeonflow import new_event_loop
from host.bench.decode import prompt_ids
from host.bench.echo import LIBRARIES, bare_round_trips, echo_process, usable
from host.bench.measure import machine, spread
from host.bench.side_by_side import Child, compare, own_command, read_bandwidth

ECHO_BYTES, ECHO_ROUNDS = 2362, 400  # a row of 576 with its prefix and header
LONG_TOKENS = 2000
SESSIONS, SESSION_PROMPT_TOKENS = 16, 64
PARTS = ("answers", "long", "sessions", "contended", "error")
GOLDEN = Path(__file__).parents[1] / "tests" / "golden" / "smollm2.json"

# (part, kernels, threads): {figure: at least}
GOALS: dict[tuple[str, str, int], dict[str, float]] = {
    ("answers", "fast", 1): {"decode_ratio": 2.0, "prefill_ratio": 2.2},
    ("answers", "fast", 2): {"decode_ratio": 1.8, "prefill_ratio": 1.9},
    ("answers", "fast-int8", 1): {"decode_ratio": 2.4, "prefill_ratio": 5.0},
    ("answers", "fast-int8", 2): {"decode_ratio": 2.2, "prefill_ratio": 4.0},
    ("long", "fast", 1): {"decode_ratio": 2.2},
    ("long", "fast", 2): {"decode_ratio": 2.2},
    ("sessions", "fast", 1): {"gain": 1.6},
    ("sessions", "fast", 2): {"gain": 2.2},
    ("sessions", "fast-int8", 1): {"gain": 2.6},
    ("sessions", "fast-int8", 2): {"gain": 3.5},
    ("contended", "fast", 2): {"two_over_one": 0.9},
}
MEMORY_GOAL = 1.3  # at most, ours / theirs

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--gguf", type=Path, required=True, help="the file the peer reads; --model was imported from it")
parser.add_argument("--model", default="smollm2", help="our name of the same model")
parser.add_argument("--peer-python", default=sys.executable, help="a Python that has llama-cpp-python")
parser.add_argument("--parts", choices=PARTS, nargs="+", default=PARTS)
parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
parser.add_argument("--kernels", nargs="+", default=["fast", "fast-int8"])
parser.add_argument("--kv", default="f32", help="of short answers; long ones keep f16")
parser.add_argument("--peer-kv", choices=("f16", "f32"), default="f16", help="f16 is the peer's own default")
parser.add_argument("--peer-flash-attn", action="store_true")
parser.add_argument("--prompt-tokens", type=int, default=256)
parser.add_argument("--new-tokens", type=int, default=64)
parser.add_argument("--runs", type=int, default=7)
parser.add_argument("--long-runs", type=int, default=2)
parser.add_argument("--no-pin", action="store_true", help="else both run on the first N usable cores, N the threads")


class Bench:
    """The parts of a run; each gives rows that name their kernels and threads."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._cores = sorted(os.sched_getaffinity(0))

    def part(self, name: str) -> Iterator[dict[str, Any]]:
        """The rows of one part."""
        threads, kernels = self._options.threads, self._options.kernels
        if name == "error":
            yield from self._error()
        elif name == "contended":
            yield from (self._contended(kind) for kind in kernels if len(self._cores) > 1)
        else:
            measure = {"answers": self._answers, "long": self._long, "sessions": self._sessions}[name]
            yield from (measure(kind, count) for count in threads for kind in kernels)

    def _ours(self, kernels: str, threads: int, kv: str, cores: list[int] | None = None) -> Child:
        setting = {"model": self._options.model, "threads": threads, "kernels": kernels, "kv": kv}
        return Child(own_command(), setting, self._pinned(threads) if cores is None else cores)

    def _theirs(self, threads: int, context: int, **more: Any) -> Child:
        o = self._options
        setting = {"model": str(o.gguf), "threads": threads, "context": context, "kv": o.peer_kv}
        script = Path(__file__).with_name("llama_cpp_child.py")
        setting |= {"flash_attn": o.peer_flash_attn, **more}
        return Child([o.peer_python, str(script)], setting, self._pinned(threads))

    def _pinned(self, threads: int) -> list[int]:
        return [] if self._options.no_pin else self._cores[:threads]

    def _answers(self, kernels: str, threads: int) -> dict[str, Any]:
        o = self._options
        return self._pairs(kernels, threads, o.kv, o.prompt_tokens, o.runs)

    def _long(self, kernels: str, threads: int) -> dict[str, Any]:
        return self._pairs(kernels, threads, "f16", LONG_TOKENS, self._options.long_runs)

    def _pairs(self, kernels: str, threads: int, kv: str, prompt_tokens: int, runs: int) -> dict[str, Any]:
        new_tokens = self._options.new_tokens
        with self._ours(kernels, threads, kv) as ours, self._theirs(threads, prompt_tokens + new_tokens) as theirs:
            prompt = prompt_ids(ours.about["vocab_size"], prompt_tokens)
            say(f"{kernels}, {threads} threads: {runs + 1} pairs of answers to {prompt_tokens} tokens")
            found = compare(ours, theirs, prompt, new_tokens, runs)
            peer = f"llama-cpp-python {theirs.about['version']}"
        about = {"kernels": kernels, "threads": threads, "kv": kv, "prompt_tokens": prompt_tokens}
        return {**about, "new_tokens": new_tokens, "peer": peer, "peer_kv": self._options.peer_kv, **found}

    def _sessions(self, kernels: str, threads: int) -> dict[str, Any]:
        """One answer, then `SESSIONS` at once, in turn, on one engine."""
        new_tokens = self._options.new_tokens
        one, total = [], []
        say(f"{kernels}, {threads} threads: {SESSIONS} sessions")
        with self._ours(kernels, threads, self._options.kv) as ours:
            prompt = prompt_ids(ours.about["vocab_size"], SESSION_PROMPT_TOKENS)
            together = {"prompt": prompt, "new_tokens": new_tokens // 2, "sessions": SESSIONS}
            for run in range(self._options.runs + 1):
                alone, rate = ours.answer(prompt, new_tokens), ours.ask(together)["total_tok_s"]
                if run:  # the first warms up
                    one.append((new_tokens - 1) / alone.decode_s)
                    total.append(rate)
        return {
            "kernels": kernels,
            "threads": threads,
            "sessions": SESSIONS,
            "prompt_tokens": SESSION_PROMPT_TOKENS,
            "one_tok_s": spread(one),
            "total_tok_s": spread(total),
            "gain": spread([b / a for a, b in zip(one, total, strict=True)]),
        }

    def _contended(self, kernels: str) -> dict[str, Any]:
        """Decode with 2 threads and with 1 in turn, while another program holds the second of two cores."""
        o, both = self._options, self._cores[:2]
        rates: dict[int, list[float]] = {1: [], 2: []}
        say(f"{kernels}: 2 threads and 1, the other core taken")
        with busy(both[1]), ExitStack() as stack:
            sides = {count: stack.enter_context(self._ours(kernels, count, o.kv, both)) for count in (1, 2)}
            prompt = prompt_ids(sides[1].about["vocab_size"], SESSION_PROMPT_TOKENS)
            for run in range(o.runs + 2):
                for count, child in sides.items():
                    rate = (o.new_tokens - 1) / child.answer(prompt, o.new_tokens).decode_s
                    if run > 1:  # until helpers have been tried and judged
                        rates[count].append(rate)
        ratio = spread([b / a for a, b in zip(rates[1], rates[2], strict=True)])
        rows = {"one_thread_tok_s": spread(rates[1]), "two_threads_tok_s": spread(rates[2])}
        return {"kernels": kernels, "threads": 2, **rows, "two_over_one": ratio}

    def _error(self) -> Iterator[dict[str, Any]]:
        """Logits of the golden answers, fed as they stand, against those of the exact f32 kernels."""
        prompts = json.loads(GOLDEN.read_text())["prompts"]
        texts = [(*p["prompt_ids"], *p["f32_ref"]["greedy_ids"]) for p in prompts]
        starts = [len(p["prompt_ids"]) - 1 for p in prompts]  # rows that chose a token
        context = max(map(len, texts))
        say("logits beside the exact ones")
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            file = Path(folder) / "logits.npy"

            def chosen_from(child: Child) -> list[np.ndarray]:
                found = []
                for ids, start in zip(texts, starts, strict=True):
                    child.ask({"rows": ids, "file": str(file)})
                    found.append(np.load(file)[start:])
                return found

            exact = chosen_from(stack.enter_context(self._ours("fast", 1, "f32")))
            sides = {kind: self._ours(kind, 1, "f32") for kind in self._options.kernels if kind != "fast"}
            sides["llama.cpp"] = self._theirs(1, context, all_logits=True)
            for name, child in sides.items():
                with child:
                    yield {"kernels": name, "threads": 1, **logits_error(exact, chosen_from(child))}


def logits_error(exact: list[np.ndarray], found: list[np.ndarray]) -> dict[str, Any]:
    """Of all rows: root mean square and largest difference, rows with the same likeliest token."""
    differences = [b.astype(np.float64) - a for a, b in zip(exact, found, strict=True)]
    same = [(a.argmax(1) == b.argmax(1)).mean() for a, b in zip(exact, found, strict=True)]
    return {
        "logits_rms": round(float(np.sqrt(np.mean([np.mean(d * d) for d in differences]))), 4),
        "logits_max": round(max(float(np.abs(d).max()) for d in differences), 3),
        "same_top": round(float(np.mean(same)), 4),
        "rows": sum(len(d) for d in differences),
    }


@contextmanager
def busy(core: int) -> Iterator[None]:
    """Another program that computes on one core all the time."""
    burner = subprocess.Popen(
        [sys.executable, "-c", "while True: pass"], preexec_fn=lambda: os.sched_setaffinity(0, [core])
    )
    try:
        yield
    finally:
        burner.kill()
        burner.wait()


async def half_echoes() -> dict[str, Any]:
    """Microseconds of half a round trip over each bare library: the floor of a hop."""
    found = {}
    for library in usable(LIBRARIES):
        async with echo_process("bare", library) as (url, _):
            times = await bare_round_trips(library, url, ECHO_BYTES, ECHO_ROUNDS)
        found[library] = spread([1e6 * seconds / 2 for seconds in times], 1)
    return found


def goals(parts: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Every goal of which something was measured: medians."""
    met: list[dict[str, Any]] = []
    for part, rows in parts.items():
        for row in rows:
            name = f"{part} {row['kernels']} {row['threads']}"
            for figure, least in GOALS.get((part, row["kernels"], row["threads"]), {}).items():
                found = row[figure]["median"]
                met.append({"goal": f"{name} {figure}", "found": found, "at_least": least, "met": found >= least})
            if part == "answers":
                found = row["memory_ratio"]
                met.append({"goal": f"{name} memory", "found": found, "at_most": MEMORY_GOAL,
                            "met": found <= MEMORY_GOAL})  # fmt: skip
    errors = {row["kernels"]: row["logits_rms"] for row in parts.get("error", [])}
    if {"fast-int8", "llama.cpp"} <= errors.keys():
        found, most = errors["fast-int8"], errors["llama.cpp"]
        met.append({"goal": "error fast-int8 logits_rms", "found": found, "at_most": most, "met": found <= most})
    return met


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    options = parser.parse_args()
    bandwidth = read_bandwidth()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        echoes = runner.run(half_echoes())
    bench = Bench(options)
    parts = {name: list(bench.part(name)) for name in options.parts}
    result = {
        "bench": "peers",
        "machine": machine(),
        "gguf": options.gguf.name,
        "read_gb_s": bandwidth,
        "decode_tok_s_at_read_gb_s": round(1e9 * bandwidth["median"] / options.gguf.stat().st_size, 1),
        "half_echo_us": echoes,
        **parts,
        "goals": goals(parts),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
