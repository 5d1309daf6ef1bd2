"""What a run of `bench trisplit` says: times of hops, layers, passes, tokens; the floor of the wire; the formula."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from aeonflow.bands import FFN
from aeonflow.messages import TraceEvent
from aeonflow.trace import What

from ..trace import Recording
from .trisplit_formula import Formula
from .trisplit_passes import HOST, Hop, Pass, draft_trips, overlap_saves, passes_of

if TYPE_CHECKING:
    from ..result import Result
    from .trisplit import Counted, Run

DIGITS = 7  # of seconds: a tenth of a microsecond
ENDS = ("embed", "head", HOST)


def quantiles(values: Iterable[float]) -> dict[str, float] | None:
    """Median, 95 % quantile (nearest rank), the best, how many; None without values."""
    ordered = sorted(values)
    if not ordered:
        return None

    def at(quantile: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(quantile * len(ordered)))], DIGITS)

    return {"p50": at(0.5), "p95": at(0.95), "best": at(0.0), "count": len(ordered)}


def report_of(run: Run, recording: Recording, *, num_layers: int, crossing_s: float | None) -> dict[str, Any]:
    """The measured part of the JSON object (`docs/benches.md` says what every key is).

    `crossing_s`: one crossing as measured otherwise, where the links hold nothing back themselves (netns).
    """
    result, times = run.result, run.token_times_s
    num_prompt = len(result.prompt_ids)
    num_decoded = len(result.token_ids) - 1

    def decoded(event: TraceEvent) -> bool:
        return event.first >= num_prompt

    passes = passes_of(recording, decoded)
    hops = [hop for one in passes for hop in one.hops]
    by_role = _by_role(hops)
    token_s = (times[-1] - times[0]) / num_decoded if num_decoded else 0.0
    floor_s = _wire_floor(by_role, len(passes))
    wires = _wires(recording, decoded)
    obtained_s = crossing_s if crossing_s is not None else _obtained(run.decode)
    speculation = _speculation(result)
    num_passes = result.speculation.get("passes") or len(passes)  # of the timed run: the traced one may guess otherwise
    formula = Formula.of(
        hops=result.hops_per_token,
        hop_s=obtained_s or _median(wires),
        compute_s=sum(hop.compute_s for hop in hops) / max(1, len(passes)),  # passes differ in rows: their mean
        tokens_per_pass=num_decoded / num_passes if num_passes else 1.0,
        num_layers=num_layers,
        drafts=_drafts(result),
        spread_s=_spread(wires),
        slices=1 + max((e.part for track in recording.stations for e in track.events if e.stream == FFN), default=0),
        is_relay=result.route == "relay",
    )
    return {
        "tokens": len(result.token_ids),
        "token_s": round(token_s, DIGITS),
        "token_spread_s": quantiles(b - a for a, b in pairwise(times)),
        "tok_s": round(1 / token_s, 3) if token_s else None,
        "ttft_s": round(result.timings.ttft_s, DIGITS),
        "token_ids": list(result.token_ids),
        "text": result.text,
        "hops_per_token": result.hops_per_token,
        "obtained_delay_s": round(obtained_s, DIGITS),
        "hop_s": _hop_report(hops, by_role, wires),
        "layer_s": _layer_report(passes),
        "ends_s": quantiles(sum(hop.seconds for hop in one.hops if hop.role in ENDS) for one in passes),
        "pass_s": quantiles(one.seconds for one in passes),
        "draft_s": quantiles(draft_trips(recording, decoded)),
        "passes": num_passes,
        "passes_traced": len(passes),
        "wire_floor_s": round(floor_s, DIGITS),
        "wire_floor_ratio": round(token_s / floor_s, 4) if floor_s else None,
        "overlap_save_s": quantiles_signed(overlap_saves(recording, decoded)),
        **_traffic(run, recording, decoded, num_decoded),
        **speculation,
        "tokens_per_pass": round(num_decoded / num_passes, 3) if num_passes else 1.0,
        "formula": formula.to_json(token_s),
        "formula_ratio": round(token_s / formula.token_s, 4) if formula.token_s else None,
        "between": _between(recording, decoded, passes, wires, obtained_s),
        "exactness": msgspec.to_builtins(result.exactness),
        "kernels": result.kernels,
        "transport": result.transport,
    }


def quantiles_signed(values: Sequence[float]) -> dict[str, float] | None:
    """As `quantiles`; the best is the largest, since more is better."""
    found = quantiles(values)
    return found and found | {"best": round(max(values), DIGITS)}


def _by_role(hops: Iterable[Hop]) -> dict[str, list[Hop]]:
    found: dict[str, list[Hop]] = defaultdict(list)
    for hop in hops:
        found[hop.role].append(hop)
    return found


def _wire_floor(by_role: dict[str, list[Hop]], num_passes: int) -> float:
    """The best hop into each role, as often as a pass makes it."""
    if not num_passes:
        return 0.0
    return sum(min(hop.seconds for hop in hops) * len(hops) / num_passes for hops in by_role.values())


def _hop_report(hops: Sequence[Hop], by_role: dict[str, list[Hop]], wires: Sequence[float]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for role, own in by_role.items():
        found[role] = {
            **(quantiles(hop.seconds for hop in own) or {}),
            "compute": quantiles(hop.compute_s for hop in own),
            "queue": quantiles(hop.queue_s for hop in own),
        }
    return {"all": quantiles(hop.seconds for hop in hops), **found, "wire": quantiles(wires)}


def _layer_report(passes: Sequence[Pass]) -> dict[str, Any] | None:
    """All layers together, and the median of each: a layer that stands out has a reason."""
    by_layer: dict[int, list[float]] = defaultdict(list)
    for one in passes:
        for layer, seconds in one.layers:
            by_layer[layer].append(seconds)
    everything = quantiles(seconds for own in by_layer.values() for seconds in own)
    if everything is None:
        return None
    return everything | {"by_layer": [round(_median(by_layer[layer]), DIGITS) for layer in sorted(by_layer)]}


def _between(
    recording: Recording, wanted: Any, passes: Sequence[Pass], wires: Sequence[float], obtained_s: float
) -> dict[str, float]:
    """Medians of what a hop takes beside delay and compute: the wire beyond the delay, taking a message in, waiting
    for the kernel, framing and writing; `host_s`: between an answer and the next departure, once a pass."""
    events = [event for track in recording.stations for event in track.events if wanted(event)]

    def took(what: What) -> float:
        return _median(event.ended_s - event.began_s for event in events if event.what == what)

    return {
        "wire_beyond_delay_s": round(max(0.0, _median(wires) - obtained_s), DIGITS),
        "receive_s": round(took(What.RECEIVE), DIGITS),
        "queue_s": round(_median(hop.queue_s for one in passes for hop in one.hops if hop.role != HOST), DIGITS),
        "send_s": round(took(What.SEND), DIGITS),
        "host_s": round(max(0.0, _median(b.began_s - a.ended_s for a, b in pairwise(passes))), DIGITS),
    }


def _wires(recording: Recording, wanted: Any) -> list[float]:
    """Of every message: from the end of its write to the beginning of its handling."""
    return [message.wire_s for message in recording.messages() if wanted(message.sent)]


def _spread(values: Sequence[float]) -> float:
    """A standard deviation that a few stalls do not decide: half of what lies between the 16 % and 84 % quantiles."""
    ordered = sorted(values)
    return (ordered[int(0.84 * len(ordered))] - ordered[int(0.16 * len(ordered))]) / 2 if ordered else 0.0


def _obtained(counted: Counted) -> float:
    """How long links held a message back, mean of all; 0 without a delay."""
    return counted.delay_s / counted.delayed if counted.delayed else 0.0


def _traffic(run: Run, recording: Recording, wanted: Any, num_decoded: int) -> dict[str, Any]:
    """Frames a message of the links, heartbeats taken off; frames and bytes a token of the traced tensor messages."""
    sent = [e for track in recording.tracks for e in track.events if e.what == What.SEND and wanted(e)]
    return {
        "frames_per_message": _ratio(run.decode.frames, run.decode.messages),
        "prefill_frames_per_message": _ratio(run.prefill.frames, run.prefill.messages),
        "messages_per_token": _ratio(run.decode.messages, num_decoded),
        "link_bytes_per_token": round(run.decode.num_bytes / num_decoded) if num_decoded else None,
        "frames_per_token": _ratio(len(sent), num_decoded),
        "bytes_per_token": round(sum(e.num_bytes for e in sent) / num_decoded) if num_decoded else None,
    }


def _speculation(result: Result) -> dict[str, Any]:
    """What the result says of guesses; `acceptance` is None where there were none."""
    speculation, pair_x = dict(result.speculation), dict(result.pair_x)
    drafted = speculation.get("drafted") or pair_x.get("drafted") or 0
    accepted = speculation.get("accepted") if speculation.get("drafted") else pair_x.get("accepted")
    acceptance = round(accepted / drafted, 4) if drafted and accepted is not None else None
    return {"acceptance": acceptance, "speculation": speculation, "pair_x": pair_x}


def _drafts(result: Result) -> tuple[int, int] | None:
    """(drafted, accepted) of the pipelined draft; None without one."""
    counts = result.speculation.get("sources", {}).get("draft") or result.pair_x
    drafted = counts.get("drafted", 0)
    return (drafted, counts.get("accepted", 0)) if drafted else None


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None


def _median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0.0
