"""What a station accepts, in bytes, rows and counts; every queue and table of the core has its bound here."""

from __future__ import annotations

import msgspec

from aeonflow.messages import Limits
from aeonflow.tensors import MAX_TENSORS, PREFIX_BYTES

from ..models.card import ModelCard

MIB = 1 << 20
MAX_PASS_ROWS = 2048  # rows of one pass; longer prompts are chunked, which is faster everywhere
MESSAGE_BUDGET_BYTES = 64 * MIB  # wide models take fewer rows, so that a message stays below this
MIN_MESSAGE_BYTES = 4 * MIB + 4096  # the widest control and weight replies


class StationLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one station. The policy when one is reached is an OverloadedError to the host, with the numbers."""

    max_message_bytes: int  # one assembled message
    max_rows: int  # rows of one pass
    kv_budget_bytes: int  # what open sessions may reserve together
    max_sessions: int = 4096
    max_routes: int = 256  # a host; beyond it the oldest that no session uses is forgotten
    max_queued_jobs: int = 4096
    max_queued_bytes: int = 512 * MIB  # rows that wait for compute, half-filled joins included
    max_seed_slots: int = 1024  # a session; lost seeds would fill it, so slots expire too
    max_joins: int = 1024  # a session; a prefill has two a chunk in flight and layer
    max_decode_rows: int = 16  # a pass with more rows waits as a prefill chunk
    max_batch_rows: int = 512  # decode rows that share a call; a prefill chunk may come on top
    max_passed_over: int = 8  # batches that may go before a waiting prefill chunk

    def announced(self) -> Limits:
        """The part that a peer must know, as it stands in hello."""
        return Limits(self.max_message_bytes, max_sessions=self.max_sessions, max_rows=self.max_rows)


def limits_for(card: ModelCard, kv_budget_bytes: int) -> StationLimits:
    """Limits from the model's geometry: rows of a pass × the widest input, h beside u at split-c."""
    row_bytes = 4 * max(card.hidden_size + card.ffn_size, 2 * card.hidden_size)
    head_bytes = MAX_TENSORS * PREFIX_BYTES
    max_rows = max(1, min(card.context_length, MAX_PASS_ROWS, (MESSAGE_BUDGET_BYTES - head_bytes) // row_bytes))
    # One row of logits must fit, whatever the vocabulary.
    widest = max(max_rows * row_bytes, 4 * card.vocab_size) + head_bytes
    return StationLimits(
        max_message_bytes=max(widest, MIN_MESSAGE_BYTES), max_rows=max_rows, kv_budget_bytes=kv_budget_bytes
    )
