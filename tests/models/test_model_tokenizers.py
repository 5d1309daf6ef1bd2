from __future__ import annotations

import json
from pathlib import Path

import pytest
import sentencepiece
from tokenizers import Tokenizer

from stations.models import ModelFolder, UnsupportedModelError
from stations.models.byte_level import byte_characters, byte_level_json
from stations.models.gguf_tokenizer import GgufTokenizer
from stations.models.hf_tokenizer import HfTokenizer
from stations.models.pretokenizers import pre_tokenizer
from stations.models.sentence_piece_model import read_sentence_piece
from stations.models.synthetic_tokenizer import synthetic_tokenizer

GOLDEN = Path(__file__).parent.parent / "golden" / "smollm2.json"
VARIED = [
    "Hello world", " leading", "trailing ", "  two", "a  b   c", "\n\nline\n", "tab\there", "I'm we've IT'S",
    "1234567 and 3.14159", "naïve café", "日本語のテキスト", "👩‍👩‍👧 family", "e\u0301", "x" * 40, "    indented code",
    "<0x0A> literal", "▁ marker", "", " ", "a", "…—–“”", "mixed中文and English",
]  # fmt: skip


def ids(text: str, tokenizer: Tokenizer) -> list[int]:
    found: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return found


def test_smollm2s_prompt_ids_equal_the_golden_ones(smollm2: Path) -> None:
    tokenizer = Tokenizer.from_str(ModelFolder.open(smollm2).tokenizer_json)
    prompts = json.loads(GOLDEN.read_text())["prompts"]
    assert len(prompts) == 5
    for prompt in prompts:
        assert ids(prompt["templated"], tokenizer) == prompt["prompt_ids"]
        assert tokenizer.decode(prompt["prompt_ids"], skip_special_tokens=False) == prompt["templated"]


def test_smollm2s_card_has_the_facts_of_the_model(smollm2: Path) -> None:
    card = ModelFolder.open(smollm2).card
    assert (card.num_layers, card.hidden_size, card.num_heads, card.num_kv_heads, card.head_dim) == (30, 576, 9, 3, 64)
    assert (card.ffn_size, card.vocab_size, card.context_length) == (1536, 49152, 8192)
    assert (card.rope.theta, card.rope.dim, card.rope.factors, card.rope.scaling) == (100_000.0, 64, None, None)
    assert (card.bos_id, card.eos_ids, card.add_bos, card.tied_embeddings) == (1, (2,), False, True)
    assert card.chat_template is not None
    assert "You are a helpful AI assistant named SmolLM" in card.chat_template


@pytest.fixture(scope="module")
def sentence_piece_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SentencePiece BPE trained like Llama's: identity normalization, byte fallback, dummy prefix."""
    folder = tmp_path_factory.mktemp("spm")
    words = "the quick brown fox jumps over lazy dogs while seven wizards make toxic brew for evil queens and Jack"
    text = [
        f"{a} {b}{'  ' * (i % 3)} {c}, {i}!"
        for i, (a, b, c) in enumerate(zip(*[iter(words.split() * 30)] * 3, strict=True))
    ]
    (folder / "text.txt").write_text("\n".join([*text, "        indented", "    four", "aaaa aaaaaaa aaa"]))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text.txt"), model_prefix=str(folder / "tokenizer"), vocab_size=420, model_type="bpe",
        byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True, split_digits=True, user_defined_symbols=["<|user|>"], minloglevel=2,
    )  # fmt: skip
    return folder / "tokenizer.model"


def test_sentence_piece_ids_and_text_equal_the_librarys(sentence_piece_file: Path) -> None:
    oracle = sentencepiece.SentencePieceProcessor(model_file=str(sentence_piece_file))
    tokenizer = Tokenizer.from_str(read_sentence_piece(sentence_piece_file))
    for text in [*VARIED, "the quick brown wizards", "aaaaaaaaaaaaa", "seven  wizards\nmake   brew", "Jack!!"]:
        expected = oracle.encode(text)
        assert ids(text, tokenizer) == expected, text
        assert tokenizer.decode(expected) == oracle.decode(expected), text


def test_a_gguf_sentence_piece_vocabulary_gives_the_same_ids(sentence_piece_file: Path) -> None:
    oracle = sentencepiece.SentencePieceProcessor(model_file=str(sentence_piece_file))
    size = oracle.get_piece_size()
    types = [
        2 if oracle.is_unknown(i) else 3 if oracle.is_control(i) else 6 if oracle.is_byte(i) else 1 for i in range(size)
    ]
    types[oracle.piece_to_id("<|user|>")] = 4
    found = GgufTokenizer(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": [oracle.id_to_piece(i) for i in range(size)],
            "tokenizer.ggml.scores": [oracle.get_score(i) for i in range(size)],
            "tokenizer.ggml.token_type": types,
            "tokenizer.ggml.bos_token_id": oracle.bos_id(),
            "tokenizer.ggml.eos_token_id": oracle.eos_id(),
        }
    )
    assert found.add_bos  # SentencePiece models put BOS unless the file says otherwise
    tokenizer = Tokenizer.from_str(found.json)
    for text in [*VARIED, "the lazy dogs jump", "wizards make toxic brew"]:
        assert ids(text, tokenizer) == oracle.encode(text), text


