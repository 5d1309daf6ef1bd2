from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.text import Detokeniser, Tokenizer

from .tokenizers_for_tests import BY_NAME, BYTE_LEVEL, EOS, SENTENCEPIECE

FAMILY = "👩‍👩‍👧‍👦"  # four emoji joined by ZWJ, 25 bytes of UTF-8
any_text = st.lists(st.sampled_from([*"aé日鶫 \n", "😀", "\u200d", FAMILY]), max_size=12).map("".join)


def pieces_of(tokenizer: Tokenizer, ids: list[int], context: list[int] | None = None) -> list[str]:
    detokeniser = Detokeniser(tokenizer, context=context or ())
    pieces = [detokeniser.push(token_id) for token_id in ids]
    return [*pieces, detokeniser.flush()]


def byte_tokens(tokenizer: Tokenizer, data: bytes) -> list[int]:
    """One token for each byte."""
    table = tokenizer.bytes.table
    single = {table[i]: i for i in reversed(range(len(table))) if len(table[i]) == 1}
    return [single[bytes([byte])] for byte in data]


@pytest.mark.parametrize("name", BY_NAME)
@given(data=st.data())
def test_the_pieces_join_to_the_full_decode(name: str, data: st.DataObject) -> None:
    tokenizer = BY_NAME[name]
    ids = data.draw(st.lists(st.integers(0, len(tokenizer.bytes.table) - 1), max_size=30))
    assert "".join(pieces_of(tokenizer, ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize("name", BY_NAME)
@given(text=any_text, data=st.data())
def test_no_piece_of_a_valid_text_shows_a_replacement_character(name: str, text: str, data: st.DataObject) -> None:
    tokenizer = BY_NAME[name]
    raw = text.encode()
    ids = byte_tokens(tokenizer, raw) if data.draw(st.booleans()) else tokenizer.encode(text)
    pieces = pieces_of(tokenizer, ids)
    assert not any("\ufffd" in piece for piece in pieces)
    assert "".join(pieces) == tokenizer.decode(ids)


def test_a_character_over_two_tokens_waits_for_its_last_byte() -> None:
    ids = byte_tokens(BYTE_LEVEL, "鶫".encode())
    assert pieces_of(BYTE_LEVEL, ids) == ["", "", "鶫", ""]


def test_an_unfinished_character_is_flushed_as_one_replacement_character() -> None:
    assert pieces_of(BYTE_LEVEL, byte_tokens(BYTE_LEVEL, b"a\xf0\x9f\x98")) == ["a", "", "", "", "\ufffd"]


def test_a_broken_character_in_the_middle_does_not_hold_the_rest() -> None:
    assert pieces_of(BYTE_LEVEL, byte_tokens(BYTE_LEVEL, b"\xe9ab")) == ["", "\ufffda", "b", ""]


def test_joined_emoji_arrive_whole_when_their_bytes_come_singly() -> None:
    pieces = pieces_of(BYTE_LEVEL, byte_tokens(BYTE_LEVEL, FAMILY.encode()))
    assert "".join(pieces) == FAMILY
    assert not any("\ufffd" in piece for piece in pieces)


def test_words_keep_their_spaces_when_tokens_are_decoded_singly() -> None:
    ids = SENTENCEPIECE.encode("Dear [Name], I hope")
    pieces = pieces_of(SENTENCEPIECE, ids)
    assert "".join(pieces) == "Dear [Name], I hope"


def test_a_continuation_keeps_the_space_of_its_first_word() -> None:
    prompt, answer = SENTENCEPIECE.encode("Dear"), SENTENCEPIECE.encode("Name")
    assert "".join(pieces_of(SENTENCEPIECE, answer, context=prompt)) == " Name"
    assert "".join(pieces_of(SENTENCEPIECE, answer, context=[EOS])) == "Name"


def test_a_special_token_at_the_start_takes_no_space_with_it() -> None:
    ids = [EOS, *SENTENCEPIECE.encode("Name")]
    assert pieces_of(SENTENCEPIECE, ids)[0] == ""
    assert "".join(pieces_of(SENTENCEPIECE, ids)) == SENTENCEPIECE.decode(ids) == "Name"
