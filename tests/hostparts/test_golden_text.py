from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from host.text import Detokeniser, TextModel

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "smollm2.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def text_model(smollm2: Path) -> TextModel:
    card = json.loads((smollm2 / "card.json").read_bytes())
    return TextModel.from_card(card, (smollm2 / "tokenizer.json").read_bytes())


@pytest.mark.parametrize("golden", GOLDEN["prompts"], ids=lambda golden: golden["prompt"][:20])
def test_golden_prompts_are_rendered_and_encoded_as_recorded(text_model: TextModel, golden: dict[str, Any]) -> None:
    assert text_model.render([{"role": "user", "content": golden["prompt"]}]) == golden["templated"]
    assert text_model.encode_prompt(golden["prompt"]) == golden["prompt_ids"]
    assert text_model.encode_prompt(golden["templated"], raw=True) == golden["prompt_ids"]


@pytest.mark.parametrize("golden", GOLDEN["prompts"], ids=lambda golden: golden["prompt"][:20])
def test_golden_answers_stream_to_their_full_text(text_model: TextModel, golden: dict[str, Any]) -> None:
    tokenizer, ids = text_model.tokenizer, golden["f32_ref"]["greedy_ids"]
    detokeniser = Detokeniser(tokenizer)
    pieces = [detokeniser.push(token_id) for token_id in ids]
    assert "".join([*pieces, detokeniser.flush()]) == tokenizer.decode(ids)
    assert not any("\ufffd" in piece for piece in pieces)
    assert tokenizer.encode(tokenizer.decode(ids, skip_special=False)) == ids


def test_the_models_end_tokens_are_known(text_model: TextModel) -> None:
    assert text_model.tokenizer.token_text(2) == "<|im_end|>"
    assert 2 in text_model.tokenizer.eos_ids
    assert 2 in text_model.tokenizer.bytes.specials
