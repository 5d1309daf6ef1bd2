"""What `Open.cache` may hold: how a session's KV is kept, what combines with what, and how many bytes it takes.

The one schema that hosts write and stations read (`docs/kv-cache.md`, *Options*). Values that a version does not know
are refused by name, never ignored. Knows no cache and no model beyond the sizes it is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from .errors import UnsupportedError

MODES = ("f32", "f16")
DEFAULT_MODE = "f32"


class KvOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How the KV of a session is kept. Made by `parse_kv_options`, which checks it.

    `kv` is the storage of K and V rows.
    """

    kv: str = DEFAULT_MODE

    def to_wire(self) -> dict[str, Any]:
        """The map for `Open.cache` and hello: what differs from the defaults."""
        wire: dict[str, Any] = msgspec.to_builtins(self)
        return wire

    def __str__(self) -> str:
        """One line for people: `f16`, `q8 exact_recent=64`."""
        rest = (f"{name}={value}" for name, value in self.to_wire().items() if name != "kv")
        return " ".join((self.kv, *rest))

    @property
    def is_plain(self) -> bool:
        """Are all rows kept as computed?"""
        return self == KvOptions()


# What a station offers, by option, as it stands in its hello.
OFFERED: dict[str, Any] = {"kv": list(MODES)}


def parse_kv_options(cache: Mapping[str, Any]) -> KvOptions:
    """The options of a map. UnsupportedError names an option or value that is not known, and what is."""
    known = KvOptions.__struct_fields__
    for option in cache:
        if option not in known:
            raise UnsupportedError(f"cache option {option!r}: supported are {', '.join(known)}")
    try:
        options = msgspec.convert(dict(cache), KvOptions)
    except msgspec.ValidationError as error:
        raise UnsupportedError(f"cache options {dict(cache)!r}: {error}") from None
    check_kv_options(options)
    return options


def check_kv_options(options: KvOptions) -> None:
    """UnsupportedError for a value out of range, and for two options that do not go together, named."""
    if options.kv not in MODES:
        raise UnsupportedError(f"cache option kv={options.kv!r}: supported are {', '.join(MODES)}")


class Barrier(NamedTuple):
    """Positions first, first + period, first + 2 · period, … (period 0: only the first) at which caches change form."""

    first: int
    period: int = 0

    def after(self, position: int) -> int | None:
        """The first one beyond `position`, or None."""
        if position < self.first:
            return self.first
        if not self.period:
            return None
        return self.first + ((position - self.first) // self.period + 1) * self.period


def next_barrier(barriers: Iterable[Barrier], position: int) -> int | None:
    """The first barrier of any beyond `position`: a pass that starts at `position` must end there or before."""
    return min((at for barrier in barriers if (at := barrier.after(position)) is not None), default=None)


def is_barrier(barriers: Iterable[Barrier], position: int) -> bool:
    """Whether caches change form before the row at `position` is stored."""
    return any(barrier.after(position - 1) == position for barrier in barriers)


def row_bytes(options: KvOptions, num_kv_heads: int, head_dim: int) -> int:
    """Bytes of K and V of one position and layer."""
    return 2 * num_kv_heads * head_dim * (2 if options.kv == "f16" else 4)
