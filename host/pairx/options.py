"""`--pair-x`, `--pair-x-layers` and `--pair-x-seed` as values: what can be said before a plan or a model is known."""

from __future__ import annotations

import re

import msgspec

from aeonflow.messages import SEEDS

from ..errors import InvalidRequestError, UnsupportedOptionError
from ..kv_options import KvKeywords
from ..plan import effect_of

OFF = "off"
ALL = "all"
_AUTO = re.compile(r"auto:(\d{1,4})")
_SPAN = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?")


class Layers(msgspec.Struct, frozen=True):
    """`all`, `auto:K` (the K that the probe found least harmed) or a list such as `2,5-9`: layers that take a seed."""

    count: int = 0  # of auto
    listed: tuple[int, ...] = ()

    @property
    def is_all(self) -> bool:
        return not self.count and not self.listed

    @classmethod
    def parse(cls, text: str) -> Layers:
        """InvalidRequestError for what is none of the three."""
        if text == ALL:
            return cls()
        if match := _AUTO.fullmatch(text):
            if int(match[1]) < 1:
                raise InvalidRequestError("pair_x_layers 'auto:0': at least 1 layer is needed")
            return cls(count=int(match[1]))
        listed: set[int] = set()
        for part in text.split(","):
            match = _SPAN.fullmatch(part.strip())
            lo, hi = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
            if lo > hi:
                raise InvalidRequestError(f"pair_x_layers {text!r}: all, auto:K, or layers such as 2,5-9 are expected")
            listed.update(range(lo, hi + 1))
        return cls(listed=tuple(sorted(listed)))


class PairX(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for. `approximate`: live also on a model that was not built for it."""

    mode: str = OFF
    layers: str | None = None
    seed: str | None = None
    approximate: bool = False

    @classmethod
    def asked(cls, mode: str, layers: str | None, seed: str | None, kv: KvKeywords) -> PairX:
        """From an engine's keywords. `approximate` permits live; it leaves `kv` where only live can mean it."""
        is_approximate = kv.get("approximate", False)
        if mode == "live" and kv.get("o1") is None:
            kv.pop("approximate", None)
        return cls(mode=mode, layers=layers, seed=seed, approximate=is_approximate)

    @property
    def is_on(self) -> bool:
        return self.mode != OFF

    @property
    def wanted(self) -> Layers:
        return Layers.parse(self.layers or ALL)

    def check(self) -> None:
        """InvalidRequestError or UnsupportedOptionError by name, before anything starts."""
        effect_of("pair_x", self.mode)
        if not self.is_on:
            for name, value in (("pair_x_layers", self.layers), ("pair_x_seed", self.seed)):
                if value is not None:
                    raise InvalidRequestError(f"{name} {value}: without pair_x no layer takes a seed")
            return
        if self.wanted.listed[:1] == (0,):
            raise InvalidRequestError(f"pair_x_layers {self.layers}: layer 0 has no layer below it to seed it")
        if self.seed is not None and self.seed not in SEEDS:
            raise InvalidRequestError(f"pair_x_seed {self.seed!r}: allowed is {', '.join(SEEDS)}")
        if self.seed == "x" and self.mode not in ("shadow", "draft"):
            raise UnsupportedOptionError(f"pair_x_seed x with pair_x {self.mode}: it is a seed of shadow and draft")
