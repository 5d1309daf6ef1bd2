"""Errors of the text side: a chat template that is missing or refuses, a tokenizer file that cannot be used."""

from __future__ import annotations

from ..errors import HostError, InvalidRequestError


class TemplateError(InvalidRequestError):
    """The model has no chat template, or it is broken, or it refused the messages (its words are in the message)."""

    code = "template"


class TokenizerError(HostError):
    """A tokenizer file this version cannot use; the message says what it holds and what is supported."""

    code = "tokenizer"
