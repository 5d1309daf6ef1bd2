"""aeonflow, the wire: frames, messages, tensors and links between the stations and hosts that run one language model.

It knows no model and computes nothing. The normative text is `docs/protocol.md`.
"""

from .assembly import Message
from .auth import station_key
from .batcher import FlowSendBatcher
from .endpoint import Server, connect, memory_pair, serve
from .frames import Flags, Frame, FrameDecoder
from .handshake import check_exact, check_hello
from .link import Link
from .link_options import LinkOptions, LinkStats
from .messages import Goodbye, Heartbeat, Hello, Limits, Vent
from .transport.choice import new_event_loop
from .vents import read_vent

__all__ = [
    "Flags",
    "FlowSendBatcher",
    "Frame",
    "FrameDecoder",
    "Goodbye",
    "Heartbeat",
    "Hello",
    "Limits",
    "Link",
    "LinkOptions",
    "LinkStats",
    "Message",
    "Server",
    "Vent",
    "check_exact",
    "check_hello",
    "connect",
    "memory_pair",
    "new_event_loop",
    "read_vent",
    "serve",
    "station_key",
]
