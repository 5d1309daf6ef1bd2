"""The three small documents of a model folder, and the bundle in which they travel together.

`card.json` and `manifest.json` are canonical JSON; `tokenizer.json` is the tokenizers library's format. The bundle is
CBOR {card: map, tokenizer: text, manifest: map}: enough for a host to work, and for a station to begin a folder that
holds no weights yet.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import cbor2
import msgspec

from aeonflow.frames import Buffer
from aeonflow.messages import RESIDUALS

from .card import ModelCard
from .errors import CorruptModelError, UnsupportedModelError
from .manifest import Manifest, decode_manifest

CARD_FILE = "card.json"
TOKENIZER_FILE = "tokenizer.json"
MANIFEST_FILE = "manifest.json"
# of all kernels there are
_ARITHMETIC = {"architecture": ("llama",), "activation": ("silu",), "residual": RESIDUALS}


class Bundle(NamedTuple):
    """Card, tokenizer (text of tokenizer.json) and manifest of one model."""

    card: ModelCard
    tokenizer_json: str
    manifest: Manifest


def encode_document(document: ModelCard | Manifest) -> bytes:
    """Canonical JSON, readable: keys sorted, two spaces of indent, a newline at the end."""
    return msgspec.json.format(msgspec.json.encode(document, order="deterministic"), indent=2) + b"\n"


def decode_card(data: bytes) -> ModelCard:
    """The card of `card.json`; CorruptModelError names the field that is wrong, UnsupportedModelError arithmetic that
    this version does not do."""
    try:
        card = msgspec.json.decode(data, type=ModelCard)
    except msgspec.DecodeError as error:
        raise CorruptModelError(f"{CARD_FILE}: {error}") from error
    _check_arithmetic(card)
    return card


def encode_bundle(bundle: Bundle) -> bytes:
    """CBOR of the bundle."""
    return cbor2.dumps(
        {
            "card": msgspec.to_builtins(bundle.card),
            "tokenizer": bundle.tokenizer_json,
            "manifest": msgspec.to_builtins(bundle.manifest),
        }
    )


def decode_bundle(data: Buffer) -> Bundle:
    """The bundle of CBOR bytes from a peer, every field checked; raises as `decode_card` and `decode_manifest` do."""
    try:
        content = cbor2.loads(bytes(data))
        card = msgspec.convert(content["card"], ModelCard)
        manifest = decode_manifest(msgspec.json.encode(content["manifest"]))
        tokenizer = msgspec.convert(content["tokenizer"], str)
    except (cbor2.CBORDecodeError, msgspec.MsgspecError, KeyError, TypeError, UnicodeError) as error:
        raise CorruptModelError(f"model bundle of {len(data)} bytes: {error}") from error
    _check_arithmetic(card)
    return Bundle(card, tokenizer, manifest)


def _check_arithmetic(card: ModelCard) -> None:
    """A card of a later version may name what kernels of this one would silently compute in another way."""
    for field, supported in _ARITHMETIC.items():
        if (found := getattr(card, field)) not in supported:
            raise UnsupportedModelError(f"{CARD_FILE}: {field} {found!r}; supported is {', '.join(supported)}")
    check_attention(card)


def check_attention(card: ModelCard) -> None:
    """UnsupportedModelError for an attention that no kernel could compute, with the numbers."""
    declared = card.attention
    if len(declared.windows) not in (0, card.num_layers) or any(window < 0 for window in declared.windows):
        raise UnsupportedModelError(
            f"sliding windows {list(declared.windows)}: one of at least 0 rows for each of {card.num_layers} layers"
        )
    for name in ("softcap", "scale"):
        value = getattr(declared, name)
        if not math.isfinite(value) or value < 0:
            raise UnsupportedModelError(f"attention {name} {value}: a number above 0 is expected")
