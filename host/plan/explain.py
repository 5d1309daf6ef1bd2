"""What every option does to exactness, in two answers.

`cut`: is the result the same for every plan, chunk size, batch and transport? `model`: how does it stand to the
unmodified model as imported? The table is what `aeonflow explain` prints; `exactness` folds it for a set of options.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from ..errors import InvalidRequestError, UnsupportedOptionError
from ..result import Exactness

CUT_LEVELS = ("exact", "bounded")
MODEL_LEVELS = ("exact", "certified", "bounded", "approximate")  # falling in what they promise
ANY = "*"  # a row for every value of its option


class Effect(msgspec.Struct, frozen=True):
    """One option value: what it does, to both kinds of exactness; `refusal`: why this version refuses it, or empty."""

    option: str
    value: str
    cut: str
    model: str
    note: str
    refusal: str = ""

    @property
    def is_built(self) -> bool:
        return not self.refusal


_MIXED = "stations whose numerics ids differ compute other last bits: logits agree to about 1e-5 of the row's maximum"

TABLE: tuple[Effect, ...] = (
    Effect("plan", "ffslice", "exact", "exact", "a slice of the ffn width is a whole branch of down's fixed sum"),
    Effect("plan", ANY, "exact", "exact", "cuts fall between whole sums, so every plan computes the same bits"),
    Effect("route", "chain", "exact", "exact", "stations forward to each other"),
    Effect("route", "relay", "exact", "exact", "every hop goes through the host: the same calls, slower"),
    Effect("kernels", "fast", "exact", "exact", "weights as imported, f32 arithmetic in one fixed order"),
    Effect("kernels", "fast-int8", "exact", "bounded", "activations in 8 bits a block of 32; integer sums, exact"),
    Effect("kernels", "reference", "bounded", "exact", "numpy sums in its own order: logits within 1e-3 of fast's"),
    Effect("threads", ANY, "exact", "exact", "threads share out rows of weights, never a sum"),
    Effect("prefill_chunk", ANY, "exact", "exact", "a row's result does not depend on the rows beside it"),
    Effect("transport", ANY, "exact", "exact", "the same bytes on every transport"),
    Effect("link_delay_ms", ANY, "exact", "exact", "frames arrive later, unchanged and in order"),
    Effect("coalesce", "on", "exact", "exact", "frames share a WebSocket message, unchanged and in order"),
    Effect("coalesce", "off", "exact", "exact", "one WebSocket message a frame"),
    Effect("kv", "f32", "exact", "exact", "keys and values are kept as computed"),
    Effect("kv", "f16", "exact", "bounded", "rounded to f16 as they are stored, arithmetic in f32; half the bytes"),
    Effect("kv", "q8", "exact", "certified", "K and V in 8 bits but for the newest rows; 29 % of f32's bytes at 4,000"),
    Effect("kv", "q8k", "exact", "certified", "K in 8 bits but for the newest rows, V as computed"),
    Effect("kv", "q8v", "exact", "certified", "V in 8 bits but for the newest rows, K as computed"),
    Effect("kv", "q4", "exact", "certified", "old rows in 4 bits, coded in groups of 32; 17 % of f32's bytes at 4,000"),
    Effect("kv_max", ANY, "exact", "approximate", "at so many rows a quarter leaves: lost context, look at recall"),
    Effect("kv_evict", "born", "exact", "approximate", "what attention has read most stays, with sinks and the newest"),
    Effect("kv_evict", "recent", "exact", "approximate", "the newest stay, and the sinks"),
    Effect("kv_sink", ANY, "exact", "approximate", "first rows that never leave"),
    Effect("o1", "certified", "exact", "certified", "landmarks, shown on this model to beat a window of equal bytes"),
    Effect("o1", ANY, "exact", "approximate", "landmarks for old rows; by a report of eval --o1, or --approximate"),
    Effect("window", ANY, "exact", "approximate", "a query sees the newest rows only, older ones are dropped"),
    Effect("kv_exact_recent", "0", "exact", "approximate", "no exact rows beside coded ones: q8's KL grows with depth"),
    Effect("kv_exact_recent", "few", "exact", "approximate", "fewer exact rows than were measured (32, q4 64)"),
    Effect("kv_exact_recent", ANY, "exact", "exact", "with coded modes only: newest rows kept exact (32, q4 64)"),
    Effect("pair_x", "off", "exact", "exact", "no residual seeds"),
    Effect("pair_x", "shadow", "exact", "exact", "seeds travel and are compared, never used"),
    Effect("pair_x", "bypass", "exact", "exact", "h goes to the next layer directly, one add moves with it"),
    Effect("pair_x", "draft", "exact", "exact", "the seeded pass drafts, the canonical pass decides"),
    Effect("pair_x", "live", "exact", "approximate", "another model, unless the card says it was built so"),
    Effect("speculate", "off", "exact", "exact", "one row a pass"),
    Effect("speculate", "lookup", "exact", "exact", "drafts are accepted only where plain decoding agrees"),
    Effect(
        "speculate",
        "pairz",
        "exact",
        "exact",
        "drafts are accepted only where plain decoding agrees",
        "early logits are right too rarely to beat prompt lookup: `aeonflow bench pairz` measures it",
    ),
    Effect("speculate", "model", "exact", "exact", "drafts are accepted only where plain decoding agrees"),
    Effect("speculate", "auto", "exact", "exact", "drafts are accepted only where plain decoding agrees"),
    Effect("volumes", "off", "exact", "exact", "every prompt is computed"),
    Effect("volumes", "on", "exact", "exact", "rows of a common prefix are kept, bit for bit", "not supported yet"),
    Effect("temperature", ANY, "exact", "exact", "0: the likeliest token, the lowest id of equals; else sampled"),
    Effect("top_k", ANY, "exact", "exact", "a filter on exact logits, ties settled by token id"),
    Effect("top_p", ANY, "exact", "exact", "a filter on exact logits, ties settled by token id"),
    Effect("min_p", ANY, "exact", "exact", "a filter on exact logits, ties settled by token id"),
    Effect("seed", ANY, "exact", "exact", "noise is a function of seed, position and token"),
    Effect("logprobs", ANY, "exact", "exact", "reported, never fed back"),
    Effect("stop", ANY, "exact", "exact", "ends the answer, changes no token before"),
    Effect("max_tokens", ANY, "exact", "exact", "ends the answer, changes no token before"),
    Effect("ignore_eos", ANY, "exact", "exact", "lets the answer go on, changes no token before"),
    Effect("raw", ANY, "exact", "exact", "chooses the prompt's text"),
    Effect("logits_hash", ANY, "exact", "exact", "reported, never fed back"),
)

_WITH_ARGUMENT = {("plan", "ffslice"): "K", ("speculate", "model"): "NAME"}  # what follows a value and `:`

_BY_OPTION: dict[str, tuple[Effect, ...]] = {}
for _effect in TABLE:
    _BY_OPTION[_effect.option] = (*_BY_OPTION.get(_effect.option, ()), _effect)


def effect_of(option: str, value: object) -> Effect:
    """The table's row for one option value (`--prefill-chunk` or `prefill_chunk`; True and False read on and off).

    Raises InvalidRequestError for an unknown option or value, UnsupportedOptionError for one that is not built yet.
    """
    name = option.removeprefix("--").replace("-", "_")
    rows = _BY_OPTION.get(name)
    if rows is None:
        raise InvalidRequestError(f"option {option!r} is unknown; options are {', '.join(_BY_OPTION)}")
    text = _value_text(value)
    for row in rows:
        is_meant = (name, row.value) in _WITH_ARGUMENT and text.startswith(f"{row.value}:")
        if is_meant or row.value in (ANY, text):
            if not row.is_built:
                built = ", ".join(_shown(r) for r in rows if r.is_built)
                raise UnsupportedOptionError(f"{name} {text}: {row.refusal}; supported is {built}")
            return row
    allowed = ", ".join(_shown(r) for r in rows if r.is_built)
    raise InvalidRequestError(f"{name} {text!r}: allowed is {allowed}")


def explain(options: Mapping[str, object]) -> list[Effect]:
    """One row for each option given, in the order given; None means "not given"."""
    return [effect_of(option, value) for option, value in options.items() if value is not None]


def exactness(options: Mapping[str, object], numerics_ids: Iterable[str] = ()) -> Exactness:
    """What the options together promise: the weakest of each answer.

    `numerics_ids` of the stations on the route (empty ones are unknown and do not count): where they differ the cut
    is bounded.
    """
    effects = explain(options)
    cut = max((CUT_LEVELS.index(e.cut) for e in effects), default=0)
    model = max((MODEL_LEVELS.index(e.model) for e in effects), default=0)
    if mixed_numerics(numerics_ids):
        cut = max(cut, CUT_LEVELS.index("bounded"))
    return Exactness(CUT_LEVELS[cut], MODEL_LEVELS[model])


def mixed_numerics(numerics_ids: Iterable[str]) -> str | None:
    """Why a route over these stations is only bounded, or None when all known ids agree."""
    known = sorted({numerics_id for numerics_id in numerics_ids if numerics_id})
    if len(known) < 2:
        return None
    return f"numerics ids {', '.join(numerics_id[:12] for numerics_id in known)} differ; {_MIXED}"


def _shown(effect: Effect) -> str:
    """The value as one writes it: `model:NAME`."""
    argument = _WITH_ARGUMENT.get((effect.option, effect.value))
    return f"{effect.value}:{argument}" if argument else effect.value


def _value_text(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)
