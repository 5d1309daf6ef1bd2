"""Control messages: msgspec structs in msgpack, array-like and tagged by number. Schemas only grow.

Stream `0000` carries `ConnectionMessage` (hello, heartbeat, goodbye); `af00` carries a `Request` and, under the same
sequence, its reply; `af40` carries the weights' requests, `af50` those of traces. A VENT frame on any stream carries a
`Vent`.
"""

from __future__ import annotations

from typing import Any

import msgspec

PROTOCOL_VERSION = 1


class Limits(msgspec.Struct, frozen=True, array_like=True):
    """What a side accepts; of two sides the smaller rules. Bytes and counts."""

    max_message_bytes: int = 64 << 20  # one assembled message
    max_calls: int = 1024  # calls in flight on a connection
    max_sessions: int = 4096
    max_rows: int = 0  # rows of one pass (a prefill chunk) that fit every message; 0: not limited


class DraftOffer(msgspec.Struct, frozen=True):
    """What a station takes of drafts (Pair X): `seeds`, of SEEDS; `window`, positions ahead of the last true one;
    `queue`, jobs of a session's drafts that may wait."""

    seeds: tuple[str, ...]
    window: int
    queue: int


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """First frame of both sides. An empty fingerprint or numerics id means "any" (a host before it knows)."""

    protocol: int
    name: str
    kind: str  # "host" or "station"
    roles: tuple[str, ...] = ()
    fingerprint: str = ""
    numerics: str = ""
    kernels: str = ""
    limits: Limits = Limits()
    dtypes: tuple[str, ...] = ("f32", "u32")
    cache_options: dict[str, Any] = {}
    advertise: str = ""
    software: str = ""
    context_length: int = 0
    num_layers: int = 0
    pid: int = 0
    draft: DraftOffer | None = None  # None: takes no drafts


