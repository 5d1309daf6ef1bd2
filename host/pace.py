"""How fast passes are here: estimates from the model's size, corrected by what probes and generations took.

Serves the choice of prefill windows only, so a wrong guess costs time and never a token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aeonflow.messages import Route

from .card import HostCard
from .prefill import MAX_CHUNK_ROWS, PassCosts, Window, choose_window, decode_cap, shape_of

if TYPE_CHECKING:
    from .decode import Decoder
    from .status import ProbeResult

WEIGHT_S = 0.6 / 10e9  # reading a 4- to 5-bit weight once at 10 GB/s: the fixed cost of a pass, whatever its rows
ROW_WEIGHT_S = 2 / 100e9  # multiply and add at 100 GFLOP/s
CALL_S = 50e-6
MIN_HOP_S = 20e-6
MIN_LEARNT_ROWS = 64  # shorter prefills are mostly fixed cost
MIN_LEARNT_TOKENS = 8
WEIGHT_OF_NEW = 0.5


class Pace:
    """Costs of the passes of one engine. `alone` generations teach it; those in company would teach too much."""

    def __init__(self, card: HostCard, route: Route, *, is_remote: bool) -> None:
        self.shape = shape_of(route, is_remote=is_remote)
        fixed_s = card.num_weights * WEIGHT_S + self.shape.num_calls * CALL_S
        self.costs = PassCosts(fixed_s, card.num_weights * ROW_WEIGHT_S, MIN_HOP_S)

    def probed(self, probe: ProbeResult) -> None:
        """A single row went through in `probe.seconds`."""
        self._learn_token(probe.seconds)

    def learn(self, decoder: Decoder, *, alone: bool) -> None:
        """A generation is over."""
        if not alone or not decoder.token_ids:
            return
        prefill_s = decoder.first_token_s - decoder.started_s
        if not self.shape.num_hops and decoder.num_prefilled >= MIN_LEARNT_ROWS:
            row_s = max(prefill_s - self.costs.fixed_s, 0.1 * prefill_s) / decoder.num_prefilled
            self._set(row_s=self.costs.row_s + WEIGHT_OF_NEW * (row_s - self.costs.row_s))
        steps = len(decoder.token_ids) - 1
        if steps >= MIN_LEARNT_TOKENS:
            self._learn_token((decoder.last_token_s - decoder.first_token_s) / steps)

    def window(self, num_rows: int, chunk: int | None, max_rows: int) -> Window:
        """The window for a prompt; an explicit `chunk` is kept, cut only where a message could not hold it."""
        limit = min(MAX_CHUNK_ROWS, max_rows)
        window = choose_window(num_rows, self.shape, self.costs, max_rows=limit)
        return window if chunk is None else Window(min(chunk, max_rows), window.in_flight)

    def cap(self) -> int:
        """The most rows of a chunk while another session decodes."""
        return decode_cap(self.shape, self.costs)

    def _learn_token(self, token_s: float) -> None:
        if self.shape.num_hops:
            hop_s = (token_s - self.costs.fixed_s - self.costs.row_s) / self.shape.num_hops
            self._set(hop_s=max(MIN_HOP_S, hop_s))

    def _set(self, row_s: float | None = None, hop_s: float | None = None) -> None:
        old = self.costs
        self.costs = PassCosts(old.fixed_s, row_s or old.row_s, hop_s or old.hop_s)
