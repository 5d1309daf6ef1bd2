"""The tokenizer of generated models: byte-level BPE of any size, so that any text encodes."""

from __future__ import annotations

from itertools import product

from .byte_level import SpecialToken, byte_characters, byte_level_json
from .pretokenizers import GPT2_WORDS
from .synthetic_spec import SPECIAL_TEXTS

_LETTERS = " etaoinshrdlucmfwypvbgkjqxzETAOINSHRDLUCMFWYPVBGKJQXZ0123456789"


def synthetic_tokenizer(vocab_size: int) -> str:
    """`tokenizer.json` of a byte-level BPE with `vocab_size` tokens: specials, bytes, then merges of ASCII letters.

    Characters beyond ASCII always take several tokens.
    """
    special = [SpecialToken(i, text, True) for i, text in enumerate(SPECIAL_TEXTS)]
    characters = byte_characters()
    vocabulary = {text: i for i, text in enumerate(SPECIAL_TEXTS)}
    vocabulary.update((character, len(SPECIAL_TEXTS) + byte) for byte, character in enumerate(characters))
    merges: list[tuple[str, str]] = []
    letters = [characters[ord(c)] for c in _LETTERS]
    words = letters
    while len(vocabulary) < vocab_size:
        pairs = product(words, letters[1:])  # a space only ever starts a word
        words = []
        for left, right in pairs:
            if len(vocabulary) == vocab_size:
                break
            vocabulary[left + right] = len(vocabulary)
            merges.append((left, right))
            words.append(left + right)
    return byte_level_json(vocabulary, merges, special, GPT2_WORDS)
