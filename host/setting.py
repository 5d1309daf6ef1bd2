"""What an engine's results say of how they were made, and whether that keeps the promise of equal bits."""

from __future__ import annotations

from .chain import host_frame_bytes
from .errors import InvalidRequestError
from .generate import Setting
from .launch import ConnectOptions, LaunchOptions
from .network import Network
from .plan import Geometry, exactness, mixed_numerics
from .plan.path import Link, chain_path


def describe(options: LaunchOptions | ConnectOptions, network: Network, *, refuse_bounded: bool = False) -> Setting:
    """The setting of a network that is joined. With `refuse_bounded`, InvalidRequestError names what bounds the cut."""
    known = [station.hello for station in network.stations if station.incarnation]
    kernels = "+".join(sorted({hello.kernels for hello in known}))
    numerics = [hello.numerics for hello in known]
    chosen: dict[str, object] = {"route": options.route, "coalesce": options.coalesce}
    for name in kernels.split("+"):
        chosen["kernels"] = name if chosen.get("kernels") != "reference" else "reference"
    promise = exactness(chosen, numerics)
    if refuse_bounded and promise.cut != "exact":
        why = mixed_numerics(numerics) or f"kernels {chosen['kernels']} sum in an order of their own"
        raise InvalidRequestError(f"exact: this route is cut: {promise.cut}; {why}")
    transports = sorted({station.transport for station in network.stations if station.transport})
    return Setting(
        plan=network.plan.name,
        route=options.route,
        kernels=kernels,
        transport="+".join(transports),
        exactness=promise,
        interior_bytes=_interior_bytes(network),
    )


def _interior_bytes(network: Network) -> int:
    """Bytes of frames that a decoded token moves from station to station; in relay all pass the host's own links."""
    if network.is_relay or not network.stations[0].is_remote:
        return 0
    card = network.bundle.card
    geometry = Geometry(
        num_layers=card.num_layers,
        hidden_size=card.hidden_size,
        num_heads=card.num_heads,
        num_kv_heads=card.num_kv_heads,
        head_dim=card.head_dim,
        ffn_size=card.ffn_size,
        vocab_size=card.vocab_size,
        context_length=card.context_length,
    )
    path = chain_path(network.plan, geometry, lambda call: 0.0, Link(0.0))
    embeds = sum(1 for c in network.route.carriers if c.role == "embed")
    heads = sum(1 for c in network.route.carriers if c.role == "head")
    return path.bytes - host_frame_bytes(embeds, heads, rows=1, answer_bytes=4 * card.vocab_size)
