"""Stop strings: the text ends before the first one that becomes complete, wherever the tokens' borders lie."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..errors import InvalidRequestError

MAX_STOPS = 64
MAX_STOP_CHARS = 4096  # as much text may wait in the matcher


def validated_stops(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """Stop strings of a request: none, one or several; InvalidRequestError for empty, overlong or too many ones."""
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > MAX_STOPS:
        raise InvalidRequestError(f"{len(stops)} stop strings: at most {MAX_STOPS} are allowed")
    for text in stops:
        if not isinstance(text, str) or not 1 <= len(text) <= MAX_STOP_CHARS:
            raise InvalidRequestError(f"stop string {text!r:.80}: 1 to {MAX_STOP_CHARS} characters are needed")
    return stops


class StopMatcher:
    """Watches a stream of text for stop strings.

    The string that is complete first ends the text (of two complete at once, the one that began earlier), so the
    result does not depend on how the text was cut into pieces. Text that may yet begin a stop string is held back.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(dict.fromkeys(stops))
        self._held = ""
        self.matched: str | None = None

    @property
    def is_stopped(self) -> bool:
        return self.matched is not None

    def push(self, text: str) -> str:
        """The text that may be shown now. After a match (`matched` is set) nothing more is returned."""
        if self.is_stopped:
            return ""
        if not self._stops:
            return text
        buffer = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := buffer.find(stop)) >= 0]
        if found:
            _, at, self.matched = min(found)
            self._held = ""
            return buffer[:at]
        keep = max(_overlap(buffer, stop) for stop in self._stops)
        self._held = buffer[len(buffer) - keep :]
        return buffer[: len(buffer) - keep]

    def flush(self) -> str:
        """The held text at the end of the answer: no stop string can come any more."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
