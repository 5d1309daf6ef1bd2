"""Prompt sets: `chat` and `edit` are shipped, others come from files. The same ones serve benches and tests.

`chat`: short questions and tasks. `edit`: a text with the instruction to repeat it with one word changed, where
SmolLM2's greedy answer copies most of the prompt, so that prompt lookup has something to find.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import msgspec

from ...errors import InvalidRequestError

SHIPPED = ("chat", "edit")
MAX_FILE_BYTES = 16 << 20  # more is no set of prompts


class BenchPrompt(msgspec.Struct, frozen=True):
    """One prompt: what a user would say; it goes through the model's chat template."""

    id: str
    text: str


class PromptSet(msgspec.Struct, frozen=True):
    """At least one prompt, in order."""

    name: str
    prompts: tuple[BenchPrompt, ...]
    about: str = ""

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(prompt.text for prompt in self.prompts)


def load_prompts(name_or_file: str) -> PromptSet:
    """A shipped set by its name, or a file: JSON as the shipped ones are or a list of texts; any other is one prompt.

    Raises InvalidRequestError for what cannot be read or holds no prompt.
    """
    if name_or_file in SHIPPED:
        return _decode(name_or_file, resources.files(__name__).joinpath(f"{name_or_file}.json").read_bytes())
    path = Path(name_or_file)
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InvalidRequestError(f"prompts {name_or_file}: {path.stat().st_size} bytes, at most {MAX_FILE_BYTES}")
        data = path.read_bytes()
        if path.suffix == ".json":
            return _decode(path.stem, data)
        found = PromptSet(path.stem, (BenchPrompt(path.stem, data.decode("utf-8")),))
    except OSError as error:
        known = " and ".join(SHIPPED)
        raise InvalidRequestError(
            f"prompts {name_or_file!r}: {error.strerror or error}; shipped sets are {known}"
        ) from None
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"prompts {name_or_file!r} are no UTF-8: {error}") from None
    return _checked(found, name_or_file)


def _decode(name: str, data: bytes) -> PromptSet:
    try:
        found = msgspec.json.decode(data, type=PromptSet | list[str])
    except msgspec.DecodeError as error:
        raise InvalidRequestError(f"prompts {name!r}: {error}; expected is {{name, prompts}} or a list") from None
    if isinstance(found, list):
        found = PromptSet(name, tuple(BenchPrompt(str(i), text) for i, text in enumerate(found)))
    return _checked(found, name)


def _checked(found: PromptSet, name: str) -> PromptSet:
    if not found.prompts or not all(prompt.text.strip() for prompt in found.prompts):
        raise InvalidRequestError(f"prompts {name!r}: at least one, and none of them empty")
    return found
