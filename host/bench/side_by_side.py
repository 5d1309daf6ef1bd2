"""Two programs that answer the same prompts, in turn: tokens a second, their ratio, memory; and how fast memory is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

import msgspec
import numpy as np

from .measure import spread

READ_BYTES = 256 << 20  # beyond every cache
READ_RUNS = 5


class Answered(msgspec.Struct, frozen=True):
    """One answer of a child: seconds to the first token, from there to the last, the tokens, memory so far.

    `…_cpu_s`: seconds of processor that the child used meanwhile, on all its threads.
    """

    prefill_s: float
    decode_s: float
    prefill_cpu_s: float
    decode_cpu_s: float
    token_ids: tuple[int, ...]
    peak_rss_bytes: int


class Child:
    """A program that takes a setting and then prompts on stdin, as JSON lines, and answers in kind.

    `cores`: where it may run; empty: everywhere. `environment`: beside this process' own. Use as a context; leaving
    ends it.
    """

    def __init__(
        self,
        command: Sequence[str],
        setting: dict[str, Any],
        cores: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._command = list(command)
        self._setting = setting
        self._cores = set(cores)
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[str] | None = None
        self.about: dict[str, Any] = {}

    def __enter__(self) -> Self:
        pinned = (lambda: os.sched_setaffinity(0, self._cores)) if self._cores else None
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=pinned,
            env=self._environment,
        )
        try:
            self.about = self.ask(self._setting)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def answer(self, prompt: Sequence[int], new_tokens: int) -> Answered:
        """One answer. Raises RuntimeError when the child has ended."""
        return msgspec.convert(self.ask({"prompt": list(prompt), "new_tokens": new_tokens}), Answered)

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """The child's reply to a question it knows. Raises RuntimeError when the child has ended."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"{' '.join(self._command)} ended with status {process.wait()} before it answered")
        reply: dict[str, Any] = json.loads(line)
        return reply


def own_command() -> list[str]:
    """The child that runs aeonflow in solo."""
    return [sys.executable, "-m", "host.bench.solo_child"]


def compare(ours: Child, theirs: Child, prompt: Sequence[int], new_tokens: int, runs: int) -> dict[str, Any]:
    """`runs` answers of each in turn, the first of a pair alternating, after one of each to warm up.

    Ratios are ours / theirs of rates, over pairs; above 1 ours is faster. `…_cpu_ratio`: theirs / ours of the processor
    time of the fastest runs, which other work on the machine lengthens less. `memory_ratio`: of peaks, ours / theirs.
    """
    ours.answer(prompt, new_tokens)
    theirs.answer(prompt, new_tokens)
    own: list[Answered] = []
    peer: list[Answered] = []
    for run in range(runs):
        sides = [(ours, own), (theirs, peer)]
        for child, taken in sides if run % 2 == 0 else reversed(sides):
            taken.append(child.answer(prompt, new_tokens))
    rows, steps = len(prompt), new_tokens - 1
    pairs = list(zip(own, peer, strict=True))
    return {
        "ours": _rates(own, rows, steps),
        "theirs": _rates(peer, rows, steps),
        "prefill_ratio": spread([b.prefill_s / a.prefill_s for a, b in pairs]),
        "decode_ratio": spread([b.decode_s / a.decode_s for a, b in pairs]),
        "prefill_ratio_of_best": round(min(b.prefill_s for b in peer) / min(a.prefill_s for a in own), 2),
        "decode_ratio_of_best": round(min(b.decode_s for b in peer) / min(a.decode_s for a in own), 2),
        "prefill_cpu_ratio": round(min(b.prefill_cpu_s for b in peer) / min(a.prefill_cpu_s for a in own), 2),
        "decode_cpu_ratio": round(min(b.decode_cpu_s for b in peer) / min(a.decode_cpu_s for a in own), 2),
        "memory_ratio": round(own[-1].peak_rss_bytes / max(1, peer[-1].peak_rss_bytes), 2),
        "equal_tokens": _common(own[0].token_ids, peer[0].token_ids),
    }


def read_bandwidth() -> dict[str, float]:
    """GB/s at which one thread of numpy reads memory that is in no cache."""
    block = np.ones(READ_BYTES // 4, np.float32)
    rates = []
    for _ in range(READ_RUNS):
        began = time.perf_counter()
        np.dot(block, block)
        rates.append(READ_BYTES / (time.perf_counter() - began) / 1e9)
    return spread(rates)


def _rates(answers: Sequence[Answered], rows: int, steps: int) -> dict[str, Any]:
    return {
        "prefill_tok_s": spread([rows / one.prefill_s for one in answers]),
        "decode_tok_s": spread([steps / one.decode_s for one in answers]),
        "peak_rss_bytes": answers[-1].peak_rss_bytes,
    }


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens both agree on before they part."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
