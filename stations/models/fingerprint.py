"""The model's fingerprint: equal on two machines exactly when they hold the same model.

blake3 over explicit bytes, so it is stable across processes and machines. It covers the card (but for its labels
`name` and `source` and the fingerprint itself: a renamed model is the same model), the tokenizer's digest, every
tensor's digest, and the layout version.
"""

from __future__ import annotations

import json

import msgspec
from blake3 import blake3

from .card import PLAIN_ATTENTION, ModelCard
from .manifest import Manifest

_LABELS = ("name", "source", "fingerprint")


def fingerprint(card: ModelCard, manifest: Manifest) -> str:
    """blake3 hex of canonical JSON: keys sorted, no spaces, UTF-8, floats in their shortest decimal form (`repr`)."""
    geometry = {key: value for key, value in msgspec.to_builtins(card).items() if key not in _LABELS}
    if card.attention == PLAIN_ATTENTION:  # cards that were written before it could be declared are the same models
        del geometry["attention"]
    tensors = [[f.role, f.layer, t.name, t.kind, t.rows, t.cols, t.blake3] for f in manifest.files for t in f.tensors]
    content = {
        "card": geometry,
        "tokenizer": manifest.tokenizer_blake3,
        "tensors": tensors,
        "layout_version": manifest.layout_version,
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return blake3(text.encode()).hexdigest()
