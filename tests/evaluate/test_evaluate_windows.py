"""Windows over a text: what is repeated where, and which rows count."""

from __future__ import annotations

import itertools

import pytest

from host.errors import InvalidRequestError
from host.evaluate.run import texts_to_windows
from host.evaluate.windows import windows_of

TEXT = list(range(5000))  # a token's id is its place in the text


def test_a_window_fills_the_context_and_ends_with_passages_from_its_quarter_and_eighth() -> None:
    (window, second, *_) = windows_of(TEXT, 2048)
    assert len(window.ids) == 2048
    assert window.ids[:1920] == tuple(range(1920))
    assert window.ids[1920:1984] == tuple(range(512, 576))
    assert window.ids[1984:] == tuple(range(256, 320))
    assert second.ids[0] == 1920


def test_rows_that_count_predict_text_of_the_second_half_and_passages_once_they_are_known() -> None:
    (window, *_) = windows_of(TEXT, 512)
    text = window.targets(window.text_rows.start, window.text_rows.stop)
    assert (text[0], text[-1], len(text)) == (257, 447, 191)
    passages = [window.targets(rows.start, rows.stop).tolist() for rows in window.recall_rows]
    assert passages == [list(range(136, 160)), list(range(72, 96))]
    assert window.recall_rows[-1].stop == window.num_rows == 511


@pytest.mark.parametrize("context", [64, 65, 100, 257, 1000])
def test_windows_of_any_context_have_rows_of_both_kinds_within_their_scored_half(context: int) -> None:
    (window, *_) = windows_of(TEXT, context)
    rows = [window.text_rows, *window.recall_rows]
    assert all(window.first_scored <= part.start < part.stop <= window.num_rows for part in rows)
    assert all(a.stop <= b.start for a, b in itertools.pairwise(rows))


def test_windows_do_not_overlap_and_a_short_rest_is_left_out() -> None:
    fresh = 512 - 2 * 32
    assert [w.ids[0] for w in windows_of(TEXT[: 3 * fresh - 1], 512)] == [0, fresh]
    assert len(list(windows_of(TEXT[: 3 * fresh], 512))) == 3


def test_texts_do_not_run_into_each_other() -> None:
    windows = texts_to_windows([TEXT[:500], TEXT[1000:1500]], 512, 4096)
    assert [w.ids[0] for w in windows] == [0, 1000]


def test_what_cannot_be_measured_is_refused_with_its_numbers() -> None:
    with pytest.raises(InvalidRequestError, match="context 8193: 64 to 8192"):
        texts_to_windows([TEXT], 8193, 8192)
    with pytest.raises(InvalidRequestError, match="context 63: 64 to 8192"):
        texts_to_windows([TEXT], 63, 8192)
    with pytest.raises(InvalidRequestError, match="the longest text has 100 tokens: too few for a context of 512"):
        texts_to_windows([TEXT[:100], TEXT[:7]], 512, 8192)
