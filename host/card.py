"""The model as a host knows it: the bundle that the embed station serves. A host reads no model file."""

from __future__ import annotations

from typing import Any

import cbor2
import msgspec

from aeonflow.errors import RemoteProtocolError

from .plan import Geometry
from .text import TextModel


class HostCard(Geometry, frozen=True, kw_only=True):
    """The fields of the model card that the host works with: the geometry, and what the model is called."""

    name: str
    fingerprint: str
    residual: str = "sequential"  # how attention and ffn of a layer meet (`docs/models.md`)


class ModelBundle(msgspec.Struct, frozen=True):
    """Card and text side of one model."""

    card: HostCard
    text: TextModel


def read_bundle(payload: bytes | bytearray | memoryview) -> ModelBundle:
    """From the CBOR a station answered GetCard with: {card, tokenizer, manifest}. RemoteProtocolError if it is none."""
    try:
        content: dict[str, Any] = cbor2.loads(bytes(payload))
        card = msgspec.convert(content["card"], HostCard)
        text = TextModel.from_card(content["card"], content["tokenizer"])
    except (cbor2.CBORDecodeError, msgspec.ValidationError, KeyError, TypeError) as error:
        raise RemoteProtocolError(f"a model bundle of {len(payload)} bytes that cannot be read: {error}") from error
    return ModelBundle(card, text)
