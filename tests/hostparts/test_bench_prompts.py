"""The shipped prompt sets, and those that users bring."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from host.bench.prompts import SHIPPED, load_prompts
from host.errors import InvalidRequestError


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_set_holds_at_least_ten_different_prompts(name: str) -> None:
    found = load_prompts(name)
    assert found.name == name
    assert len(set(found.texts)) == len(found.texts) >= 10
    assert len({prompt.id for prompt in found.prompts}) == len(found.prompts)


def test_an_edit_prompt_names_a_word_that_its_text_holds() -> None:
    for text in load_prompts("edit").texts:
        instruction, _, body = text.partition("\n\n")
        old = instruction.split('"')[1]
        assert old in body, instruction


def test_a_text_file_is_one_prompt_and_a_json_list_is_many(tmp_path: Path) -> None:
    text, many = tmp_path / "one.txt", tmp_path / "many.json"
    text.write_text("Hello, who are you?\n")
    many.write_text(json.dumps(["a", "b"]))
    assert load_prompts(str(text)).texts == ("Hello, who are you?\n",)
    assert load_prompts(str(many)).texts == ("a", "b")


@pytest.mark.parametrize(
    ("content", "words"), [("[]", "at least one"), ('["a", " "]', "none of them empty"), ("{", "expected is")]
)
def test_a_file_without_prompts_is_refused_with_what_is_expected(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "prompts.json"
    path.write_text(content)
    with pytest.raises(InvalidRequestError, match=words):
        load_prompts(str(path))


def test_an_unknown_set_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(InvalidRequestError, match="chat and edit"):
        load_prompts("nonsense")
