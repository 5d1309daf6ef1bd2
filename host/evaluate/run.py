"""An evaluation: windows of text fed to sessions in lock step, one with the exact cache, the others with options.

Logits are compared as they come and never stored: at most `MAX_LOGITS` of a session are held. The last rows of a
window go one at a time, as decoding would send them: their times are the decode rate at that depth, their logits the
same as those of any other pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from aeonflow.kv_options import KvOptions
from aeonflow.tensors import Want

from ..engine import Engine
from ..errors import InvalidRequestError
from .report import Difference, Evaluation, Rows, Side, difference, evaluation, side
from .score import Baseline, Comparison
from .track import MAX_ROWS, Pace, Track, open_track
from .windows import Window, check_context, windows_of

MAX_LOGITS = 2 << 20  # 8 MiB of f32 a pass; some copies are made of them
DECODE_ROWS = 32

Progress = Callable[[int, int], None]  # rows fed, rows in all


def texts_to_windows(texts: Sequence[Sequence[int]], context: int, context_length: int) -> list[Window]:
    """The windows of all texts. InvalidRequestError for a context the model has not, or texts too short for any."""
    check_context(context, context_length)
    windows = [window for text in texts for window in windows_of(text, context)]
    if not windows:
        longest = max(map(len, texts), default=0)
        raise InvalidRequestError(f"the longest text has {longest} tokens: too few for a context of {context}")
    return windows


class Measured(NamedTuple):
    """What sessions in lock step scored over `windows`; the one that others are compared with comes first."""

    windows: Sequence[Window]
    sides: list[Side]
    rows: list[Rows]

    def evaluations(self) -> list[Evaluation]:
        """One for each option beside the first session."""
        first, exact = self.rows[0], self.sides[0]
        pairs = zip(self.rows[1:], self.sides[1:], strict=True)
        return [evaluation(self.windows, rows, first, side, exact) for rows, side in pairs]

    def difference(self, one: int, other: int) -> Difference | None:
        """How options `one` and `other`, counted from 1, differ over the same tokens."""
        return difference(self.windows, self.rows[one], self.rows[other])


async def evaluate(
    engine: Engine,
    windows: Sequence[Window],
    options: Sequence[KvOptions],
    *,
    against: KvOptions | None = None,
    baseline: Engine | None = None,
    progress: Progress = lambda done, total: None,
) -> list[Evaluation]:
    """One evaluation for each of `options` beside `against` (None: the exact cache), over `windows`.

    All sessions are on `engine`, but for the one they are compared with, which is on `baseline` where that is given:
    the same model on other kernels. The engines' own KV options do not matter; they must have nothing else to do.
    Raises what stations say: options they refuse, a lost station.
    """
    kinds = (against or KvOptions(), *options)
    measured = await measure(engine, windows, kinds, progress=progress, baseline=baseline)
    return measured.evaluations()


async def measure(
    engine: Engine,
    windows: Sequence[Window],
    kinds: Sequence[KvOptions],
    *,
    progress: Progress,
    baseline: Engine | None = None,
) -> Measured:
    """Sessions of `kinds` in lock step, compared with the first of them; otherwise as `evaluate`."""
    run = _Run([baseline or engine, *[engine] * (len(kinds) - 1)], windows, kinds, progress)
    for window in windows:
        await run.window(window)
    columns = zip(kinds, run.rows, run.kv_bytes, run.paces, strict=True)
    sides = [side(kv.shown(), windows, rows, num_bytes, pace) for kv, rows, num_bytes, pace in columns]
    return Measured(windows, sides, run.rows)


class _Run:
    """`rows`, `kv_bytes` and `paces` by session, the exact one first."""

    def __init__(
        self, engines: Sequence[Engine], windows: Sequence[Window], kinds: Sequence[KvOptions], progress: Progress
    ) -> None:
        self.rows = [Rows() for _ in kinds]
        self.kv_bytes = [0 for _ in kinds]
        self.paces = [Pace() for _ in kinds]
        self._networks = [engine.network for engine in engines]
        self._chunk = max(2, min(MAX_ROWS, MAX_LOGITS // engines[0].card.vocab_size))
        self._kinds = kinds
        self._progress = progress
        self._total = sum(window.num_rows for window in windows) * len(kinds)
        self._done = 0

    async def window(self, window: Window) -> None:
        """Feed one window to fresh sessions, all of them in step."""
        with ExitStack() as stack:
            tracks: list[Track] = []
            for network, kv, pace in zip(self._networks, self._kinds, self.paces, strict=True):
                tracks.append(await open_track(network, window.num_rows, kv, pace))
                stack.callback(tracks[-1].abandon)
            first, singles = window.first_scored, max(window.first_scored, window.num_rows - DECODE_ROWS)
            for lo, hi in _chunks(0, first, MAX_ROWS):
                for track in tracks:
                    await self._feed(track, window, lo, hi, Want.NONE)
            for lo, hi in (*_chunks(first, singles, self._chunk), *_chunks(singles, window.num_rows, 1)):
                await self._compare(tracks, window, lo, hi)
            for rows in self.rows:
                rows.end_window()
            self.kv_bytes = [await track.close() for track in tracks]

    async def _compare(self, tracks: Sequence[Track], window: Window, lo: int, hi: int) -> None:
        exact = await self._feed(tracks[0], window, lo, hi, Want.ALL)
        baseline = Baseline(exact, window.targets(lo, hi))
        self.rows[0].add(Comparison(baseline.nll, 0 * baseline.nll, 0 * baseline.nll + 1, 0 * baseline.nll))
        for track, rows in zip(tracks[1:], self.rows[1:], strict=True):
            rows.add(baseline.compare(await self._feed(track, window, lo, hi, Want.ALL)))

    async def _feed(self, track: Track, window: Window, lo: int, hi: int, want: Want) -> Any:
        logits = await track.feed(window.ids[lo:hi], want)
        self._done += hi - lo
        self._progress(self._done, self._total)
        return logits


def _chunks(lo: int, hi: int, size: int) -> list[tuple[int, int]]:
    return [(at, min(at + size, hi)) for at in range(lo, hi, size)]
