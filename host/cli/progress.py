"""What one sees on stderr while stations start, and the one line at the end."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator

from host.fleet.state import cache_root
from host.result import Result

from .cache import human_bytes
from .output import note

PATIENCE_S = 8.0  # ordinary starts take one to three seconds
TICK_S = 5.0  # between lines of progress where nothing can be redrawn
STILL_STARTING = "still starting"
STILL_COMPILING = "still starting; kernels that are not compiled yet take a minute, once"
COMPILED = "jit/*/*.o"  # below the cache folder: a file a kernel, written as soon as it is compiled


@contextlib.contextmanager
def starting(what: str, *, may_compile: bool) -> Iterator[None]:
    """A spinner on a terminal while the block runs; says how long it took, and why when that is long."""
    started = time.monotonic()
    before = num_compiled() if may_compile else 0

    def still() -> None:
        note(STILL_COMPILING if may_compile and (not before or num_compiled() > before) else STILL_STARTING)

    patience = threading.Timer(PATIENCE_S, still)
    patience.start()
    try:
        if sys.stderr.isatty():
            from rich.console import Console

            with Console(stderr=True).status(f"starting {what}"):
                yield
        else:
            yield
    finally:
        patience.cancel()
    note(f"{what} is ready after {time.monotonic() - started:.1f} s")


def num_compiled() -> int:
    """How many kernels lie compiled in the cache."""
    return sum(1 for _ in cache_root(os.environ).glob(COMPILED))


class Ticker:
    """Counts of long work on stderr where it is no terminal: a line every few seconds, with what it will still take."""

    def __init__(
        self,
        what: str,
        amount: Callable[[int, int], str] = lambda done, total: f"{done:,} of {total:,}",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._amount = amount
        self._clock = clock
        self._began = self._told = clock()

    def __call__(self, done: int, total: int) -> None:
        now = self._clock()
        if now - self._told < TICK_S:
            return
        self._told = now
        took_s = now - self._began
        left = f", about {took_s * (total - done) / done:.0f} s more" if 0 < done < total else ""
        note(f"{self._what}: {self._amount(done, total)} after {took_s:.0f} s{left}")


def summary(result: Result) -> str:
    """One line about an answer: counts, rates, how it was run, and what that means for its exactness."""
    timings, usage = result.timings, result.usage
    parts = [f"{usage.completion_tokens} tokens ({result.finish_reason}) in {timings.total_s:.2f} s"]
    parts.append(f"first after {timings.ttft_s:.2f} s")
    prompt = f"prompt {usage.prompt_tokens}"
    if usage.cached_tokens:
        prompt += f" ({usage.cached_tokens} from cache)"
    parts.append(f"{prompt} at {timings.prefill_tok_s:.0f} tok/s")
    parts.append(f"decode {timings.decode_tok_s:.1f} tok/s")
    parts.append(f"{result.plan}, {result.route}, {result.kernels}, {result.transport}")
    if result.speculation.get("drafted"):
        parts.append(f"{result.speculation['tokens_per_pass']:.2f} tokens a pass")
    if why := result.pair_x.get("degraded"):
        parts.append(f"residual seeds failed, the plain chain went on ({why})")
    parts.append(f"{result.hops_per_token} hops and {human_bytes(result.bytes_per_token)} a token")
    parts.append(f"cut {result.exactness.cut}, model {result.exactness.model}")
    if result.logits_hash is not None:
        parts.append(f"logits {result.logits_hash}")
    return " · ".join(parts)
