"""Serving a model over stream af40: the bundle, and pieces of weight files by digest. Pure: request in, bytes out."""

from __future__ import annotations

import os

import msgspec

from aeonflow.assembly import Message
from aeonflow.errors import BadMessageError
from aeonflow.messages import GetCard, GetChunk, WeightsRequest, decode_weights

from .documents import Bundle, encode_bundle
from .errors import MissingWeightsError, ModelError
from .folder import ModelFolder

MAX_CHUNK_BYTES = 1 << 20  # read and sent in one turn of the loop; a larger one would hold up the frames of decodes


class WeightsServer:
    """Answers requests for one model folder; encodes its bundle once."""

    def __init__(self, folder: ModelFolder) -> None:
        self._folder = folder
        self._by_digest = {entry.blake3: entry for entry in folder.manifest.files}
        self._bundle: bytes | None = None

    def answer_message(self, message: Message, max_bytes: int) -> bytes:
        """`answer` for a message of stream af40; raises BadMessageError when it is no request."""
        try:
            request = decode_weights(message.payload)
        except msgspec.DecodeError as error:
            raise BadMessageError(f"weights request of {len(message.payload)} bytes: {error}") from error
        return self.answer(request, max_bytes)

    def answer(self, request: WeightsRequest, max_bytes: int = MAX_CHUNK_BYTES) -> bytes:
        """The reply's payload: CBOR for GetCard; for GetChunk raw bytes, cut to `max_bytes` and to the file's end.

        Raises MissingWeightsError for a digest that is not here, ModelError for bytes outside the file.
        """
        if isinstance(request, GetCard):
            return self._card()
        return self._chunk(request, min(max_bytes, MAX_CHUNK_BYTES))

    def _card(self) -> bytes:
        if self._bundle is None:
            folder = self._folder
            self._bundle = encode_bundle(Bundle(folder.card, folder.tokenizer_json, folder.manifest))
        return self._bundle

    def _chunk(self, request: GetChunk, max_bytes: int) -> bytes:
        entry = self._by_digest.get(request.digest)
        if entry is None:
            raise MissingWeightsError(f"no file of {self._folder.card.name} has blake3 {request.digest[:64]!r}")
        if request.length < 1 or not 0 <= request.offset < entry.bytes:
            raise ModelError(
                f"{entry.name}: {request.length} bytes at {request.offset} are asked for, the file has {entry.bytes}"
            )
        try:
            with open(self._folder.path / entry.name, "rb") as file:
                return os.pread(file.fileno(), min(request.length, max_bytes), request.offset)
        except FileNotFoundError as error:
            raise MissingWeightsError(f"{entry.name} ({entry.bytes} bytes) is not kept here") from error
