"""What `engine.status()` says: every station, whether a token goes through all of them, what moves on the links.

Health is a token through the whole chain, not a port that answers: `ready` is the outcome of a probe made now.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from aeonflow.errors import AeonflowError
from aeonflow.messages import Stats, StatsReply
from aeonflow.tensors import Want

from .deadline import who_is_behind
from .links import LinkState, StationLink, answers
from .network import Network
from .pace import Measured, Pace
from .pairx.counters import seeds_status
from .prefill import shape_of
from .sequence import Answer
from .ways import OF_SEEDS

if TYPE_CHECKING:
    from .engine import Engine

STATS_TIMEOUT_S = 2.0
PROBE_ROWS = 9  # enough beside one row to tell the cost of a row from that of a call


class ProbeResult(NamedTuple):
    """A probe token that came through: seconds and one-way crossings it took."""

    seconds: float
    hops: int


async def probe(network: Network, *, rows: int = 1, timeout_s: float) -> ProbeResult:
    """Send `rows` rows of token 0 through all stations, once more without seeds where these fail.

    Raises what keeps them from arriving; after `timeout_s` DeadlineError, naming the station that holds them.
    """
    try:
        return await _probe_once(network, rows, timeout_s)
    except OF_SEEDS as error:
        network.ways.leave_seeds(error, network.route)
    return await _probe_once(network, rows, timeout_s)


async def _probe_once(network: Network, rows: int, timeout_s: float) -> ProbeResult:
    loop = asyncio.get_running_loop()
    sequence = await network.open(rows)
    arrived: asyncio.Future[Answer] = loop.create_future()
    try:
        sequence.on_answer = lambda answer: None if arrived.done() else arrived.set_result(answer)
        sequence.on_error = lambda error: None if arrived.done() else arrived.set_exception(error)
        sent_s = time.perf_counter()  # the loop's own clock counts whole milliseconds under uvloop
        sequence.send([0] * rows, Want.LAST)
        try:
            async with asyncio.timeout(timeout_s):
                answer = await arrived
        except TimeoutError:
            raise await who_is_behind(sequence.passage.route, network.stations, sequence, timeout_s) from None
        return ProbeResult(time.perf_counter() - sent_s, answer.hops)
    finally:
        network.close_session(sequence)


async def measured_pace(network: Network, cores: int | None) -> Pace:
    """Probe the chain until it is warm, then measure what passes cost here. Raises what keeps a probe from arriving.

    `cores`: how many the stations share, None where each has its own. Inside one process a single probe is enough:
    nothing there depends on the measurement.
    """
    first = await probe(network, timeout_s=network.deadline_s)
    pace = Pace(network.bundle.card, shape_of(network.route, num_hops=first.hops, cores=cores))
    if not first.hops:
        return pace
    measured = []
    for rows in (1, PROBE_ROWS):
        before = await _compute_seconds(network)
        probed = await probe(network, rows=rows, timeout_s=network.deadline_s)
        measured.append(Measured(rows, probed.seconds, await _compute_seconds(network) - before))
    pace.calibrate(*measured)
    return pace


async def _compute_seconds(network: Network) -> float:
    stats = await answers(network.stations, Stats(), StatsReply, STATS_TIMEOUT_S)
    return sum(sum(reply.values.get("compute_s", {}).values()) for reply in stats.values())


async def engine_status(engine: Engine) -> dict[str, Any]:
    """The status as plain values (`docs/protocol.md`, *Stats*, explains the counters of stations)."""
    network = engine.network
    relayed = list(network.seeds.by_line)  # before stations are asked what has come
    stats = await answers(network.stations, Stats(), StatsReply, STATS_TIMEOUT_S)
    trouble = ""
    probed: ProbeResult | None = None
    if network.is_ready:
        try:
            probed = await probe(network, timeout_s=engine.probe_timeout_s)
        except AeonflowError as error:
            trouble = str(error)
    else:
        away = [s.name for s in network.stations if s.state is not LinkState.READY]
        trouble = f"not connected: {', '.join(away)}" if away else network.trouble
    links = [station for station in network.stations if station.state is LinkState.READY]
    frames = sum(s.link.stats.frames_sent for s in links) + _total(stats, "frames_sent")
    messages = sum(s.link.stats.messages_sent for s in links) + _total(stats, "ws_messages_sent")
    setting = engine.setting
    values = [reply.values for reply in stats.values()]
    return {
        "name": engine.name,
        "ready": probed is not None,
        "problem": trouble,
        "probe_s": probed.seconds if probed is not None else None,
        "plan": setting.plan,
        "route": setting.route,
        "kernels": setting.kernels,
        "transport": setting.transport,
        "exactness": {"cut": setting.exactness.cut, "model": setting.exactness.model},
        "kv": setting.kv,
        "model": engine.card.name,
        "fingerprint": engine.card.fingerprint,
        "stations": [_station_status(s, stats.get(s.index)) for s in network.stations],
        "sessions": len(network.sequences),
        "frames_per_message": frames / messages if messages else 0.0,
        "seeds_sent": sum(relayed) + _total(stats, "seeds_sent"),
        "seeds_received": _total(stats, "seeds_received"),
        "pair_x": seeds_status(network.seeding, network.ways.lines.to_json(), relayed, network.seeds.stale, values),
        "speculation": engine.drafters.to_json(),
        "stale_answers": network.stale,
        "stray_messages": network.strays,
    }


def _station_status(station: StationLink, stats: StatsReply | None) -> dict[str, Any]:
    hello = station.hello if station.incarnation else None
    entry: dict[str, Any] = {
        "name": station.name,
        "roles": list(hello.roles) if hello else [],
        "pid": station.process.pid if station.process is not None else station.pid,
        "url": station.url,
        "state": station.state.value,
        "kernels": hello.kernels if hello else "",
        "numerics": hello.numerics if hello else "",
        "transport": station.link.transport if station.state is LinkState.READY else "",
        "problem": str(station.lost_error) if station.lost_error is not None else "",
    }
    if station.state is LinkState.READY:
        heartbeat = station.link.remote_heartbeat
        entry.update(queued=heartbeat.queued, busy_s=heartbeat.busy_s, suspected=station.link.is_suspected)
    if stats is not None:
        entry["uptime_s"] = stats.uptime_s
        entry["stats"] = stats.values
    return entry


def _total(stats: dict[int, StatsReply], key: str) -> int:
    return sum(int(reply.values.get(key, 0)) for reply in stats.values())
