"""The text side of one model: prompts in, token ids out; tokens in, text out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from ..errors import InvalidRequestError
from .detokenise import Detokeniser
from .errors import TemplateError
from .stop import StopMatcher
from .template import ChatTemplate, Message
from .tokenizer import Tokenizer


class TextStep(NamedTuple):
    """What one token added: text that may be shown, and whether a stop string ended the answer."""

    text: str
    is_stopped: bool


class TextModel:
    """Tokenizer and chat template of a model, as its card describes them."""

    def __init__(self, name: str, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
        self.name = name
        self.tokenizer = tokenizer
        self.template = template

    @classmethod
    def from_card(
        cls, card: Mapping[str, Any], tokenizer_json: str | bytes, *, clock: Callable[[], datetime] = datetime.now
    ) -> TextModel:
        """From the parsed model card (`name, bos_id, eos_ids, add_bos, chat_template`) and `tokenizer.json`."""
        bos_id, eos_ids = card.get("bos_id"), tuple(card.get("eos_ids") or ())
        tokenizer = Tokenizer(tokenizer_json, bos_id=bos_id, eos_ids=eos_ids, add_bos=bool(card.get("add_bos")))
        source = card.get("chat_template")
        template = None
        if source:
            eos_token = tokenizer.token_text(eos_ids[0] if eos_ids else None)
            template = ChatTemplate(source, bos_token=tokenizer.token_text(bos_id), eos_token=eos_token, clock=clock)
        return cls(str(card.get("name", "")), tokenizer, template)

    def render(self, messages: Sequence[Message]) -> str:
        """The text of a prompt from chat messages; TemplateError for a model without a template."""
        if self.template is None:
            raise TemplateError(f"model {self.name!r} has no chat template: give a text and use --raw (raw=True)")
        return self.template.render(messages)

    def encode_prompt(self, prompt: str | Sequence[Message], *, raw: bool = False) -> list[int]:
        """Ids of a prompt: chat messages, a text as one user message, or with `raw` the text as it stands.

        Raises InvalidRequestError for an empty prompt or messages with `raw`, TemplateError where there is none.
        """
        if isinstance(prompt, str):
            if not prompt:
                raise InvalidRequestError("the prompt is empty: at least one character is needed")
            text = prompt if raw else self.render([{"role": "user", "content": prompt}])
        else:
            if raw:
                raise InvalidRequestError("raw takes a text, not chat messages: they need the chat template")
            text = self.render(prompt)
        return self.tokenizer.encode(text)

    def stream(self, *, stops: Iterable[str] = (), context: Iterable[int] = ()) -> TextStream:
        """A stream for one answer. `context`: the prompt's ids when the answer continues a raw text."""
        return TextStream(Detokeniser(self.tokenizer, context=context), StopMatcher(stops))


class TextStream:
    """One answer's text, token by token: incremental decoding, then stop strings.

    A model's own end tokens are the caller's to check (`Tokenizer.eos_ids`), beside stop strings, never instead.
    """

    def __init__(self, detokeniser: Detokeniser, matcher: StopMatcher) -> None:
        self._detokeniser = detokeniser
        self._matcher = matcher

    def push(self, token_id: int) -> TextStep:
        """The text this token made certain. After `is_stopped` the answer is over."""
        text = self._matcher.push(self._detokeniser.push(token_id))
        return TextStep(text, self._matcher.is_stopped)

    def flush(self) -> TextStep:
        """What was held back, at the end of the answer (an unfinished character shows as U+FFFD)."""
        text = self._matcher.push(self._detokeniser.flush())
        if not self._matcher.is_stopped:
            text += self._matcher.flush()
        return TextStep(text, self._matcher.is_stopped)
