"""Chat templates: messages to the text of a prompt, by the model's own Jinja template in a sandbox.

Both front ends (command line and API) render here. Templates come with models, so they are untrusted: no attribute
of a Python object, no change of a value, a bound on the rendered text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..errors import InvalidRequestError
from .errors import TemplateError

ROLES = ("system", "user", "assistant", "tool")
MAX_MESSAGES = 10_000
MAX_RENDERED_CHARS = 64 << 20

Message = Mapping[str, str]


def validated_messages(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Plain copies of chat messages {role, content}; InvalidRequestError names the message and the key."""
    if not 1 <= len(messages) <= MAX_MESSAGES:
        raise InvalidRequestError(f"{len(messages)} messages: 1 to {MAX_MESSAGES} are allowed")
    checked: list[dict[str, str]] = []
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise InvalidRequestError(f"message {index} is a {type(message).__name__}: {{role, content}} is needed")
        unknown = sorted(str(key) for key in message.keys() - {"role", "content"})
        if unknown:
            raise InvalidRequestError(
                f"message {index} has the key {unknown[0]!r}: only role and content are supported"
            )
        role, content = message.get("role"), message.get("content")
        if role not in ROLES:
            raise InvalidRequestError(f"message {index} has the role {role!r}: roles are {', '.join(ROLES)}")
        if not isinstance(content, str):
            raise InvalidRequestError(f"message {index} has content of type {type(content).__name__}: text is needed")
        checked.append({"role": role, "content": content})
    if not any(message["content"] for message in checked):
        raise InvalidRequestError("the prompt is empty: every message's content is ''")
    return checked


class ChatTemplate:
    """A model's chat template, compiled. `clock` gives the time to templates that print a date."""

    def __init__(
        self, source: str, *, bos_token: str, eos_token: str, clock: Callable[[], datetime] = datetime.now
    ) -> None:
        """Raises TemplateError when the template does not compile."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: clock().strftime(form)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise TemplateError(f"the model's chat template does not compile: {error}") from error
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The prompt's text for `messages`; with `add_generation_prompt` it ends where the answer begins."""
        checked = validated_messages(messages)
        pieces: list[str] = []
        size = 0
        try:
            for piece in self._template.generate(
                messages=checked, add_generation_prompt=add_generation_prompt, **self._tokens
            ):
                size += len(piece)
                if size > MAX_RENDERED_CHARS:
                    raise TemplateError(f"the chat template renders more than {MAX_RENDERED_CHARS} characters")
                pieces.append(piece)
        except TemplateError:
            raise
        except Exception as error:  # a template is a program: whatever it raises is its refusal
            raise TemplateError(f"the model's chat template refused the messages: {error}") from error
        return "".join(pieces)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(f"the model's chat template refused the messages: {message}")


def _tojson(value: Any, indent: int | None = None, ensure_ascii: bool = False) -> str:
    """As templates are written for: plain JSON, without Jinja's escaping for HTML."""
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)
