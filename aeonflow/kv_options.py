"""What `Open.cache` may hold: how a session's KV is kept, what combines with what, and where caches change form.

The one schema that hosts write and stations read (`docs/kv-cache.md`, *Options*). Values that a version does not know
are refused by name, never ignored. Knows no cache and no model; how many bytes it takes says `kv_sizes.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from .errors import UnsupportedError

MODES = ("f32", "f16", "q8", "q8k", "q8v", "q4")  # q8k and q8v code K or V only
CODED_MODES = ("q8", "q8k", "q8v", "q4")
DEFAULT_MODE = "f32"
DEFAULT_EXACT_RECENT = {"q8": 32, "q8k": 32, "q8v": 32, "q4": 64}  # rows; beside `max_rows` none
EXACT_SINKS = 4  # first rows that stay exact where recent ones do
MAX_EXACT_RECENT = 4096
EVICTIONS = ("recent", "born")
DEFAULT_EVICTION, DEFAULT_SINK = "born", 4
MIN_MAX_ROWS, MIN_WINDOW = 128, 16
MAX_STREAM_POSITIONS = 1 << 20  # of a session whose rows leave: rotation angles are exact that far
MASS_ROWS = 64  # rows whose attention mass joins as one block; those in doubt, at most, whose masses are held apart
MIN_LANDMARKS, MAX_LANDMARKS = 4, 1024
SEAL_SLACK = 9  # rows beyond window and sinks from which on there is a far part worth sealing
ROWS_A_LANDMARK = 8
UNDO_ROWS = 64  # of a sealed layer, after its last barrier: they can be taken back
HELD_OUT_ROWS = 32  # newest rows on which overlay and window are compared before a layer is sealed
CODED_GROUP = 32  # rows that are coded together; channels that share scales


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

    def upto(self, position: int) -> int | None:
        """The last one that is not beyond `position`, or None."""
        if position < self.first:
            return None
        return self.first + (position - self.first) // self.period * self.period if self.period else self.first


def next_barrier(barriers: Iterable[Barrier], position: int) -> int | None:
    """The first barrier of any beyond `position`: a pass that starts at `position` must end there or before."""
    return min((at for barrier in barriers if (at := barrier.after(position)) is not None), default=None)


def is_barrier(barriers: Iterable[Barrier], position: int) -> bool:
    """Whether caches change form before the row at `position` is stored."""
    return any(barrier.upto(position) == position for barrier in barriers)


def last_barrier(barriers: Iterable[Barrier], length: int) -> int:
    """The last barrier that `length` stored rows have passed: nothing below it can be restored by cutting. Else 0."""
    return max((at for barrier in barriers if (at := barrier.upto(length - 1)) is not None), default=0)


class OverlayOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """O(1) attention: `m` landmarks, the newest `w` rows and the first `sink` exact; `layers` None: all.

    At `at` rows (0: chosen) landmarks take the place of the rows.
    """

    m: int = 32
    w: int = 128
    sink: int = 4
    layers: tuple[int, ...] | None = None
    at: int = 0

    def __str__(self) -> str:
        """As on the command line: `m=32,w=128,sink=4`, layers and seal where they are set."""
        parts = [f"m={self.m}", f"w={self.w}", f"sink={self.sink}"]
        if self.layers is not None:
            parts.append("layers=" + "+".join(map(str, self.layers)))
        if self.at:
            parts.append(f"at={self.at}")
        return ",".join(parts)

    @property
    def boundary(self) -> int:
        """The position at which layers are sealed: rows for every landmark, and some to compare with a window."""
        floor = self.w + self.sink + SEAL_SLACK
        return max(self.at or max(floor, self.m * ROWS_A_LANDMARK) + HELD_OUT_ROWS, floor)


class KvOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How the KV of a session is kept. Made by `parse_kv_options`, which checks it.

    `kv` is the storage of K and V rows; `exact_recent` newest rows stay exact beside coded ones, and with them the
    first `EXACT_SINKS` (None: 32 in 8-bit modes, 64 in q4, none where rows leave one by one). `max_rows` bounds the
    rows of a layer (0: no bound): when as many are stored, `evict` says which `eviction_step` of them leave, never one
    of the first `sink`. `window`: rows that a query sees, the newest, itself included (0: all); older rows are dropped.
    `o1`: layers of constant size.
    """

    kv: str = DEFAULT_MODE
    exact_recent: int | None = None
    max_rows: int = 0
    evict: str = ""
    sink: int | None = None
    window: int = 0
    o1: OverlayOptions | None = None

    @property
    def eviction(self) -> str:
        """Which rows leave, "" where none do."""
        return (self.evict or DEFAULT_EVICTION) if self.max_rows else ""

    @property
    def eviction_step(self) -> int:
        """Rows that leave at once: a quarter."""
        return self.max_rows // 4

    @property
    def sink_rows(self) -> int:
        """First rows that never leave."""
        return DEFAULT_SINK if self.sink is None else self.sink

    @property
    def keeps_mass(self) -> bool:
        """Must attention mass be kept for every row?"""
        return self.eviction == "born"

    def max_positions(self, context_length: int) -> int:
        """Positions that a session may have: the model's context, unless rows leave as others come."""
        return max(context_length, MAX_STREAM_POSITIONS) if self.max_rows else context_length

    def layout_barriers(self) -> tuple[Barrier, ...]:
        """Where rows leave and mass is settled; the mode's own barriers are the caches'."""
        barriers = []
        if self.max_rows:
            barriers.append(Barrier(self.max_rows, self.eviction_step))
        if self.keeps_mass:
            barriers.append(Barrier(MASS_ROWS, MASS_ROWS))
        if self.window:
            barriers.append(Barrier(2 * self.window + 1, self.window + 1))
        return tuple(barriers)

    @property
    def recent_rows(self) -> int:
        """Newest rows that stay exact beside coded ones."""
        if self.exact_recent is not None:
            return self.exact_recent
        return 0 if self.max_rows else DEFAULT_EXACT_RECENT.get(self.kv, 0)

    def on_layer(self, layer: int, declared_window: int = 0) -> KvOptions:
        """What holds at one layer of a model that declares a window for it (0: none). A sliding layer bounds its own
        rows, so none are evicted there; the narrower window counts."""
        found = self
        if self.o1 is not None and self.o1.layers is not None and layer not in self.o1.layers:
            found = msgspec.structs.replace(found, o1=None)
        if declared_window:
            exact = self.recent_rows if self.kv in CODED_MODES else None
            window = min(self.window or declared_window, declared_window)
            found = KvOptions(kv=self.kv, exact_recent=exact, window=window, o1=found.o1)
        return found

    def to_wire(self) -> dict[str, Any]:
        """The map for `Open.cache` and hello: what differs from the defaults."""
        wire: dict[str, Any] = msgspec.to_builtins(self)
        return wire

    def shown(self) -> dict[str, Any]:
        """What holds, for status and results: the mode, exact rows of a coded one, the others where they are set."""
        exact = {"exact_recent": self.recent_rows} if self.kv in CODED_MODES else {}
        overlay = {"o1": str(self.o1)} if self.o1 is not None else {}
        return {"kv": self.kv, **exact, **self.to_wire(), **overlay}

    def __str__(self) -> str:
        """One line for people: `f16`, `q8 exact_recent=32`."""
        rest = (f"{name}={value}" for name, value in self.shown().items() if name != "kv")
        return " ".join((self.kv, *rest))


