"""What `aeonflow bench trisplit` shows to people: one cell's hops, or the grid's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .output import print_table

ROLE_ORDER = ("embed", "attn", "gate_up", "down", "ffn", "block", "head", "host")


def show_cell(report: dict[str, Any]) -> None:
    """A summary and a table of hops."""
    rate = f"{report['tok_s']:.2f} tok/s" if report["tok_s"] else "one token"
    delay = f" at {report['link_delay_ms']:g} ms a link ({_ms(report['obtained_delay_s'])} obtained)"
    where = delay if report["hops_per_token"] or report["link_delay_ms"] else ", one process without links"
    print(f"{report['way']} of {report['model']}{where}: {_ms(report['token_s'])} a token, {rate}")
    formula = report["formula"]
    parts = f"computes {_ms(formula['compute_s'])}"
    if formula["hops"]:
        parts = f"{formula['hops']} hops x {_ms(formula['hop_s'])} + {parts}"
    if formula["joins_s"]:
        parts += f" + joins {_ms(formula['joins_s'])}"
    if formula["tokens_per_pass"] != 1:
        parts += f", / {formula['tokens_per_pass']:.2f} tokens a pass"
    if formula["alpha"] is not None:
        parts += f", x {formula['drafting']:.3f} with acceptance {formula['alpha']:.2f}"
    print(f"formula: {parts} = {_ms(formula['token_s'])}; measured / formula {report['formula_ratio']}")
    if formula["above_per_hop_s"] is not None:
        print(f"above it: {_ms(formula['above_s'])} a token, {1e6 * formula['above_per_hop_s']:.0f} µs a hop")
    between = ", ".join(f"{name[:-2]} {1e6 * value:.0f} µs" for name, value in report["between"].items())
    print(f"beside delay and compute, medians: {between}".replace("_", " "))
    print(f"floor (best hop of each role): {_ms(report['wire_floor_s'])}; measured / floor {_x(report)}")
    print(
        f"frames a message {report['frames_per_message']} (prefill {report['prefill_frames_per_message']}) · "
        f"{report['frames_per_token']} frames, {report['bytes_per_token']} bytes a token"
    )
    _show_guesses(report)
    print()
    print_table(("hop to", "p50 ms", "p95 ms", "best ms", "compute p50", "queue p50", "count"), _hop_rows(report))


def _show_guesses(report: dict[str, Any]) -> None:
    """What was drafted and how much of it was right, and which layers took seeds; nothing of what is off."""
    counts, seeds = report["speculation"], report["pair_x"]
    if not counts.get("drafted"):
        counts = seeds
    if counts.get("drafted"):
        print(
            f"guesses: {counts['accepted']} of {counts['drafted']} right; {report['tokens'] - 1} tokens in "
            f"{report['passes']} passes, {report['tokens_per_pass']:.2f} a pass, those after wrong guesses included"
        )
    if seeds.get("mode", "off") != "off":
        print(f"pair_x {seeds['mode']}: layers {spans(seeds['layers'])} take seeds, {seeds['seeded']} rows had some")


def spans(layers: Sequence[int]) -> str:
    """`2, 5-9` of layers in rising order."""
    found: list[list[int]] = []
    for layer in layers:
        if found and layer == found[-1][1] + 1:
            found[-1][1] = layer
        else:
            found.append([layer, layer])
    return ", ".join(str(lo) if lo == hi else f"{lo}-{hi}" for lo, hi in found) or "none"


def show_grid(report: dict[str, Any]) -> None:
    """Milliseconds a token by way and delay; the speed-up over the relay and measured / formula behind them."""
    cells = report["cells"]
    delays = sorted({cell["link_delay_ms"] for cell in cells})
    rows = []
    for way in dict.fromkeys(cell["way"] for cell in cells):
        own = {cell["link_delay_ms"]: cell for cell in cells if cell["way"] == way}
        rows.append([way, *(_cell(own[delay]) if delay in own else "" for delay in delays)])
    print_table(("ms a token (x relay, / formula)", *(f"{delay:g} ms" for delay in delays)), rows)
    for way, why in {one["way"]: one["why"] for one in report["refused"]}.items():
        print(f"not measured: {way}: {why}")
    for one in report["failed"]:
        print(f"FAILED: {one['way']} at {one['link_delay_ms']:g} ms: {one['why']}")
    print("tokens agree, with plan solo too" if report["tokens_agree"] else "TOKENS DIFFER between ways")


def show_coalesce(found: dict[str, Any]) -> None:
    """Rates and frames a message, off and on, a row for each number of sessions."""
    print(f"{found['way']} of {found['model']} at {found['link_delay_ms']:g} ms a link, {found['runs']} runs of each")
    rows = [
        [
            sessions,
            f"{one['off_tok_s']['median']:.2f}",
            f"{one['on_tok_s']['median']:.2f}",
            f"{one['gain']:.3f}",
            f"{one['off_frames_per_message']:.2f}",
            f"{one['on_frames_per_message']:.2f}",
        ]
        for sessions, one in found["sessions"].items()
    ]
    print_table(("sessions", "off tok/s", "on tok/s", "on / off", "frames a message off", "on"), rows)


def _cell(cell: dict[str, Any]) -> str:
    gain = f"{cell['speedup_over_relay']:.2f}x" if cell["speedup_over_relay"] else "–"
    return f"{1e3 * cell['token_s']:.1f} ({gain}, {cell['formula_ratio']:.2f})"


def _hop_rows(report: dict[str, Any]) -> list[list[str]]:
    rows = []
    for role in (*ROLE_ORDER, "all", "wire"):
        hop = report["hop_s"].get(role)
        if hop:
            way = "on the wire" if report["hops_per_token"] else "in memory"
            name = {"all": "all hops", "wire": f"a message {way}"}.get(role, role)
            rows.append([name, *_quantiles(hop), *_inner(hop, "compute"), *_inner(hop, "queue"), str(hop["count"])])
    others = (
        ("a layer", "layer_s"), ("embed, head, host", "ends_s"), ("a pass", "pass_s"), ("a draft", "draft_s"),
        ("a token", "token_spread_s"), ("overlap save", "overlap_save_s"),
    )  # fmt: skip
    for name, key in others:
        if report[key]:
            rows.append([name, *_quantiles(report[key]), "", "", str(report[key]["count"])])
    return rows


def _quantiles(hop: dict[str, Any]) -> list[str]:
    return [f"{1e3 * hop[name]:.3f}" for name in ("p50", "p95", "best")]


def _inner(hop: dict[str, Any], name: str) -> list[str]:
    found = hop.get(name)
    return [f"{1e3 * found['p50']:.3f}" if found else ""]


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms"


def _x(report: dict[str, Any]) -> str:
    return str(report["wire_floor_ratio"])
