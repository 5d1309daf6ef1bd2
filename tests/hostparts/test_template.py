from __future__ import annotations

from datetime import datetime

import pytest

from host.errors import InvalidRequestError
from host.text import ChatTemplate, TemplateError, TextModel, validated_messages

from .tokenizers_for_tests import BOS, EOS, TURN_END, byte_level_json, sentencepiece_json

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
USER = [{"role": "user", "content": "Hi"}]


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>", clock=lambda: datetime(2024, 2, 29, 12))


def card(**fields: object) -> dict[str, object]:
    return {
        "name": "tiny",
        "bos_id": BOS,
        "eos_ids": [EOS, TURN_END],
        "add_bos": False,
        "chat_template": CHATML,
    } | fields


def test_a_chat_is_rendered_letter_by_letter() -> None:
    chat = [*USER, {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Bye"}]
    assert template(CHATML).render(chat) == (
        "<|im_start|>system\nYou help.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
    )
    assert not template(CHATML).render(chat, add_generation_prompt=False).endswith("assistant\n")


def test_templates_get_their_tokens_date_json_and_loop_controls() -> None:
    source = (
        "{{ bos_token }}{{ strftime_now('%d %b %Y') }}{% for m in messages %}{% if loop.index > 1 %}{% break %}"
        "{% endif %}{{ m | tojson }}{% endfor %}{{ eos_token }}"
    )
    rendered = template(source).render([{"role": "user", "content": "<é>"}, *USER])
    assert rendered == '<s>29 Feb 2024{"role": "user", "content": "<é>"}</s>'


def test_a_templates_own_refusal_reaches_the_caller_in_its_words() -> None:
    with pytest.raises(TemplateError, match="refused the messages: only users speak"):
        template("{{ raise_exception('only users speak') }}").render(USER)


@pytest.mark.parametrize(
    "attack",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% for i in range(10000000) %}{% endfor %}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ messages[7]['role'] }}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(attack: str) -> None:
    with pytest.raises(TemplateError, match="refused the messages"):
        template(attack).render(USER)


def test_a_template_that_does_not_end_is_cut() -> None:
    source = "{% for a in range(1000) %}{% for b in range(100) %}{{ 'x' * 1000 }}{% endfor %}{% endfor %}"
    with pytest.raises(TemplateError, match="renders more than"):
        template(source).render(USER)


def test_a_template_that_does_not_compile_is_refused() -> None:
    with pytest.raises(TemplateError, match="does not compile"):
        template("{% for %}")


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([], "0 messages"),
        ([{"role": "user"}], "content of type NoneType"),
        ([{"role": "user", "content": ["x"]}], "content of type list"),
        ([{"role": "wizard", "content": "x"}], "role 'wizard': roles are system, user, assistant, tool"),
        ([{"content": "x"}], "role None"),
        ([{"role": "user", "content": "x", "name": "y"}], "key 'name': only role and content"),
        (["x"], "message 0 is a str"),
        ([{"role": "user", "content": ""}], "the prompt is empty"),
    ],
)
def test_messages_are_validated(messages: list[dict[str, str]], says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says):
        validated_messages(messages)


def test_a_text_gets_the_template_unless_raw() -> None:
    model = TextModel.from_card(card(), byte_level_json())
    assert model.encode_prompt("Hi") == model.encode_prompt(USER)
    assert model.tokenizer.decode(model.encode_prompt("Hi"), skip_special=False) == template(CHATML).render(USER)
    assert model.tokenizer.decode(model.encode_prompt("Hi", raw=True)) == "Hi"


@pytest.mark.parametrize("source", [byte_level_json, sentencepiece_json])
@pytest.mark.parametrize("template_writes_bos", [True, False])
def test_a_rendered_prompt_has_one_bos_whoever_wrote_it(source, template_writes_bos: bool) -> None:  # type: ignore[no-untyped-def]
    text = ("{{ bos_token }}" if template_writes_bos else "") + "{{ messages[0]['content'] }}"
    ids = TextModel.from_card(card(add_bos=True, chat_template=text), source()).encode_prompt("the fox")
    assert ids[0] == BOS
    assert ids.count(BOS) == 1


def test_a_model_without_a_template_takes_raw_texts_only() -> None:
    model = TextModel.from_card(card(chat_template=None), byte_level_json())
    with pytest.raises(TemplateError, match=r"'tiny' has no chat template.*--raw"):
        model.encode_prompt("Hi")
    assert model.encode_prompt("Hi", raw=True)


def test_empty_prompts_and_raw_messages_are_refused() -> None:
    model = TextModel.from_card(card(), byte_level_json())
    with pytest.raises(InvalidRequestError, match="prompt is empty"):
        model.encode_prompt("", raw=True)
    with pytest.raises(InvalidRequestError, match="raw takes a text"):
        model.encode_prompt(USER, raw=True)


def test_a_stream_decodes_and_stops_across_tokens() -> None:
    model = TextModel.from_card(card(), byte_level_json())
    stream = model.stream(stops=["jumps over"])
    shown, stopped_at = "", None
    ids = model.tokenizer.encode_part("the quick fox jumps over the lazy dog")
    for index, token_id in enumerate(ids):
        step = stream.push(token_id)
        shown += step.text
        if step.is_stopped:
            stopped_at = index
            break
    assert shown == "the quick fox "
    assert stream._matcher.matched == "jumps over"
    assert stopped_at is not None
    assert stopped_at < len(ids) - 1
    assert stream.flush() == ("", True)


def test_a_stream_without_a_match_gives_everything_in_the_end() -> None:
    model = TextModel.from_card(card(), byte_level_json())
    stream = model.stream(stops=["dog!", "zebra"])
    text = "the lazy dog"
    shown = "".join(stream.push(token_id).text for token_id in model.tokenizer.encode_part(text))
    assert shown == "the lazy "
    assert stream.flush() == ("dog", False)


def test_a_stop_string_may_complete_with_the_flushed_end() -> None:
    model = TextModel.from_card(card(), byte_level_json())
    stream = model.stream(stops=["a\ufffd"])
    broken = model.tokenizer.bytes.table.index(b"\xe9")
    assert stream.push(model.tokenizer.encode_part("a")[0]).text == ""
    assert stream.push(broken).text == ""
    assert stream.flush() == ("", True)
