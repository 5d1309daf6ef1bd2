"""Text and tokens: chat template, tokenizer, incremental decoding, stop strings. Pure, no sockets."""

from __future__ import annotations

from .detokenise import Detokeniser
from .errors import TemplateError, TokenizerError
from .model import TextModel, TextStep, TextStream
from .stop import StopMatcher, validated_stops
from .template import ChatTemplate, Message, validated_messages
from .tokenizer import Tokenizer

__all__ = [
    "ChatTemplate",
    "Detokeniser",
    "Message",
    "StopMatcher",
    "TemplateError",
    "TextModel",
    "TextStep",
    "TextStream",
    "Tokenizer",
    "TokenizerError",
    "validated_messages",
    "validated_stops",
]
