"""Choosing a token from one row of logits: greedy, or filters and then Gumbel-max with counter-based noise.

    token = argmax over the survivors of  logit / T + g(seed, position, token)

which draws from softmax(logits / T) restricted to the survivors (Gumbel-max). Filters, in this order, on the row after
division by T:

    top_k   the k largest logits
    top_p   of those, by falling probability, the shortest prefix whose probability reaches top_p (at least one token)
    min_p   of those, the tokens whose probability is at least min_p times the largest

Ties are always settled for the lowest token id, in the filters and in the choice, so the answer is a function of the
row and the parameters. Logprobs are the natural logarithm of softmax over the whole row at T = 1, before any filter.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from aeonflow.errors import PoisonedError

from .errors import InvalidRequestError
from .noise import MAX_GUMBEL, MAX_SEED, MIN_GUMBEL, gumbel

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]

GREEDY_BELOW = 1e-5  # temperatures below this are greedy: what noise could still decide there is a near-tie
MAX_TEMPERATURE = 100.0
MAX_LOGPROBS = 128
_NUCLEUS_TRIES = (512, 8192)  # likeliest tokens sorted for top_p before the whole vocabulary is
_GROUP = 32  # tokens a group, whose maxima bound the k-th largest logit from below


class SamplingParams(msgspec.Struct, frozen=True):
    """How tokens are chosen; validated when made (InvalidRequestError names the value and what is allowed).

    temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 are off; `seed` None: the caller draws one (`with_seed`);
    `logprobs` None: none are reported; n ≥ 0: the chosen token's and those of the n likeliest.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    logprobs: int | None = None

    def __post_init__(self) -> None:
        _require_number("temperature", self.temperature, 0.0, MAX_TEMPERATURE)
        _require_integer("top_k", self.top_k, 0, 1 << 31)
        _require_number("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0:
            raise InvalidRequestError(f"top_p {self.top_p}: a number above 0 and at most 1 is needed")
        _require_number("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            _require_integer("seed", self.seed, 0, MAX_SEED)
        if self.logprobs is not None:
            _require_integer("logprobs", self.logprobs, 0, MAX_LOGPROBS)

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    def with_seed(self, seed: int) -> SamplingParams:
        """These parameters with `seed` where none was given."""
        return self if self.seed is not None else msgspec.structs.replace(self, seed=seed)


class Logprobs(NamedTuple):
    """Natural log probabilities: of the chosen token, and (token, logprob) of the likeliest, falling."""

    chosen: float
    top: tuple[tuple[int, float], ...]


class Choice(NamedTuple):
    """The chosen token, and its logprobs where they were asked for."""

    token: int
    logprobs: Logprobs | None


def choose(logits: F32, params: SamplingParams, position: int) -> Choice:
    """The token that stands at `position`, from `logits` f32 [V].

    -inf is a masked token. NaN, +inf or a row without a finite value raises PoisonedError.
    """
    best = int(logits.argmax())
    peak = float(logits[best])
    if not math.isfinite(peak):  # argmax finds a NaN before any number
        raise PoisonedError(f"logits at position {position} hold {peak} at token {best}: the row cannot be trusted")
    token = best if params.is_greedy else _sample(logits, None, peak, params, position)
    return Choice(token, None if params.logprobs is None else _logprobs(logits, peak, token, params.logprobs))


def choose_among(ids: U32, logits: F32, params: SamplingParams, position: int) -> int:
    """The token that stands at `position`, from the likeliest ones only: `ids` u32 [K] and their logits f32 [K].

    What `choose` would choose, where it is among them: a guess. PoisonedError as there.
    """
    order = np.argsort(ids, kind="stable")
    ids, logits = ids[order], logits[order]
    best = int(logits.argmax())
    peak = float(logits[best])
    if not math.isfinite(peak):
        raise PoisonedError(f"a draft for position {position} holds {peak} at token {ids[best]}")
    return int(ids[best]) if params.is_greedy else _sample(logits, ids.astype(np.int64), peak, params, position)


def _sample(logits: F32, ids: I64 | None, peak: float, params: SamplingParams, position: int) -> int:
    """The token drawn; `ids` of the logits, rising, None where they are the whole vocabulary's."""
    if params.seed is None:
        raise InvalidRequestError("sampling at a temperature above 0 needs a seed: SamplingParams.with_seed gives one")
    temperature = params.temperature
    # Beyond this distance not even the luckiest noise wins against the unluckiest of the peak: an exact shortcut.
    reach = (MAX_GUMBEL - MIN_GUMBEL) * temperature
    if params.top_k and params.top_k < len(logits):
        tokens = _largest(logits, params.top_k)
    elif params.top_p < 1.0:
        tokens = np.flatnonzero(logits > -np.inf)
    else:
        if params.min_p:
            reach = min(reach, -math.log(params.min_p) * temperature)
        # rounded outwards, so that the f32 comparison drops no token the exact filters below would keep
        floor = np.nextafter(np.float32(peak - reach), np.float32(-np.inf))
        tokens = np.flatnonzero(logits >= floor)
    scaled = (logits[tokens].astype(np.float64) - peak) / temperature
    if params.top_p < 1.0:
        keep = _nucleus(scaled, params.top_p)
        tokens, scaled = tokens[keep], scaled[keep]
    if params.min_p:
        keep = np.flatnonzero(scaled >= math.log(params.min_p))
        tokens, scaled = tokens[keep], scaled[keep]
    if ids is not None:
        tokens = ids[tokens]
    return int(tokens[int((scaled + gumbel(params.seed, position, tokens)).argmax())])


def _largest(values: npt.NDArray[np.floating], count: int) -> I64:
    """Indices, rising, of the `count` largest of `values`; among equals at the border the lowest indices."""
    groups = len(values) // _GROUP
    found = None
    if count <= groups // 2:
        # `count` group maxima are at or above the bound, so the `count` largest values are: a far smaller search.
        maxima = values[: groups * _GROUP].reshape(groups, _GROUP).max(axis=1)
        bound = np.partition(maxima, groups - count)[groups - count]
        found = np.flatnonzero(values >= bound)
    near = values if found is None else values[found]
    border = np.partition(near, len(near) - count)[len(near) - count]
    kept = np.flatnonzero(near >= border)
    surplus = len(kept) - count
    if surplus:
        at_border = np.flatnonzero(near[kept] == border)
        kept = np.delete(kept, at_border[len(at_border) - surplus :])
    return kept if found is None else found[kept]


def _nucleus(scaled: F64, top_p: float) -> I64:
    """Indices, rising, of the shortest prefix by falling probability that reaches `top_p`; `scaled` peaks at 0."""
    target = top_p * float(np.exp(scaled).sum())
    order = np.zeros(0, dtype=np.int64)
    reached = np.zeros(0)
    for count in (*_NUCLEUS_TRIES, len(scaled)):
        likely = _largest(scaled, count) if count < len(scaled) else np.arange(len(scaled))
        order = likely[np.argsort(-scaled[likely], kind="stable")]
        reached = np.cumsum(np.exp(scaled[order]))
        if reached[-1] >= target or len(likely) == len(scaled):
            break
    return np.sort(order[: int(np.searchsorted(reached, target)) + 1])


def _logprobs(logits: F32, peak: float, token: int, count: int) -> Logprobs:
    shifted = logits.astype(np.float64) - peak
    log_sum = math.log(float(np.exp(shifted).sum()))
    top: I64 = np.zeros(0, dtype=np.int64)
    if count:
        top = _largest(logits, min(count, len(logits)))
        top = top[np.argsort(-shifted[top], kind="stable")]
    return Logprobs(float(shifted[token]) - log_sum, tuple((int(t), float(shifted[t]) - log_sum) for t in top))


def _require_number(name: str, value: float, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:  # NaN fails too
        raise InvalidRequestError(f"{name} {value!r}: a number from {least:g} to {most:g} is needed")


def _require_integer(name: str, value: int, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidRequestError(f"{name} {value!r}: a whole number from {least} to {most} is needed")