class Heartbeat(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Sent every second by stations and hosts. `busy_s`: age of the batch being computed, 0 when idle."""

    queued: int = 0
    busy_s: float = 0.0


class Goodbye(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Last frame before a close: an error code of `aeonflow.errors` or "drain", and the reason in words."""

    code: str
    reason: str = ""


ConnectionMessage = Hello | Heartbeat | Goodbye


class Vent(msgspec.Struct, frozen=True, array_like=True):
    """The payload of a VENT frame: a typed error. Fields that do not apply are empty, 0 or -1."""

    code: str
    message: str
    station: str = ""
    session: int = 0
    epoch: int = 0
    kind: int = 0
    first: int = -1
    layer: int = -1


class Carrier(msgspec.Struct, frozen=True, array_like=True):
    """A station carries `role` over layers lo..hi, both included (embed, head: lo = hi = 0), as part i of n."""

    station: int  # index into Route.stations
    role: str
    lo: int = 0
    hi: int = 0
    part: int = 0
    parts: int = 1


class StationAddress(msgspec.Struct, frozen=True, array_like=True):
    name: str
    url: str


PAIR_X_MODES = ("off", "shadow", "bypass", "draft", "live")
SEEDS = ("h", "x")
RESIDUALS = ("sequential", "ladder", "parallel")  # how attention and ffn of a model's layers meet (`docs/models.md`)


class Route(msgspec.Struct, frozen=True, array_like=True):
    """How a pass travels: the whole table, from which every station derives its successors (`aeonflow.route`)."""

    route: int  # nonzero; unique on the host's connection
    num_layers: int
    stations: tuple[StationAddress, ...]
    carriers: tuple[Carrier, ...]
    pair_x: str = "off"  # one of PAIR_X_MODES: what residual seeds do on this route
    seeded: tuple[int, ...] = ()  # layers whose attention takes a seed; 0 has none below it
    seed: str = "h"  # what a seed is: "h" (past attention, S1) or "x" (the layer's input, S2)
    residual: str = "sequential"  # one of RESIDUALS, the model's: it decides what attention takes in
    through_host: bool = False  # what stations have for each other goes to the host, which sends it on


class InstallRoute(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """Install a route on a station; `self_index` is the station's own place in route.stations."""

    route: Route
    self_index: int


class Open(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """Open a session. `route` 0: calls are answered to the caller (relay); else results travel along the route.

    `max_positions` reserves the KV budget; `cache` are the KV options; `idle_s` expires a forgotten session.
    """

    session: int
    route: int
    max_positions: int
    cache: dict[str, Any] = {}
    idle_s: float = 600.0


class Opened(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """Answer to Open. `barriers`: (first position, period) pairs at which this holder's caches change form."""

    session: int
    kv_bytes: int = 0
    barriers: tuple[tuple[int, int], ...] = ()


class Close(msgspec.Struct, frozen=True, array_like=True, tag=13):
    session: int


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """Drop what is queued for the session below `epoch`; the caches are cut to `base` at once."""

    session: int
    epoch: int
    base: int


class Resume(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """Make the first `base` rows valid under `epoch`, from whatever source; answered by Resumed."""

    session: int
    epoch: int
    base: int
    route: int = 0


class Resumed(msgspec.Struct, frozen=True, array_like=True, tag=16):
    """`have`: rows that are valid here under the new epoch (the base asked for, where nothing is cached)."""

    session: int
    have: int


class Where(msgspec.Struct, frozen=True, array_like=True, tag=17):
    session: int


class Whereabouts(msgspec.Struct, frozen=True, array_like=True, tag=18):
    """`passed`: (role, layer, position after the last row sent on) of everything this station carries."""

    session: int
    epoch: int = -1
    known: bool = False
    queued: int = 0
    passed: tuple[tuple[str, int, int], ...] = ()


class Stats(msgspec.Struct, frozen=True, array_like=True, tag=19):
    pass


class StatsReply(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """Counters of a station; keys are documented in `docs/protocol.md`, *Stats*."""

    name: str
    pid: int
    uptime_s: float
    values: dict[str, Any]


class Done(msgspec.Struct, frozen=True, array_like=True, tag=21):
    """An answer without content."""


class Drain(msgspec.Struct, frozen=True, array_like=True, tag=22):
    """Finish what runs, refuse what is new, then leave."""


Request = InstallRoute | Open | Close | Cancel | Resume | Where | Stats | Drain
Reply = Opened | Resumed | Whereabouts | StatsReply | Done


class GetCard(msgspec.Struct, frozen=True, array_like=True, tag=30):
    """Answered with the model's bundle: CBOR {card, tokenizer, manifest}."""


class GetChunk(msgspec.Struct, frozen=True, array_like=True, tag=31):
    """Bytes offset..offset+length of the weight file whose blake3 is `digest` (hex); answered with raw bytes."""

    digest: str
    offset: int
    length: int


WeightsRequest = GetCard | GetChunk


class StartTrace(msgspec.Struct, frozen=True, array_like=True, tag=40):
    """Record the newest `max_events` events, until StopTrace or the end of the link; answered by Clock."""

    max_events: int = 65536


class GetClock(msgspec.Struct, frozen=True, array_like=True, tag=41):
    """Answered by Clock: half a round trip later than asked, which aligns two clocks."""


class Clock(msgspec.Struct, frozen=True, array_like=True, tag=42):
    """The station's monotonic clock, in which its events are told. Seconds since some start of its own."""

    now_s: float


class GetTrace(msgspec.Struct, frozen=True, array_like=True, tag=43):
    """Hand out (and forget) the oldest events, at most so many; answered by TraceEvents."""

    max_events: int = 8192


class TraceEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One thing done for one pass. `what`: aeonflow.trace.What. Fields that do not apply are 0 or empty.

    `layer`..`hi` are layers of the role that `stream` names; a message has the layer it goes to. `queued_s`: when a
    computed pass began to wait. `batch`: the kernel call, shared by passes of equal number. `place`: the url a message
    goes to, empty for a host. `flags`: those of a message. `kind`: aeonflow.tensors.Kind of the rows.
    """

    what: int
    began_s: float
    ended_s: float
    stream: int
    layer: int
    hi: int
    session: int
    epoch: int
    first: int
    rows: int
    port: int = 0
    part: int = 0
    num_bytes: int = 0
    queued_s: float = 0.0
    batch: int = 0
    place: str = ""
    flags: int = 0
    kind: int = 0


class TraceEvents(msgspec.Struct, frozen=True, array_like=True, tag=44):
    """`left`: events that still wait to be asked for; `dropped`: overwritten before anyone asked."""

    events: tuple[TraceEvent, ...]
    left: int = 0
    dropped: int = 0


class StopTrace(msgspec.Struct, frozen=True, array_like=True, tag=45):
    """Record nothing more and forget what is left; answered by Clock."""


TraceRequest = StartTrace | GetClock | GetTrace | StopTrace
TraceReply = Clock | TraceEvents

_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode
decode_connection = msgspec.msgpack.Decoder(ConnectionMessage).decode
decode_request = msgspec.msgpack.Decoder(Request).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode
decode_weights = msgspec.msgpack.Decoder(WeightsRequest).decode
decode_trace_request = msgspec.msgpack.Decoder(TraceRequest).decode
decode_trace_reply = msgspec.msgpack.Decoder(TraceReply).decode
decode_vent = msgspec.msgpack.Decoder(Vent).decode
