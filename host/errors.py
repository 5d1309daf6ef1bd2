"""The host's own errors, one root; errors of the wire keep their classes from `aeonflow.errors`.

A message states what was found, what is allowed and, where one is meant, the station's name.
"""

from __future__ import annotations

from aeonflow.errors import AeonflowError


class HostError(AeonflowError):
    """Root of everything the host raises on purpose, itself an `AeonflowError`: one `except` catches both."""

    code = "host_error"


class InvalidRequestError(HostError, ValueError):
    """A parameter outside its range, an empty prompt, or two options that contradict each other."""

    code = "invalid_request"


class ContextLengthError(InvalidRequestError):
    """The prompt does not fit the model's context; carries both numbers. `is_least`: the first is a lower bound."""

    code = "context_length"

    def __init__(self, n_prompt_tokens: int, context: int, *, is_least: bool = False) -> None:
        number = f"{'at least ' if is_least else ''}{n_prompt_tokens} tokens"
        super().__init__(f"the prompt has {number}, the context of the model holds {context}")
        self.n_prompt_tokens = n_prompt_tokens
        self.context = context


class UnsupportedOptionError(InvalidRequestError):
    """An option that exists in the design and is not built yet, or that this fleet cannot honour."""

    code = "unsupported"


class SessionBusyError(HostError):
    """A second generation was started on a session whose first one still runs."""

    code = "session_busy"


class EngineClosedError(HostError):
    """The engine was left while this call was running, or is used after it was left."""

    code = "engine_closed"
