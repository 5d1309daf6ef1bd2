"""The text form of a generated model: `synthetic:layers=4,hidden=64,…,type=q4_1`, checked with the numbers named."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from aeonflow.messages import RESIDUALS

from ..layout import weight_format
from .card import Attention
from .checkpoint import SUPPORTED_TYPES
from .errors import UnsupportedModelError

PREFIX = "synthetic:"
_WORDS = ("type", "residual")  # keys whose values are no numbers
SPECIAL_TEXTS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # ids 0, 1, 2


@dataclass(frozen=True, slots=True)
class SyntheticSpec:
    """Geometry of a generated model; the fields are the keys of the text form."""

    layers: int = 4
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    ffn: int = 128
    vocab: int = 512
    seed: int = 1
    type: str = "q4_1"  # of every matrix
    head_dim: int = 0  # 0: hidden / heads
    context: int = 2048
    theta: int = 10_000
    tied: int = 1
    residual: str = "sequential"  # one of RESIDUALS: how attention and ffn of a layer meet
    window: int = 0  # rows that sliding layers see; 0: no layer slides
    full_every: int = 2  # with a window: every such layer sees all rows, counted from 1; 0: all layers slide
    softcap: int = 0  # of attention scores; 0: off
    scalar: int = 0  # scores are divided by its root; 0: head_dim
    sinks: int = 0  # 1: a learned sink a query head

    @classmethod
    def parse(cls, text: str) -> SyntheticSpec:
        """`synthetic:key=value,…`, keys left out have their defaults. Raises UnsupportedModelError by name."""
        known = {f.name: f.type for f in fields(cls)}
        values: dict[str, int | str] = {}
        for item in filter(None, text.removeprefix(PREFIX).split(",")):
            key, _, value = (part.strip() for part in item.partition("="))
            if key not in known:
                raise UnsupportedModelError(f"synthetic: {key!r} is unknown; known are {', '.join(known)}")
            if key not in _WORDS and not re.fullmatch("[0-9]{1,9}", value):
                raise UnsupportedModelError(f"synthetic: {key}={value!r} is not a number below a billion")
            values[key] = value.lower() if key in _WORDS else int(value)
        spec = cls(**values)  # type: ignore[arg-type]
        spec._check()
        return spec

    @property
    def name(self) -> str:
        """A folder's name that holds every field differing from the default."""
        default = SyntheticSpec()
        keys = [f.name for f in fields(self) if getattr(self, f.name) != getattr(default, f.name)]
        parts = [f"{key}{getattr(self, key)}" for key in keys]
        return "-".join(["synthetic", *parts])

    def _check(self) -> None:
        block = weight_format(self.type).source_block_cols if self.type.upper() in SUPPORTED_TYPES.split(", ") else 0
        smallest = 256 + len(SPECIAL_TEXTS)
        if not block:
            raise UnsupportedModelError(f"synthetic: type={self.type}; supported are {SUPPORTED_TYPES.lower()}")
        if not min(self.layers, self.hidden, self.heads, self.kv_heads, self.ffn, self.context, self.theta):
            raise UnsupportedModelError("synthetic: layers, hidden, heads, kv_heads, ffn, context, theta >= 1")
        if self.heads % self.kv_heads:
            raise UnsupportedModelError(f"synthetic: heads={self.heads} is no multiple of {self.kv_heads} kv_heads")
        if not self.head_dim and self.hidden % self.heads:
            raise UnsupportedModelError(f"synthetic: hidden={self.hidden} is no multiple of heads={self.heads}")
        if self.dim % 2 or self.hidden % block or self.ffn % block or self.heads * self.dim % block:
            raise UnsupportedModelError(
                f"synthetic: widths hidden={self.hidden}, ffn={self.ffn}, heads x head_dim="
                f"{self.heads * self.dim} must be multiples of {block} for {self.type}, head_dim={self.dim} even"
            )
        if self.residual not in RESIDUALS:
            raise UnsupportedModelError(f"synthetic: residual={self.residual}; known are {', '.join(RESIDUALS)}")
        if self.vocab < smallest:
            raise UnsupportedModelError(f"synthetic: vocab={self.vocab}, at least {smallest} (bytes and specials)")

    @property
    def attention(self) -> Attention:
        """What the card declares."""
        slides = [self.window if not self.full_every or (i + 1) % self.full_every else 0 for i in range(self.layers)]
        return Attention(
            windows=tuple(slides) if self.window else (),
            softcap=float(self.softcap),
            scale=self.scalar**-0.5 if self.scalar else 0.0,
            has_sinks=bool(self.sinks),
        )

    @property
    def dim(self) -> int:
        return self.head_dim or self.hidden // self.heads
