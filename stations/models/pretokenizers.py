"""Pre-tokenizers of byte-level BPE, by the name that a GGUF file gives (`tokenizer.ggml.pre`)."""

from __future__ import annotations

from typing import Any

JsonObject = dict[str, Any]

GPT2_WORDS: JsonObject = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