# What a station offers, by option, as it stands in its hello.
OFFERED: dict[str, Any] = {
    "kv": list(MODES), "exact_recent": MAX_EXACT_RECENT, "max_rows": MIN_MAX_ROWS, "evict": list(EVICTIONS), "sink": 0,
    "window": MIN_WINDOW, "o1": {"m": MIN_LANDMARKS, "w": 1, "sink": 0},
}  # fmt: skip


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
    _check_eviction(options)
    _check_overlay(options)
    if options.window and not MIN_WINDOW <= options.window <= MAX_STREAM_POSITIONS:
        raise UnsupportedError(
            f"cache option window={options.window}: at least {MIN_WINDOW} rows, at most {MAX_STREAM_POSITIONS:,}"
        )
    if options.window and options.max_rows:
        raise UnsupportedError(
            f"cache options window={options.window} and max_rows={options.max_rows} contradict each other: a window"
            " drops what it does not see"
        )


def check_on_model(options: KvOptions, windows: Sequence[int], declared: str = "") -> None:
    """UnsupportedError for options that contradict what a model declares, named: `windows` of its layers (0: none), and
    what else its attention has, in words."""
    wider = next((layer for layer, own in enumerate(windows) if own and options.window > own), None)
    if wider is not None:
        raise UnsupportedError(
            f"cache option window={options.window} and the model's own window of {windows[wider]} rows at layer {wider}"
            " contradict each other: a window can only be made narrower"
        )
    other = ", ".join(filter(None, ("sliding windows" if any(windows) else "", declared)))
    if options.o1 is not None and other:
        raise UnsupportedError(f"cache option o1 on a model with {other}: landmarks know full, plain attention only")


def _check_overlay(options: KvOptions) -> None:
    o1 = options.o1
    if o1 is None:
        return
    others = {name: value for name, value in options.to_wire().items() if name != "o1"}
    if others:
        named = " ".join(f"{name}={value}" for name, value in others.items())
        raise UnsupportedError(f"cache options o1 and {named} contradict each other: it needs all rows in f32")
    if not MIN_LANDMARKS <= o1.m <= MAX_LANDMARKS or not 1 <= o1.w <= MAX_STREAM_POSITIONS or not 0 <= o1.sink <= o1.w:
        raise UnsupportedError(
            f"cache option o1 with m={o1.m}, w={o1.w}, sink={o1.sink}: m is {MIN_LANDMARKS} to {MAX_LANDMARKS},"
            f" w 1 to {MAX_STREAM_POSITIONS:,}, sink 0 to w"
        )
    if not 0 <= o1.at <= MAX_STREAM_POSITIONS:
        raise UnsupportedError(f"cache option o1 with at={o1.at}: 0 to {MAX_STREAM_POSITIONS}")


def _check_eviction(options: KvOptions) -> None:
    limit, sink = options.max_rows, options.sink
    if not limit:
        for name, value in (("evict", options.evict or None), ("sink", sink)):
            if value is not None:
                raise UnsupportedError(f"cache option {name}={value} without max_rows: nothing leaves")
        return
    if not MIN_MAX_ROWS <= limit <= MAX_STREAM_POSITIONS:
        raise UnsupportedError(
            f"cache option max_rows={limit}: at least {MIN_MAX_ROWS} rows, at most {MAX_STREAM_POSITIONS:,}"
        )
    if options.eviction not in EVICTIONS:
        raise UnsupportedError(f"cache option evict={options.evict!r}: supported are {', '.join(EVICTIONS)}")
    if not 0 <= options.sink_rows <= limit // 4:
        raise UnsupportedError(f"cache option sink={sink}: 0 to {limit // 4}, a quarter of max_rows={limit}")
    if options.kv == "q4" or options.recent_rows:
        coded = f"kv={options.kv}" + (f" exact_recent={options.recent_rows}" if options.kv != "q4" else "")
        raise UnsupportedError(
            f"cache options max_rows={limit} and {coded} contradict each other: rows coded in groups do not leave"
            " one by one; eviction goes with f32, f16 and q8, q8k, q8v without exact rows"
        )
