"""What `Open.cache` may hold: how a session's KV is kept, what combines with what, and how many bytes it takes.

The one schema that hosts write and stations read (`docs/kv-cache.md`, *Options*). Values that a version does not know
are refused by name, never ignored. Knows no cache and no model beyond the sizes it is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from .errors import UnsupportedError

MODES = ("f32", "f16", "q8", "q8k", "q8v", "q4")  # q8k and q8v code K or V only
CODED_MODES = ("q8", "q8k", "q8v", "q4")
DEFAULT_MODE = "f32"
DEFAULT_EXACT_RECENT = {"q4": 64}  # rows; of other modes none
EXACT_SINKS = 4  # first rows that stay exact where recent ones do
MAX_EXACT_RECENT = 4096
_GROUP = 32  # rows or channels that share scales
_OPEN_ROWS = 3 * _GROUP  # rows that wait, exact, until their group is coded


class KvOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How the KV of a session is kept. Made by `parse_kv_options`, which checks it.

    `kv` is the storage of K and V rows; `exact_recent` newest rows stay exact beside coded ones, and with them the
    first `EXACT_SINKS` (None: the mode's default).
    """

    kv: str = DEFAULT_MODE
    exact_recent: int | None = None

    @property
    def recent_rows(self) -> int:
        """Newest rows that stay exact beside coded ones."""
        return DEFAULT_EXACT_RECENT.get(self.kv, 0) if self.exact_recent is None else self.exact_recent

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
OFFERED: dict[str, Any] = {"kv": list(MODES), "exact_recent": MAX_EXACT_RECENT}


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
    recent = options.exact_recent
    if recent is not None:
        if not 0 <= recent <= MAX_EXACT_RECENT:
            raise UnsupportedError(f"cache option exact_recent={recent}: 0 to {MAX_EXACT_RECENT} rows are allowed")
        if options.kv not in CODED_MODES:
            raise UnsupportedError(
                f"cache options kv={options.kv} and exact_recent={recent} contradict each other: all rows are exact;"
                f" it goes with {', '.join(CODED_MODES)}"
            )


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


def layer_bytes(options: KvOptions, positions: int, num_kv_heads: int, head_dim: int) -> int:
    """Bytes of one layer's K and V when the session is `positions` rows long."""
    groups = -(-head_dim // _GROUP)
    exact = 4 * head_dim
    coded_k, coded_v = head_dim + 4 * groups, head_dim + 4
    row = {
        "f32": 2 * exact,
        "f16": exact,
        "q8": coded_k + coded_v,
        "q8k": coded_k + exact,
        "q8v": exact + coded_v,
        "q4": (head_dim + 1) // 2 + -(-4 * head_dim // _GROUP) + (head_dim + 1) // 2 + 4 * groups,
    }[options.kv]
    num_exact = 0
    if options.kv == "q4" or options.recent_rows:
        num_exact = min(options.recent_rows + EXACT_SINKS + _OPEN_ROWS, positions)
    columns = 2 * exact if options.kv.startswith("q8") else 0
    return num_kv_heads * ((positions - num_exact) * row + num_exact * 2 * exact + columns)
