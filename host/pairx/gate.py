"""The gates: what must be shown of coalescing, of residual seeds and of a token's time before they are on by default.

`coalescing` pays at least 1.02 times, else it is switched off. `seeds` of two layers, then of all, are what the chain
delivers within 1e-4 over 20 rounds, else `live` stays closed to a model that was not built for it. `token wall`: with
seeds travelling, a token by the chain takes at most 30 / 35.11 of what it takes by the relay, the earlier deployment's
limit as a share of its baseline.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from statistics import median
from typing import Any, NamedTuple

from ..engine import Engine
from ..errors import HostError
from .gate_file import GATE_VERSION, GateResult, Verdict
from .report import MAX_ABS, load_report

COALESCING_PAYS = 1.02
ROUNDS = 20  # tokens over which seeds are held against the chain
WALL_SHARE = 30.0 / 35.11
PROMPT = "Tell me about the sea and the people who live beside it."
FIRST_LAYERS = 2

Progress = Callable[[str], None]


class Tokens(NamedTuple):
    """One generation: seconds a decoded token, and frames a message on all links so far."""

    token_s: float
    frames_per_message: float


async def run_gates(*, model: str, plan: str, link_delay_ms: float, runs: int, progress: Progress) -> GateResult:
    """Measure all gates on a fleet of `plan`, started anew for each side; sides alternate where they are compared."""
    common: dict[str, Any] = {"model": model, "plan": plan, "link_delay_ms": link_delay_ms}
    progress("coalescing on and off")
    coalescing, fingerprint = await _coalescing(common, runs)
    verdicts = [coalescing]
    for named, layers in (("seeds of 2 layers", await _first_layers(common)), ("seeds of all layers", "all")):
        progress(named)
        verdicts.append(await _seeds(common, named, layers))
    progress("token wall")
    verdicts.append(await _wall(common, runs))
    return GateResult(
        version=GATE_VERSION,
        model=model,
        fingerprint=fingerprint,
        plan=plan,
        verdicts=tuple(verdicts),
        made=datetime.now(UTC).isoformat(timespec="seconds"),
    )


async def _coalescing(common: dict[str, Any], runs: int) -> tuple[Verdict, str]:
    """Decode rates with frames coalesced over those without, the median of pairs taken in turn."""
    async with Engine.launch(**common, coalesce=True) as on, Engine.launch(**common, coalesce=False) as off:
        pairs = [(await _decode(on), await _decode(off)) for _ in range(runs)]
        ratio = median(without.token_s / with_.token_s for with_, without in pairs)
        frames = pairs[-1][0].frames_per_message
        note = f"{frames:.2f} frames a message with, {pairs[-1][1].frames_per_message:.2f} without"
        passed = ratio >= COALESCING_PAYS
        note += "" if passed else "; it is switched off by default"
        return _verdict("coalescing", ratio, COALESCING_PAYS, passed, note), on.card.fingerprint


async def _first_layers(common: dict[str, Any]) -> str:
    """Two layers to begin with: the least harmed by the probe's report, else the last two."""
    async with Engine.launch(**common) as engine:
        report, last = load_report(engine.card.fingerprint), engine.card.num_layers - 1
    layers = report.ranking[:FIRST_LAYERS] if report is not None else range(max(1, last - FIRST_LAYERS + 1), last + 1)
    return ",".join(map(str, sorted(layers)))


async def _seeds(common: dict[str, Any], named: str, layers: str) -> Verdict:
    """The largest difference between seeds and what the chain delivered, at any of `layers`."""
    async with Engine.launch(**common, pair_x="shadow", pair_x_layers=layers) as engine:
        await _decode(engine, ROUNDS)
        told = (await engine.status())["pair_x"]
    seeded = {layer: told["shadow"].get(str(layer)) for layer in told["layers"]}
    compared = min((found["count"] if found else 0) for found in seeded.values())
    off = {layer: found["max_abs"] for layer, found in seeded.items() if found}
    if not off:
        raise HostError(f"{named}: no layer of {layers} has compared a seed in {ROUNDS} tokens; see aeonflow status")
    worst, best = max(off, key=lambda layer: off[layer]), min(off, key=lambda layer: off[layer])
    alike = sum(value <= MAX_ABS for value in off.values())
    note = (
        f"{alike} of {len(off)} layers alike over {compared} passes; best {off[best]:.4g} at layer {best}, worst at "
        f"layer {worst}"
    )
    return _verdict(named, off[worst], MAX_ABS, off[worst] <= MAX_ABS and compared >= ROUNDS, note)


async def _wall(common: dict[str, Any], runs: int) -> Verdict:
    """Seconds a token by the chain with all seeds travelling, against a share of the relay's."""
    shadow = Engine.launch(**common, pair_x="shadow")
    relay = Engine.launch(**common, route="relay")
    async with shadow as chain, relay as baseline:
        pairs = [(await _decode(chain), await _decode(baseline)) for _ in range(runs)]
    wall = median(one.token_s for one, _ in pairs)
    limit = WALL_SHARE * median(other.token_s for _, other in pairs)
    note = f"by relay {limit / WALL_SHARE * 1e3:.2f} ms, of which {WALL_SHARE:.3f} is the limit"
    return _verdict("token wall", wall, limit, wall <= limit, note)


async def _decode(engine: Engine, tokens: int = ROUNDS) -> Tokens:
    found = await engine.generate(PROMPT, max_tokens=tokens + 1, ignore_eos=True).collect()
    frames = (await engine.status())["frames_per_message"]
    return Tokens(1.0 / found.timings.decode_tok_s, frames)


def _verdict(name: str, measured: float, limit: float, passed: bool, note: str) -> Verdict:
    return Verdict(name=name, measured=measured, limit=limit, passed=passed, note=note)
