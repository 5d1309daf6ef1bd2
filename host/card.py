"""The model as a host knows it: the bundle that the embed station serves. A host reads no model file."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import cbor2
import msgspec

from aeonflow import bands
from aeonflow.errors import DeadlineError, RemoteProtocolError
from aeonflow.messages import GetCard

from .links import StationLink
from .plan import Geometry, Plan
from .text import TextModel

BUNDLE_TIMEOUT_S = 30.0  # a large tokenizer over a slow link


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


async def fetch_bundle(plan: Plan, stations: Sequence[StationLink]) -> ModelBundle:
    """Ask the first station that embeds. DeadlineError naming it, RemoteProtocolError, the station's own errors.

    Read in a thread: a large tokenizer takes seconds on a busy machine, and links must beat meanwhile.
    """
    station = stations[next(i for i, s in enumerate(plan.stations) if any(r.name == "embed" for r in s.roles))]
    try:
        async with asyncio.timeout(BUNDLE_TIMEOUT_S):
            reply = await station.ask(GetCard(), bands.WEIGHTS)
    except TimeoutError:
        raise DeadlineError(f"station {station.name} sent no model card within {BUNDLE_TIMEOUT_S:g} s") from None
    return await asyncio.to_thread(read_bundle, reply.payload)
