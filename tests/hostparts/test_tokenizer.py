from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.errors import InvalidRequestError
from host.text import Tokenizer, TokenizerError

from .tokenizers_for_tests import (
    BOS,
    BY_NAME,
    BYTE_LEVEL,
    EOS,
    LIBRARY,
    SENTENCEPIECE,
    TURN_END,
    byte_level_json,
    sentencepiece_json,
    tokenizer,
)

# U+2581 is SentencePiece's own sign for a space: a text that holds it does not survive that family
any_text = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\u2581"), max_size=40)


@pytest.mark.parametrize("name", BY_NAME)
@given(text=any_text)
def test_decoding_an_encoded_text_gives_the_text_and_agrees_with_the_library(name: str, text: str) -> None:
    ids = BY_NAME[name].encode(text)
    assert BY_NAME[name].decode(ids) == LIBRARY[name].decode(ids)
    assert BY_NAME[name].decode(ids) == text


@given(ids=st.lists(st.integers(0, len(BYTE_LEVEL.bytes.table) + 3), max_size=20), skip=st.booleans())
def test_any_byte_level_ids_decode_as_the_library_does(ids: list[int], skip: bool) -> None:
    expected = LIBRARY["byte level"].decode(ids, skip_special_tokens=skip)
    assert BYTE_LEVEL.decode(ids, skip_special=skip) == expected


def test_an_added_token_with_a_space_decodes_as_itself() -> None:
    document = json.loads(byte_level_json())
    added = {**document["added_tokens"][0], "id": 400, "content": "<two  words é>", "special": False}
    document["added_tokens"].append(added)
    assert tokenizer(json.dumps(document)).decode([400]) == "<two  words é>"


def test_special_tokens_are_recognised_in_text_and_skipped_in_decoding() -> None:
    ids = BYTE_LEVEL.encode("the<|im_end|>fox")
    assert ids.count(TURN_END) == 1
    assert BYTE_LEVEL.decode(ids) == "thefox"
    assert BYTE_LEVEL.decode(ids, skip_special=False) == "the<|im_end|>fox"
    assert TURN_END in BYTE_LEVEL.bytes.specials
    assert ids[0] not in BYTE_LEVEL.bytes.specials


@pytest.mark.parametrize("source", [byte_level_json, sentencepiece_json])
@pytest.mark.parametrize("text", ["the fox", "<s>the fox"])
def test_a_model_that_wants_bos_gets_exactly_one(source, text) -> None:  # type: ignore[no-untyped-def]
    ids = tokenizer(source(), add_bos=True).encode(text)
    assert ids[0] == BOS
    assert ids.count(BOS) == 1


def test_a_model_that_wants_no_bos_gets_none_but_what_the_text_holds() -> None:
    assert BOS not in BYTE_LEVEL.encode("the fox")
    assert BYTE_LEVEL.encode("<s>the")[0] == BOS


def test_bos_is_not_doubled_by_a_post_processor_in_the_file() -> None:
    document = json.loads(byte_level_json())
    document["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [BOS], "tokens": ["<s>"]}},
    }
    assert tokenizer(json.dumps(document), add_bos=True).encode("the").count(BOS) == 1
    assert BOS not in tokenizer(json.dumps(document)).encode("the")


def test_a_truncation_written_in_the_file_does_not_cut_prompts() -> None:
    document = json.loads(byte_level_json())
    document["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    assert len(tokenizer(json.dumps(document)).encode("1 2 3 4 5 6 7")) > 3


def test_a_part_of_a_sequence_gets_no_bos() -> None:
    assert tokenizer(byte_level_json(), add_bos=True).encode_part("fox") == BYTE_LEVEL.encode("fox")


def test_ids_outside_the_vocabulary_decode_to_nothing() -> None:
    assert BYTE_LEVEL.decode([100_000, -1]) == ""
    assert SENTENCEPIECE.token_text(100_000) == ""
    assert SENTENCEPIECE.token_text(None) == ""
    assert SENTENCEPIECE.token_text(EOS) == "</s>"


def test_a_prompt_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="not valid text"):
        BYTE_LEVEL.encode("\ud800")


def test_a_file_that_cannot_be_used_is_refused_with_what_it_holds() -> None:
    for text in ("{", json.dumps(json.loads(byte_level_json()) | {"model": {"type": "BPE", "vocab": {}}})):
        with pytest.raises(TokenizerError, match="cannot be read"):
            tokenizer(text)
    for decoder, says in [
        (None, "no decoder"),
        ({"type": "WordPiece", "prefix": "##", "cleanup": True}, "decoder is WordPiece; supported are ByteLevel"),
        ({"type": "Strip", "content": "x", "start": 1, "stop": 0}, "only one leading space"),
    ]:
        document = json.loads(byte_level_json()) | {"decoder": decoder}
        with pytest.raises(TokenizerError, match=says):
            tokenizer(json.dumps(document))
    with pytest.raises(TokenizerError, match="wants a beginning-of-sequence token and names none"):
        Tokenizer(byte_level_json(), bos_id=None, eos_ids=(), add_bos=True)


def test_spaces_of_a_metaspace_decoder_are_kept_between_words_and_dropped_in_front() -> None:
    document = json.loads(sentencepiece_json())
    document["decoder"] = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    metaspace = tokenizer(json.dumps(document))
    assert metaspace.decode(metaspace.encode("Dear Name")) == "Dear Name"