def test_a_folder_with_sentence_pieces_own_file_only_is_read(sentence_piece_file: Path) -> None:
    found = HfTokenizer(sentence_piece_file.parent, {"bos_token_id": 1, "eos_token_id": 2})
    oracle = sentencepiece.SentencePieceProcessor(model_file=str(sentence_piece_file))
    assert ids("the quick fox", Tokenizer.from_str(found.json)) == oracle.encode("the quick fox")
    assert (found.bos_id, found.eos_ids, found.add_bos) == (1, (2,), True)


def test_special_pieces_are_matched_whole_and_text_after_them_gets_its_space(sentence_piece_file: Path) -> None:
    tokenizer = Tokenizer.from_str(read_sentence_piece(sentence_piece_file))
    eos, user = tokenizer.token_to_id("</s>"), tokenizer.token_to_id("<|user|>")
    found = ids("the</s>the<|user|>the", tokenizer)
    the = ids("the", tokenizer)
    assert found == [*the, eos, *the, user, *the]


def test_sentence_piece_models_of_other_kinds_are_refused(sentence_piece_file: Path, tmp_path: Path) -> None:
    sentencepiece.SentencePieceTrainer.train(
        input=str(sentence_piece_file.parent / "text.txt"), model_prefix=str(tmp_path / "unigram"), vocab_size=330,
        model_type="unigram", byte_fallback=True, minloglevel=2, hard_vocab_limit=False,
    )  # fmt: skip
    with pytest.raises(UnsupportedModelError, match=r"model type 1; supported is 2 \(BPE\)"):
        read_sentence_piece(tmp_path / "unigram.model")


# What a pre-tokenizer makes of "I'm 12345 it's\n\n  x": pieces as the published patterns of these models give them.
SAMPLE = "I'm 12345 IT'S\n\n  x!?\r\n<=> ok"
PIECES = {
    "llama-bpe": ["I", "'m", " ", "123", "45", " IT", "'S", "\n\n", " ", " x", "!?\r\n", "<=>", " ok"],
    "qwen2": ["I", "'m", " ", "1", "2", "3", "4", "5", " IT", "'S", "\n\n", " ", " x", "!?\r\n", "<=>", " ok"],
    "gpt-2": ["I", "'m", " 12345", " IT", "'", "S", "\n\n ", " x", "!?", "\r", "\n", "<=>", " ok"],
    "smollm": ["I", "'m", " ", "1", "2", "3", "4", "5", " IT", "'", "S", "\n\n ", " x", "!?", "\r", "\n", "<=>", " ok"],
    "tekken": ["I", "'m", " ", "1", "2", "3", "4", "5", " IT", "'S", "\n\n", " ", " x", "!?\r\n", "<=>", " ok"],
    "gpt-4o": ["I'm", " ", "123", "45", " IT'S", "\n\n", " ", " x", "!?\r\n", "<=>", " ok"],
    "default": ["I", "'", "m", " ", "123", "45", " IT", "'", "S", "\n\n ", " x", "!?", "\r\n", "<=>", " ok"],
}


@pytest.mark.parametrize("name", PIECES)
def test_text_is_cut_before_merging_as_the_name_says(name: str) -> None:
    vocabulary = {c: i for i, c in enumerate(byte_characters())}
    tokenizer = Tokenizer.from_str(byte_level_json(vocabulary, [], [], pre_tokenizer(name).component))
    assert tokenizer.pre_tokenizer is not None
    cut = [SAMPLE[a:b] for _, (a, b) in tokenizer.pre_tokenizer.pre_tokenize_str(SAMPLE)]
    assert "".join(cut) == SAMPLE
    assert cut == PIECES[name]


def test_a_word_that_is_a_token_is_taken_whole_where_the_name_says_so() -> None:
    vocabulary = {c: i for i, c in enumerate(byte_characters())} | {"hello": 256}
    for name, expected in (("llama-bpe", [256]), ("gpt-2", [ord(c) for c in "hello"])):
        cut = pre_tokenizer(name)
        text = byte_level_json(vocabulary, [], [], cut.component, ignore_merges=cut.ignore_merges)
        assert ids("hello", Tokenizer.from_str(text)) == expected


def test_an_unknown_pre_tokenizer_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnsupportedModelError, match=r"'chameleon' is not supported; supported are .*llama-bpe.*smollm"):
        pre_tokenizer("chameleon")


@pytest.mark.parametrize("vocab", [259, 512, 5000])
def test_any_text_encodes_and_comes_back_with_a_generated_tokenizer(vocab: int) -> None:
    tokenizer = Tokenizer.from_str(synthetic_tokenizer(vocab))
    assert tokenizer.get_vocab_size() == vocab
    for text in VARIED:
        found = ids(text, tokenizer)
        assert all(0 <= i < vocab for i in found)
        assert tokenizer.decode(found, skip_special_tokens=False) == text
    assert len(ids("閫", tokenizer)) == 3
    assert ids("<|im_start|>user", tokenizer)[0] == 1
