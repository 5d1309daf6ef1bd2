"""Decoding at depth: rows a second and bytes of KV of every way to keep it, as the context grows (METHOD.md)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from aeonflow.tensors import Want

from ..engine import Engine
from ..evaluate.track import MAX_ROWS, Pace, Track, kv_bytes, open_track
from .kv_way import kv_way
from .measure import machine, spread

MODES = ("kv=f32", "kv=f16", "kv=q8", "kv=q4")
DEPTHS = (100, 512, 2048, 4000, 8000)
ROWS = 32  # decoded at each depth
SOLO = "solo"
WARM_ROWS = 2  # before them, not counted
TURN_ROWS = 4  # of a session before it is the next one's turn: other work on the machine hits all alike


async def bench_kv_depth(
    ways: Sequence[str] = MODES,
    *,
    depths: Sequence[int] = DEPTHS,
    model: str = "smollm2",
    plan: str = "solo",
    threads: int | None = 1,
    rows: int = ROWS,
    progress: Callable[[str], None] = lambda said: None,
) -> dict[str, Any]:
    """Sessions of all `ways` grow side by side on one engine; at each depth they decode `rows` rows in turn.

    Shares in `ways` (`max_rows=25%`) are of the largest depth. The first way is what others are compared with.
    """
    async with Engine.launch(model=model, plan=plan, threads=threads) as engine:
        with ExitStack() as stack:
            tracks = []
            for way in ways:
                track = await open_track(engine.network, max(depths), kv_way(way, max(depths)), Pace())
                stack.callback(track.abandon)
                tracks.append(track)
            growing = _Growing(engine, tracks)
            measured = []
            for depth in sorted(depths):
                progress(f"depth {depth}")
                measured.append(await growing.at(depth, rows))
        setting = engine.setting
    return {
        "bench": "kv_depth",
        "machine": machine(),
        "model": model,
        "plan": setting.plan,
        "kernels": setting.kernels,
        "threads": threads,
        "rows": rows,
        "depths": sorted(depths),
        "ways": {way: _column(index, measured, is_solo=setting.plan == SOLO) for index, way in enumerate(ways)},
    }


class _AtDepth(NamedTuple):
    """Row times (seconds, and of processor time) and bytes, of every way at one depth."""

    row_s: list[list[float]]
    row_cpu_s: list[list[float]]
    num_bytes: list[int]


class _Growing:
    """Sessions that hold the same rows; `num_bytes` of KV each."""

    def __init__(self, engine: Engine, tracks: Sequence[Track]) -> None:
        self._network = engine.network
        self._vocab_size = engine.card.vocab_size
        self._tracks = tracks
        self._num_bytes = [0 for _ in tracks]
        self._held = 0

    async def at(self, depth: int, rows: int) -> _AtDepth:
        """Grow to `depth` rows, the last `rows` of them one at a time."""
        prefilled = max(self._held, depth - rows - WARM_ROWS)
        await self._grow(self._held, prefilled, MAX_ROWS)
        for lo in range(prefilled, depth, TURN_ROWS):
            await self._grow(lo, min(lo + TURN_ROWS, depth), 1)
        self._held = depth
        paces = [track.pace for track in self._tracks]
        return _AtDepth([p.row_s[-rows:] for p in paces], [p.row_cpu_s[-rows:] for p in paces], list(self._num_bytes))

    async def _grow(self, lo: int, hi: int, rows: int) -> None:
        """Every session in turn, `rows` a pass; what all of them hold more afterwards is what this one took."""
        for index, track in enumerate(self._tracks):
            before = await kv_bytes(self._network)
            for at in range(lo, hi, rows):
                await track.feed(self._ids(at, min(at + rows, hi)), Want.LAST if rows == 1 else Want.NONE)
            self._num_bytes[index] += await kv_bytes(self._network) - before

    def _ids(self, lo: int, hi: int) -> list[int]:
        """Spread over the vocabulary; special tokens come first in it."""
        first = min(64, self._vocab_size // 2)
        return [first + position * 7919 % (self._vocab_size - first) for position in range(lo, hi)]


def _column(way: int, measured: Sequence[_AtDepth], *, is_solo: bool) -> list[dict[str, Any]]:
    """One way at every depth. `to_shallow`: rate over that at the least depth; `to_first`: over the first way's.

    In solo all of it is this process: ratios are of processor time, which other work on the machine hardly changes.
    """
    column = []
    for at in measured:
        times = at.row_cpu_s if is_solo else at.row_s
        shallow = (measured[0].row_cpu_s if is_solo else measured[0].row_s)[way]
        median_s = statistics.median(times[way])
        column.append(
            {
                "decode_tok_s": spread([1 / seconds for seconds in at.row_s[way]]),
                "decode_cpu_tok_s": spread([1 / seconds for seconds in times[way]]) if is_solo else None,
                "to_shallow": round(statistics.median(shallow) / median_s, 3),
                "to_first": round(statistics.median(times[0]) / median_s, 3),
                "kv_bytes": at.num_bytes[way],
            }
        )
    return column
