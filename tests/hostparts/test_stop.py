from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.errors import InvalidRequestError
from host.text import StopMatcher, validated_stops

letters = st.text("ab", max_size=24)
stop_lists = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


def run(pieces: list[str], stops: list[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    shown = "".join(matcher.push(piece) for piece in pieces)
    if not matcher.is_stopped:
        shown += matcher.flush()
    return shown, matcher.matched


def by_characters(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The rule, spelled out: after each character, has a stop string just become complete?"""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(text=letters, stops=stop_lists, cuts=st.lists(st.integers(0, 24), max_size=8))
def test_the_result_does_not_depend_on_how_the_text_is_cut(text: str, stops: list[str], cuts: list[int]) -> None:
    borders = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in pairwise(borders)]
    assert run(pieces, stops) == by_characters(text, stops)


@given(text=letters, stops=stop_lists)
def test_what_is_shown_early_is_never_taken_back_and_no_more_waits_than_needed(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    shown = ""
    for end, char in enumerate(text, start=1):
        shown += matcher.push(char)
        if matcher.is_stopped:
            break
        held = text[len(shown) : end]
        assert text[:end] == shown + held
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)


def test_a_stop_string_over_token_borders_ends_the_text_before_it() -> None:
    pieces = [" L", " M", " N", " O", " P", " Q", " R"]
    assert run(pieces, ["O P Q"]) == (" L M N ", "O P Q")


def test_of_several_the_one_complete_first_wins() -> None:
    assert run(["one two three"], ["three", "two"]) == ("one ", "two")


def test_text_after_a_match_is_not_shown() -> None:
    matcher = StopMatcher(["."])
    assert matcher.push("a.b") == "a"
    assert matcher.push("c") == ""
    assert matcher.flush() == ""


def test_a_false_start_is_shown_once_it_is_known() -> None:
    matcher = StopMatcher(["\nObservation"])
    assert matcher.push("x\nObs") == "x"
    assert matcher.push("t") == "\nObst"


def test_stop_strings_are_validated() -> None:
    assert validated_stops(None) == ()
    assert validated_stops("x") == ("x",)
    assert validated_stops(["x", "y"]) == ("x", "y")
    for bad in ("", ["a", ""], ["x" * 4097], ["a"] * 65, [3]):
        with pytest.raises(InvalidRequestError, match="stop string"):
            validated_stops(bad)  # type: ignore[arg-type]
