"""`bench hop`: what one hop of a chain costs, beside half a bare echo of the same bytes over the same library.

A chain hop is measured on real stations: (time of a decoded token on the chain - the computes of that token, as the
stations count them) / hops. The model is generated: its rows are as wide as wanted and its computes small.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import msgspec

from aeonflow import Link, connect
from aeonflow.frames import HEADER_BYTES
from aeonflow.tensors import PREFIX_BYTES

from ..engine import Engine
from .delayed import bench_delayed
from .echo import LIBRARIES, bare_round_trips, echo_process, hello, link_round_trips, usable
from .measure import machine, spread
from .rows import computed

HIDDEN, FFN = 576, 256
MODEL = f"synthetic:layers=30,hidden={HIDDEN},heads=1,kv_heads=1,head_dim=64,ffn={FFN},vocab=512,context=512,seed=1"
ROW_BYTES = 4 * (2 * HIDDEN + FFN) // 3  # mean of x, n and u, which a token's longest path carries in turn
PROMPT = (8,)  # one row, so that every pass of an answer costs the same
TOKENS = 40
ROUNDS = 400


async def bench_hop(
    *,
    libraries: Sequence[str] = LIBRARIES,
    runs: int = 5,
    model: str = MODEL,
    plan: str = "trisplit",
    kernels: str = "fast",
    row_bytes: int = ROW_BYTES,
    link_delay_ms: float | None = None,
) -> dict[str, Any]:
    """Microseconds of a chain hop, a link hop and half a bare echo, for each library; runs alternate.

    `link_delay_ms`: instead, what a token takes over links with that delay (`delayed.py`).
    `row_bytes`: mean data of the rows on a token's longest path; the echo carries as much with the same prefixes.
    """
    results: dict[str, Any] = {}
    for library in usable(libraries):
        if link_delay_ms is None:
            results[library] = await _one_library(library, runs, model, plan, kernels, row_bytes)
        else:
            results[library] = await bench_delayed(
                link_delay_ms=link_delay_ms, model=model, plan=plan, kernels=kernels, transport=library
            )
    return {
        "bench": "hop",
        "machine": machine(),
        "model": model,
        "plan": plan,
        "kernels": kernels,
        "frame_bytes": HEADER_BYTES + PREFIX_BYTES + row_bytes,
        "libraries": results,
    }


async def _one_library(library: str, runs: int, model: str, plan: str, kernels: str, row_bytes: int) -> dict[str, Any]:
    payload = PREFIX_BYTES + row_bytes
    bare: list[float] = []
    link_hop: list[float] = []
    tokens: list[Token] = []
    async with (
        echo_process("bare", library) as (bare_url, _),
        echo_process("link", library) as (link_url, token),
        Engine.launch(model=model, plan=plan, kernels=kernels, transport=library, threads=1) as engine,
    ):
        link: Link = await connect(link_url, hello=hello("bench"), token=token, transport=library)
        try:
            await _token(engine)
            for _ in range(runs):
                bare.append(_half(await bare_round_trips(library, bare_url, HEADER_BYTES + payload, ROUNDS)))
                link_hop.append(_half(await link_round_trips(link, payload, ROUNDS)))
                tokens.append(await _token(engine))
        finally:
            await link.close()
    hop = [one.hop_s for one in tokens]
    half_echo, chain_hop = statistics.median(bare), statistics.median(hop)
    return {
        "half_echo_us": _us(bare),
        "link_hop_us": _us(link_hop),
        "chain_hop_us": _us(hop),
        "token_us": _us([one.seconds for one in tokens]),
        "computes_us": _us([one.compute_s for one in tokens]),
        "hops_per_token": tokens[-1].hops,
        "chain_hop_over_half_echo": round(chain_hop / half_echo, 2),
        "chain_hop_above_half_echo_us": round(1e6 * (chain_hop - half_echo), 1),
        "link_hop_over_half_echo": round(statistics.median(link_hop) / half_echo, 2),
    }


class Token(msgspec.Struct, frozen=True):
    """A decoded token: seconds it took, of which stations computed `compute_s`, and its hops."""

    seconds: float
    compute_s: float
    hops: int

    @property
    def hop_s(self) -> float:
        return (self.seconds - self.compute_s) / self.hops


async def _token(engine: Engine) -> Token:
    """The mean token of one answer; one session alone, so no station computes beside another."""
    before = await computed(engine)
    result = await engine.generate(PROMPT, max_tokens=TOKENS, ignore_eos=True).collect()
    after = await computed(engine)
    per_row = (after.seconds - before.seconds) / (after.rows - before.rows)
    return Token(1 / result.timings.decode_tok_s, per_row, result.hops_per_token)


def _half(round_trips: Sequence[float]) -> float:
    return statistics.median(round_trips) / 2


def _us(seconds: Sequence[float]) -> dict[str, float]:
    return spread([1e6 * value for value in seconds], 1)
