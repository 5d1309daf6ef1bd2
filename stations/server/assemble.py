"""From a model folder and roles to a station with its hello: the same for a process and for an embedded station."""

from __future__ import annotations

from collections.abc import Sequence

from aeonflow import Hello
from aeonflow.kv_options import OFFERED
from aeonflow.messages import PROTOCOL_VERSION

from ..core.drafts import draft_offer
from ..core.limits import limits_for
from ..core.station import Station
from ..kernels import make_backend
from ..kernels.weights import learned_sinks
from ..models.folder import ModelFolder
from ..models.roles import RoleSpan

KV_SHARE = 0.5  # of the machine's memory, for all sessions of a station, unless it is told otherwise


def make_station(
    name: str,
    folder: ModelFolder,
    spans: Sequence[RoleSpan],
    *,
    kernels: str,
    threads: int,
    kv_budget_bytes: int,
    now: float,
    pid: int,
    software: str,
    advertise: str = "",
    in_process: bool = False,
) -> tuple[Station, Hello]:
    """Load the kernels over the roles' weights. Raises MissingWeightsError, UnsupportedError, KernelError."""
    backend = make_backend(kernels, folder, spans, threads)
    card = folder.card
    limits = limits_for(card, kv_budget_bytes)
    station = Station(
        name, card, spans, backend, limits, now=now, pid=pid, in_process=in_process, sinks=learned_sinks(folder, spans)
    )
    hello = Hello(
        protocol=PROTOCOL_VERSION,
        name=name,
        kind="station",
        roles=tuple(map(str, spans)),
        fingerprint=card.fingerprint,
        numerics=backend.numerics_id,
        kernels=backend.name,
        limits=limits.announced(),
        cache_options=OFFERED,
        advertise=advertise,
        software=software,
        context_length=card.context_length,
        num_layers=card.num_layers,
        pid=pid,
        draft=draft_offer(spans),
    )
    return station, hello
