"""What a generation gives back: chunks while it runs, one `Result` when it is over.

`Result` holds every field that `aeonflow run --json` prints, under the same names; `to_json` drops what was not
asked for.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

FinishReason = Literal["stop", "length", "cancelled"]


class TokenLogprob(msgspec.Struct, frozen=True):
    """Natural-log probability of the emitted token under the unfiltered softmax, and of the top candidates."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Chunk(msgspec.Struct, frozen=True):
    """A piece of the answer. `text` may be empty while a character or a possible stop string is held back.

    Joined over a generation, `text` is the whole answer and `token_ids` all its tokens; `finish_reason` is set on
    the last chunk only.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    logprobs: tuple[TokenLogprob, ...] = ()


class Usage(msgspec.Struct, frozen=True):
    """Token counts. `cached_tokens` of the prompt were not computed anew: their rows were still in the KV caches."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


class Timings(msgspec.Struct, frozen=True):
    """Seconds from the start of the generation, and rates; 0 where too few tokens were made to tell.

    `decode_tok_s` = (tokens − 1) / (time of the last − time of the first); `prefill_tok_s` = tokens computed in the
    prefill / time to the first token.
    """

    ttft_s: float
    prefill_tok_s: float
    decode_tok_s: float
    total_s: float


class Exactness(msgspec.Struct, frozen=True):
    """`cut`: is the result the same for every plan, chunk, batch? `model`: against the unmodified model?"""

    cut: str
    model: str


class Result(msgspec.Struct, frozen=True):
    """One finished generation. `hops_per_token` counts one-way link crossings on the critical path of a decode pass;
    `bytes_per_token` the bytes of frames that cross links for one decoded token; `kv` how K and V are kept;
    `speculation` what was guessed and how much of it was right (`docs/speculation.md`), empty before anything ran;
    `pair_x` what residual seeds did (`docs/pair-x.md`)."""

    text: str
    token_ids: tuple[int, ...]
    prompt_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    plan: str
    route: str
    kernels: str
    transport: str
    exactness: Exactness
    hops_per_token: int
    bytes_per_token: int
    kv: dict[str, Any]
    speculation: dict[str, Any]
    pair_x: dict[str, Any]
    logits_hash: str | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """A plain dict for `json.dumps`; `logits_hash` and `logprobs` only when they were asked for."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        for name in ("logits_hash", "logprobs"):
            if fields[name] is None:
                del fields[name]
        return fields
