"""What an engine's results say of how they were made, and whether that keeps the promise of equal bits."""

from __future__ import annotations

from pathlib import Path

from .chain import host_frame_bytes
from .errors import InvalidRequestError
from .generate import Setting
from .kv_options import exactness_options
from .launch import EngineOptions
from .network import Network
from .overlay_proof import is_certified
from .pairx.seed_bytes import added_chain_bytes
from .pairx.seeding import BUILT_FOR_LIVE
from .plan import exactness, mixed_numerics
from .plan.path import Link, chain_path, relay_path


def describe(options: EngineOptions, network: Network, proofs: Path, *, refuse_bounded: bool = False) -> Setting:
    """The setting of a network that is joined. `proofs`: where reports on O(1) layers lie; UnsupportedOptionError where
    they do not permit them. With `refuse_bounded`, InvalidRequestError names what bounds the cut."""
    fingerprint = network.bundle.card.fingerprint
    certified = is_certified(options.kv, fingerprint, proofs, approximate=options.approximate)
    kv = exactness_options(options.kv, is_certified=certified)
    known = [station.hello for station in network.stations if station.incarnation]
    kernels = "+".join(sorted({hello.kernels for hello in known}))
    numerics = [hello.numerics for hello in known]
    chosen: dict[str, object] = {"route": options.route, "coalesce": options.coalesce, **kv}
    seeding = network.seeding
    if seeding.is_on and not (seeding.mode == "live" and network.bundle.card.residual in BUILT_FOR_LIVE):
        chosen["pair_x"] = seeding.mode  # a model that was built for live seeds is run as it was built
    for name in kernels.split("+"):
        chosen["kernels"] = name if chosen.get("kernels") != "reference" else "reference"
    promise = exactness(chosen, numerics)
    if refuse_bounded and promise.cut != "exact":
        why = mixed_numerics(numerics) or f"kernels {chosen['kernels']} sum in an order of their own"
        raise InvalidRequestError(f"exact: this route is cut: {promise.cut}; {why}")
    transports = sorted({station.transport for station in network.stations if station.transport})
    token_bytes, interior_bytes = _token_bytes(network)
    return Setting(
        plan=network.plan.name,
        route=options.route,
        kernels=kernels,
        transport="+".join(transports),
        exactness=promise,
        kv=options.kv.shown(),
        token_bytes=token_bytes,
        interior_bytes=interior_bytes,
        seeding=seeding,
    )


def _token_bytes(network: Network) -> tuple[int, int]:
    """Bytes of frames that a decoded token moves, and how many of them from station to station, unseen by the host."""
    if not network.stations[0].is_remote:
        return 0, 0
    card = network.bundle.card
    walk = relay_path if network.is_relay else chain_path
    total = walk(network.plan, card, lambda call: 0.0, Link(0.0)).bytes
    if network.is_relay:
        return total, 0
    total += added_chain_bytes(network.route, card.hidden_size)
    embeds = sum(1 for c in network.route.carriers if c.role == "embed")  # as the plan's model counts them
    heads = sum(1 for c in network.route.carriers if c.role == "head")
    return total, total - host_frame_bytes(embeds, heads, rows=1, answer_bytes=4 * card.vocab_size)
