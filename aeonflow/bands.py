"""Stream ids of the wire and what each one carries (`docs/protocol.md`, *Stream ids*).

The codec passes any stream id; these names belong to the dispatcher. Layer numbers travel in the tensor
prefix, so no band grows with the depth of the model.
"""

from __future__ import annotations

CONNECTION = 0x0000  # hello, heartbeat, goodbye
CONTROL = 0xAF00  # open, close, cancel, resume, stats, …
EMBED = 0xAF10
HEAD = 0xAF11
ATTN = 0xAF20  # split-a
GATE_UP = 0xAF21  # split-b
DOWN = 0xAF22  # split-c
BLOCK = 0xAF23  # whole layers
FFN = 0xAF24  # a slice of the ffn width
KV_SLAB = 0xAF30
VOLUME_CAPTURE = 0xAF31
VOLUME_REPLAY = 0xAF32
WEIGHTS = 0xAF40  # model card and weights
TRACES = 0xAF50
SEED_FIRST = 0xAF60  # low nibble = Fano line (0–6) << 1 | orientation (0 plus, 1 minus)
SEED_LAST = 0xAF6D  # af6e and af6f are reserved

ROLE_STREAMS: dict[str, int] = {
    "embed": EMBED,
    "head": HEAD,
    "attn": ATTN,
    "gate_up": GATE_UP,
    "down": DOWN,
    "block": BLOCK,
    "ffn": FFN,
}
STREAM_ROLES: dict[int, str] = {stream: role for role, stream in ROLE_STREAMS.items()}

# What a peer with the station key may send: forwarding, never control, weights or the entry of a chain.
FORWARD_STREAMS: frozenset[int] = frozenset({HEAD, ATTN, GATE_UP, DOWN, BLOCK, FFN, KV_SLAB}) | frozenset(
    range(SEED_FIRST, SEED_LAST + 1)
)


def is_seed(stream_id: int) -> bool:
    """True for the band of residual seeds."""
    return SEED_FIRST <= stream_id <= SEED_LAST


# Who takes the seeds of a Fano line: attn 123 and 145, gate_up 246 and 347 of seeded passes, the head 257.
_SEED_RECEIVERS = {0: "attn", 1: "attn", 3: "gate_up", 4: "head", 5: "gate_up"}
RECEIVERS: dict[int, str] = STREAM_ROLES | {
    SEED_FIRST | line << 1 | orientation: role for line, role in _SEED_RECEIVERS.items() for orientation in (0, 1)
}  # role that tensors of a stream are for


def seed_stream(line: int, orientation: int) -> int:
    """Stream id of a residual seed on Fano `line` (0–6) with `orientation` (0 plus, 1 minus)."""
    if not 0 <= line <= 6 or orientation not in (0, 1):
        raise ValueError(f"Fano line {line} orientation {orientation}: lines are 0-6, orientations 0 or 1")
    return SEED_FIRST | line << 1 | orientation
