"""One request, checked: everything `generate` was given, with its numbers, before any station hears of it."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

import msgspec

from .errors import ContextLengthError, InvalidRequestError
from .sampling import SamplingParams
from .text import Message, TextModel, validated_stops

Prompt = str | Sequence[Message] | Sequence[int]

DEFAULT_MAX_TOKENS = 256


class GenerateOptions(TypedDict, total=False):
    """Keywords of `generate`; what they do and their defaults: `Engine.generate`."""

    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int | None
    stop: str | Sequence[str] | None
    raw: bool
    ignore_eos: bool
    logprobs: int | None
    logits_hash: bool
    prefill_chunk: int | None


class Request(msgspec.Struct, frozen=True):
    """`max_tokens` is already cut to what the context leaves; `eos_ids` is empty when they are to be ignored.

    `prefill_chunk` None: chosen by the cost model. `is_continuation`: the answer continues a raw text.
    """

    prompt_ids: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams
    stops: tuple[str, ...]
    eos_ids: frozenset[int]
    is_continuation: bool
    wants_hash: bool
    prefill_chunk: int | None

    @property
    def num_positions(self) -> int:
        """Rows this request needs at most: the last token is emitted, never fed."""
        return len(self.prompt_ids) + self.max_tokens - 1


def make_request(
    text: TextModel,
    context_length: int,
    vocab_size: int,
    prompt: Prompt,
    *,
    max_tokens: int = DEFAULT_MAX_TOKENS,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int | None = None,
    stop: str | Sequence[str] | None = None,
    raw: bool = False,
    ignore_eos: bool = False,
    logprobs: int | None = None,
    logits_hash: bool = False,
    prefill_chunk: int | None = None,
) -> Request:
    """The checked request; a seed is drawn if none is given. InvalidRequestError: the value, and what is allowed."""
    sampling = SamplingParams(temperature, top_k, top_p, min_p, seed, logprobs)
    check_count("max_tokens", max_tokens)
    if prefill_chunk is not None:
        check_count("prefill_chunk", prefill_chunk)
    check_size(text, context_length, prompt)
    ids, is_continuation = _prompt_ids(text, vocab_size, prompt, raw)
    if len(ids) > context_length:
        raise ContextLengthError(len(ids), context_length)
    return Request(
        prompt_ids=ids,
        max_tokens=min(max_tokens, context_length - len(ids) + 1),
        sampling=sampling if sampling.is_greedy else sampling.with_seed(secrets.randbits(63)),
        stops=validated_stops(stop),
        eos_ids=frozenset() if ignore_eos else frozenset(text.tokenizer.eos_ids),
        is_continuation=is_continuation,
        wants_hash=logits_hash,
        prefill_chunk=prefill_chunk,
    )


def check_size(text: TextModel, context_length: int, prompt: Prompt) -> None:
    """ContextLengthError for a text that cannot fit, whatever its tokens, before it is encoded: minutes of the event
    loop for some megabytes, in which every link would fall silent."""
    texts: Iterable[Any] = (prompt,)
    if isinstance(prompt, Sequence) and not isinstance(prompt, str):
        texts = (message.get("content") for message in prompt if isinstance(message, Mapping))
    num_chars = sum(len(one) for one in texts if isinstance(one, str))
    least = -(-num_chars // text.tokenizer.max_token_chars)
    if least > context_length:
        raise ContextLengthError(least, context_length, is_least=True)


def check_count(name: str, value: Any) -> None:
    """InvalidRequestError unless `value` is a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidRequestError(f"{name} {value!r}: a whole number of at least 1 is needed")


def _prompt_ids(text: TextModel, vocab_size: int, prompt: Prompt, raw: bool) -> tuple[tuple[int, ...], bool]:
    """Token ids of a prompt, and whether the answer continues its text."""
    if not isinstance(prompt, str) and not isinstance(prompt, Sequence):
        raise InvalidRequestError(f"a prompt is a text, chat messages or token ids, not a {type(prompt).__name__}")
    if not prompt:
        raise InvalidRequestError("the prompt is empty: at least one character, message or token is needed")
    if isinstance(prompt, str) or isinstance(prompt[0], Mapping):
        ids = text.encode_prompt(prompt, raw=raw)  # type: ignore[arg-type]  # messages are checked one by one
        if not ids:
            raise InvalidRequestError("the prompt is empty: it has 0 tokens")
        return tuple(ids), raw
    return tuple(_token_id(one, vocab_size) for one in prompt), True


def _token_id(value: Any, vocab_size: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < vocab_size:
        raise InvalidRequestError(
            f"token id {value!r} of the prompt: whole numbers from 0 to {vocab_size - 1} are known"
        )
    return value
