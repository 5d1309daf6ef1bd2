"""Does a model gain by O(1) layers? What `aeonflow eval --o1` measured, kept by fingerprint and asked before any use.

An overlay has to beat what the same bytes buy otherwise: sinks and the newest rows on every layer. It does where the
mean of KL(window) - KL(overlay), token by token, is positive by more than `MIN_ERRORS` standard errors over at least
`MIN_TOKENS`. The verdict is drawn from the figures whenever it is asked for and never stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
from blake3 import blake3

from aeonflow.kv_options import MIN_MAX_ROWS, KvOptions, OverlayOptions

from .errors import InvalidRequestError, UnsupportedOptionError
from .fleet.state import cache_root
from .plan import Geometry
from .record_file import load_record, save_record

MIN_ERRORS = 2.0
MIN_TOKENS = 256  # scored; a difference over fewer proves nothing, whatever its error is taken to be
_KEPT_SHARE = 7 / 8  # rows that an evicting cache holds on average: from three quarters of its bound to all of it


class OverlayProof(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One measurement. `texts`: blake3 of the token ids; `gain` mean of KL(window) - KL(overlay) and its error."""

    fingerprint: str
    model: str
    o1: OverlayOptions
    window: KvOptions
    context: int
    num_text_tokens: int
    texts: tuple[str, ...]
    kl: float
    window_kl: float
    gain: float
    gain_se: float | None
    recall: float
    window_recall: float
    kv_bytes: int
    window_kv_bytes: int

    @property
    def wins(self) -> bool:
        is_sure = self.gain_se is not None and self.gain > MIN_ERRORS * self.gain_se
        return is_sure and self.num_text_tokens >= MIN_TOKENS

    def __str__(self) -> str:
        """One line for people."""
        error = "?" if self.gain_se is None else f"{self.gain_se:.2g}"
        return (
            f"KL {self.kl:.3g} against {self.window_kl:.3g} of {self.window} in {self.kv_bytes:,} and"
            f" {self.window_kv_bytes:,} bytes, a gain of {self.gain:+.2g} ± {error} at {self.context:,} tokens"
            f" over {self.num_text_tokens:,}"
        )


def equal_window(o1: OverlayOptions, context: int, model: Geometry) -> KvOptions:
    """Sinks and newest rows that take as many bytes on average as a model with these layers does at `context`.

    InvalidRequestError where that is all rows: there is nothing to save at this context.
    """
    row = 2 * 4 * model.num_kv_heads * model.head_dim
    sealed = model.num_layers if o1.layers is None else len(o1.layers)
    bytes_of = sealed * _state_bytes(o1, model)
    bytes_of += (model.num_layers - sealed) * context * row
    held = bytes_of / (model.num_layers * row)
    rows = round(held / _KEPT_SHARE)
    if rows >= context:  # few layers are sealed: as many bytes at most
        rows = round(held)
    limit = max(rows, MIN_MAX_ROWS)
    if max(limit, o1.boundary) >= context:
        raise InvalidRequestError(
            f"context {context}: these layers take the bytes of {limit} rows and are sealed at {o1.boundary}; measure"
            " them at a longer one"
        )
    return KvOptions(max_rows=limit, evict="recent", sink=min(o1.sink, limit // 4))


def proofs_folder(environ: Mapping[str, str]) -> Path:
    """Where reports lie, beside the models."""
    return cache_root(environ) / "proofs"


def digest_of(ids: list[int]) -> str:
    """blake3 of a text's token ids."""
    return blake3(",".join(map(str, ids)).encode()).hexdigest()


def save_proof(folder: Path, proof: OverlayProof) -> Path:
    """Replace what was measured of this model and these layers; returns the file."""
    return save_record(_path(folder, proof.fingerprint, proof.o1), proof)


def find_proof(folder: Path, fingerprint: str, o1: OverlayOptions) -> OverlayProof | None:
    """What was measured of this model and these layers, or None. UnsupportedOptionError for a file of other content."""
    path = _path(folder, fingerprint, o1)
    proof = load_record(path, OverlayProof, "aeonflow eval FILE… --o1 …", UnsupportedOptionError)
    if proof is not None and (proof.fingerprint, proof.o1) != (fingerprint, o1):
        raise UnsupportedOptionError(f"{path} is the report of {proof.o1} on the model {proof.fingerprint}")
    return proof


def is_certified(kv: KvOptions, fingerprint: str, folder: Path, *, approximate: bool) -> bool:
    """Is every O(1) layer of these options shown to gain on this model? UnsupportedOptionError, naming the figures,
    where it is not and `approximate` does not permit it; False without such layers."""
    if kv.o1 is None:
        return False
    proof = find_proof(folder, fingerprint, kv.o1)
    if proof is not None and proof.wins:
        return True
    if not approximate:
        why = (
            "no report shows that it beats sinks and a window of equal bytes on this model"
            f" ({fingerprint[:12]}); measure it with: aeonflow eval FILE… --o1 …"
            if proof is None
            else f"it does not beat a window of equal bytes on this model: {proof}"
        )
        raise UnsupportedOptionError(f"o1 {kv.o1}: {why}; --approximate uses it all the same")
    return False


def _state_bytes(o1: OverlayOptions, model: Geometry) -> int:
    """Bytes of a sealed layer: sinks, window and landmarks of its groups, sums and scratch of its heads."""
    head_dim, per_kv = model.head_dim, model.num_heads // model.num_kv_heads
    far = o1.m * head_dim + per_kv * (2 * o1.m * head_dim + 2 * o1.m + o1.m * o1.m)
    scratch = per_kv * (o1.sink + o1.w + 3 * o1.m)
    return 4 * model.num_kv_heads * (2 * (o1.sink + o1.w) * head_dim + far + scratch)


def _path(folder: Path, fingerprint: str, o1: OverlayOptions) -> Path:
    return folder / fingerprint / f"o1-{blake3(str(o1).encode()).hexdigest()[:16]}.json"
