"""How fast passes are here: estimates from the model's size, replaced by what probes and generations took.

Serves the choice of prefill windows only, so a wrong guess costs time and never a token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .card import HostCard
from .prefill import MAX_CHUNK_ROWS, PassCosts, Shape, Window, choose_window, decode_cap

if TYPE_CHECKING:
    from .decode import Decoder

WEIGHT_S = 0.6 / 10e9  # reading a 4- to 5-bit weight once at 10 GB/s: the fixed cost of a pass, whatever its rows
ROW_WEIGHT_S = 2 / 100e9  # multiply and add at 100 GFLOP/s
CALL_S = 50e-6
MIN_HOP_S = 20e-6
MIN_LEARNT_ROWS = 64  # shorter prefills are mostly fixed cost
WEIGHT_OF_NEW = 0.5


class Measured(NamedTuple):
    """A pass that went through: its rows, seconds from end to end, seconds of it that stations computed."""

    rows: int
    seconds: float
    compute_s: float


class Pace:
    """Costs of the passes of one engine over a route of a given shape."""

    def __init__(self, card: HostCard, shape: Shape) -> None:
        self.shape = shape
        fixed_s = card.num_weights * WEIGHT_S + self.shape.num_calls * CALL_S
        self.costs = PassCosts(fixed_s, card.num_weights * ROW_WEIGHT_S, MIN_HOP_S)

    @property
    def token_s(self) -> float:
        """Seconds that one row takes through all stations."""
        return self.costs.fixed_s + self.costs.row_s + self.shape.num_hops * self.costs.hop_s

    def calibrate(self, one: Measured, more: Measured) -> None:
        """Costs from two probes of different numbers of rows; estimates stay where a station did not say its part."""
        if one.compute_s <= 0.0:  # its counters came too late, on a machine under load
            return
        row_s = (more.compute_s - one.compute_s) / (more.rows - one.rows)
        row_s = min(max(row_s, 0.01 * one.compute_s), one.compute_s)  # noise must not make rows free
        hop_s = (one.seconds - one.compute_s) / self.shape.num_hops if self.shape.num_hops else MIN_HOP_S
        self.costs = PassCosts(max(one.compute_s - row_s, row_s), row_s, max(hop_s, MIN_HOP_S))

    def learn(self, decoder: Decoder, *, alone: bool) -> None:
        """A generation is over. Inside one process its prefill tells what a row costs; elsewhere chunks overlap."""
        if not alone or self.shape.num_hops or not decoder.token_ids or decoder.num_prefilled < MIN_LEARNT_ROWS:
            return
        prefill_s = decoder.first_token_s - decoder.started_s
        old = self.costs
        row_s = max(prefill_s - old.fixed_s, 0.1 * prefill_s) / decoder.num_prefilled
        self.costs = PassCosts(old.fixed_s, old.row_s + WEIGHT_OF_NEW * (row_s - old.row_s), old.hop_s)

    def window(self, num_rows: int, chunk: int | None, max_rows: int) -> Window:
        """The window for a prompt; an explicit `chunk` is kept, cut only where a message could not hold it."""
        window = choose_window(num_rows, self.shape, self.costs, max_rows=min(MAX_CHUNK_ROWS, max_rows))
        return window if chunk is None else Window(min(chunk, max_rows), window.in_flight)

    def cap(self) -> int:
        """The most rows of a chunk while another session decodes."""
        return decode_cap(self.shape, self.costs)
