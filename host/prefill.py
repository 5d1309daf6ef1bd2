"""Prefill: how large the chunks of a prompt are, how many travel at once, and which goes next. Pure.

A whole prompt at once leaves all stations but one idle; single rows pay every call's fixed cost. The sizes come from
the cost model of `docs/plans.md` with measured or estimated costs; they change speed only, never a bit. Every chunk
but the last is answered by an acknowledgement, which is the flow control: at most `in_flight` are unanswered.
"""

from __future__ import annotations

import math

import msgspec

from aeonflow.messages import Route

MAX_CHUNK_ROWS = 512  # a larger chunk gains nothing and its activations are memory at every station
MAX_IN_FLIGHT = 128
MAX_ROWS_IN_FLIGHT = 4096  # rows queued at stations by one prompt, else a long one takes their memory
DECODE_WAIT_S = 0.05  # how long one call may hold up a decode at a station that computes whole passes


class PassCosts(msgspec.Struct, frozen=True):
    """Seconds a pass costs. `fixed_s` and `row_s` are the computes of the whole model, `hop_s` of one crossing."""

    fixed_s: float
    row_s: float
    hop_s: float


class Shape(msgspec.Struct, frozen=True):
    """What of a route matters here: calls of layers a pass makes, stations that make them, one-way crossings.

    `num_hops` 0: all in one process. `cores`: how many all stations share; None where each has its own.
    """

    num_calls: int
    num_stations: int
    num_hops: int
    cores: int | None = None

    @property
    def is_shared(self) -> bool:
        """Is a station visited again and again (trisplit), or once a pass (layers, per layer)?"""
        return self.num_calls > self.num_stations

    @property
    def parallel(self) -> int:
        """How many calls can be computed at the same time."""
        return min(self.num_stations, self.cores or self.num_stations)


class Window(msgspec.Struct, frozen=True):
    """Rows a chunk, chunks unanswered at once."""

    chunk: int
    in_flight: int


def shape_of(route: Route, *, num_hops: int, cores: int | None) -> Shape:
    """The shape of a route; `num_hops` as a pass over it counted them. The ends' stations are left out."""
    layers = [c for c in route.carriers if c.role not in ("embed", "head")]
    calls = sum(1 if c.role == "block" else c.hi - c.lo + 1 for c in layers)
    return Shape(calls, len({c.station for c in layers}), num_hops, cores)


def choose_window(num_rows: int, shape: Shape, costs: PassCosts, *, max_rows: int = MAX_CHUNK_ROWS) -> Window:
    """Chunk c and chunks in flight for a prompt of P rows; o and g are a call's fixed cost and cost a row.

    Stations visited once form a pipeline: with p of its stages computing at a time, c = √(P·o / ((p − 1)·g)).
    Stations visited again and again: one chunk's way, c·(o + c·g + L), equals all chunks' work, P·(o + c·g) / p.
    In flight is what keeps p calls busy: p·(1 + L / (o + c·g)).
    """
    p = shape.parallel
    if shape.num_hops == 0 or p == 1:
        return Window(max(1, min(num_rows, max_rows)), 2)
    o, g, hop = costs.fixed_s / shape.num_calls, costs.row_s / shape.num_calls, costs.hop_s
    if shape.is_shared:
        b = o + hop - num_rows * g / p
        chunk = (-b + math.sqrt(b * b + 4 * g * num_rows * o / p)) / (2 * g)
    else:
        chunk = math.sqrt(num_rows * o / ((p - 1) * g))
    rows = max(1, min(round(chunk), num_rows, max_rows))
    in_flight = min(math.ceil(p * (1 + hop / (o + rows * g))) + 1, MAX_IN_FLIGHT, max(2, MAX_ROWS_IN_FLIGHT // rows))
    return Window(rows, in_flight)


def decode_cap(shape: Shape, costs: PassCosts) -> int:
    """The most rows a chunk may have while another session decodes, so that its tokens keep coming."""
    calls = shape.num_calls if shape.num_hops else 1
    o, g = costs.fixed_s / calls, costs.row_s / calls
    token_s = costs.fixed_s + costs.row_s + shape.num_hops * costs.hop_s
    allowed_s = max(o + 4 * g, 0.1 * token_s / shape.num_hops) if shape.num_hops else DECODE_WAIT_S
    return max(1, min(int((allowed_s - o) / g), MAX_CHUNK_ROWS))


class Prefill:
    """The state of one prompt's prefill: rows [`at`, `end`) are still to be sent, `unanswered` chunks are under way."""

    def __init__(self, first: int, end: int, window: Window) -> None:
        if first >= end:
            raise AssertionError(f"a prefill of no rows: {first} to {end}")
        self.at = first
        self.end = end
        self.window = window
        self.unanswered = 0

    @property
    def is_sent(self) -> bool:
        return self.at == self.end

    def next(self, cap: int | None = None) -> int:
        """Rows of the chunk to send now, at most `cap`; 0 while the window is full or nothing is left."""
        if self.unanswered >= self.window.in_flight:
            return 0
        rows = min(self.window.chunk, self.end - self.at, cap or self.end)
        if rows:
            self.at += rows
            self.unanswered += 1
        return rows

    def answered(self) -> None:
        """The oldest chunk came back."""
        self.unanswered -= 1
