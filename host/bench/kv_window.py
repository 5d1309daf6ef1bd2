"""A whole model whose layers all slide, far into a text: bytes and time of a row must not depend on the position."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from aeonflow.messages import Stats, StatsReply
from aeonflow.tensors import Want

from ..engine import Engine
from ..evaluate.track import MAX_ROWS, Pace, Track, open_track
from ..links import CONTROL_TIMEOUT_S, gather
from ..network import Network
from .kv_way import kv_way
from .measure import machine, spread

WINDOW = 48
POSITIONS = (128, 4096, 32768)
WAYS = ("kv=f32", "kv=q8 exact_recent=0")
GEOMETRY = "layers=8,hidden=256,heads=4,kv_heads=2,ffn=768,vocab=512,seed=7"  # heads of 64 dims
PERIODS = 4  # of a layer's rows, which fall from 2 · window + 1 to window and grow again: decoded at every position
TURN_ROWS = 4  # of a session before it is the next one's turn: other work on the machine hits all alike
SOLO = "solo"


def sliding_model(window: int, positions: Sequence[int]) -> str:
    """A generated model that declares `window` for every layer, with room behind the last of `positions`."""
    context = max(positions) + (PERIODS + 1) * (window + 1)
    return f"synthetic:{GEOMETRY},window={window},full_every=0,context={context}"


async def bench_kv_window(
    ways: Sequence[str] = WAYS,
    *,
    positions: Sequence[int] = POSITIONS,
    window: int = WINDOW,
    model: str | None = None,
    plan: str = SOLO,
    threads: int | None = 1,
    periods: int = PERIODS,
    progress: Callable[[str], None] = lambda said: None,
) -> dict[str, Any]:
    """Of each way a session at each of `positions`, which decode in turn `periods` times the rows between two trims.

    `model` None: `sliding_model`. Positions are beyond 2 · window + 100, where no more is reserved for rows to come.
    """
    spec = model or sliding_model(window, positions)
    rows = periods * (window + 1)
    async with Engine.launch(model=spec, plan=plan, threads=threads) as engine:
        network, vocab_size = engine.network, engine.card.vocab_size
        found = {}
        for way in ways:
            progress(f"{way}: to position {max(positions):,}")
            with ExitStack() as stack:
                runs = []
                for position in positions:
                    run = _Run(network, vocab_size, position)
                    await run.open(way, rows)
                    stack.callback(run.track.abandon)
                    runs.append(run)
                for done in range(0, rows, TURN_ROWS):
                    for run in runs:
                        await run.decode(min(TURN_ROWS, rows - done))
                found[way] = _compared(runs, is_solo=engine.setting.plan == SOLO)
        setting = engine.setting
    return {
        "bench": "kv_window",
        "machine": machine(),
        "model": spec,
        "plan": setting.plan,
        "kernels": setting.kernels,
        "threads": threads,
        "window": window,
        "ways": found,
    }


class _Run:
    """A session at `position`, and what it holds after each row decoded there."""

    track: Track

    def __init__(self, network: Network, vocab_size: int, position: int) -> None:
        self.position = position
        self.reserved_bytes = 0
        self.kv_bytes: list[int] = []
        self.pace = Pace()
        self._held = 0
        self._network = network
        self._vocab_size = vocab_size
        self._at = 0

    async def open(self, way: str, rows: int) -> None:
        """Open it and fill it up to the position."""
        _, before = await _bytes(self._network)
        kv = kv_way(way, self.position)
        self.track = await open_track(self._network, self.position + rows, kv, self.pace)
        self.reserved_bytes = (await _bytes(self._network))[1] - before
        await self._feed(self.position, MAX_ROWS)
        self.pace.row_s.clear()
        self.pace.row_cpu_s.clear()

    async def decode(self, rows: int) -> None:
        for _ in range(rows):
            await self._feed(self._at + 1, 1)
            self.kv_bytes.append(self._held)

    async def _feed(self, upto: int, rows: int) -> None:
        before, _ = await _bytes(self._network)
        while self._at < upto:
            hi = min(self._at + rows, upto)
            ids = [64 + at * 7919 % (self._vocab_size - 64) for at in range(self._at, hi)]
            await self.track.feed(ids, Want.LAST if rows == 1 else Want.NONE)
            self._at = hi
        self._held += (await _bytes(self._network))[0] - before


async def _bytes(network: Network) -> tuple[int, int]:
    """Bytes of KV that the stations hold, and that sessions reserved."""
    replies = await gather([(s, s.ask(Stats())) for s in network.stations], CONTROL_TIMEOUT_S, "stats")
    values = [reply.values for reply in replies if isinstance(reply, StatsReply)]
    return sum(int(v["kv_bytes"]) for v in values), sum(int(v["kv_reserved_bytes"]) for v in values)


def _compared(runs: Sequence[_Run], *, is_solo: bool) -> dict[str, Any]:
    """`to_first`: the time of a row over that at the first position; in solo of processor time, else of the clock."""
    at: list[dict[str, Any]] = []
    for run in runs:
        times, first = ((r.pace.row_cpu_s if is_solo else r.pace.row_s) for r in (run, runs[0]))
        at.append(
            {
                "position": run.position,
                "reserved_bytes": run.reserved_bytes,
                "kv_bytes_least": min(run.kv_bytes),
                "kv_bytes_most": max(run.kv_bytes),
                "row_ms": spread([1e3 * s for s in times]),
                "to_first": round(statistics.median(times) / statistics.median(first), 3),
            }
        )
    sizes = {(run.reserved_bytes, min(run.kv_bytes), max(run.kv_bytes)) for run in runs}
    return {"bytes_are_equal": len(sizes) == 1, "slowest_to_first": max(one["to_first"] for one in at), "at": at}
