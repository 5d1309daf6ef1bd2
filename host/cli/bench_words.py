"""What `aeonflow bench wire`, `hop` and `pairz` show to people."""

from __future__ import annotations

from typing import Any

from .output import print_table


def show_wire(found: dict[str, Any]) -> None:
    """Frames a second by size: in memory, then over each library with coalescing off and on."""
    rows = [
        [size, *(_spread(rates[f"{name}_frames_s"]) for name in ("pack", "header", "decode", "batch"))]
        for size, rates in found["codec"].items()
    ]
    print("frames a second in memory, median (10 % to 90 %)")
    print_table(("bytes", "pack", "header only", "decode", "batch"), rows)
    rows = [
        [library, size, _spread(one["off_frames_s"]), _spread(one["on_frames_s"]), f"{one['gain']:.2f}",
         f"{one['frames_per_message']:.2f}"]
        for library, sizes in found["batcher"].items()
        for size, one in sizes.items()
    ]  # fmt: skip
    print("\nframes a second into another process")
    print_table(("library", "bytes", "coalescing off", "on", "on / off", "frames a message"), rows)
    for library, one in found.get("link_delay", {}).items():
        print(f"{library}: {one['asked_ms']:g} ms of delay asked for, {one['obtained_ms']:.3f} ms obtained")


def show_hop(found: dict[str, Any]) -> None:
    """A hop beside half an echo, or with a delay a token beside its floor."""
    if any(isinstance(measured, list) for measured in found["libraries"].values()):
        routes = [one for measured in found["libraries"].values() for one in measured]
        print_table(
            ("library", "route", "hops", "delay ms", "computes ms", "floor ms", "token ms", "token / floor"),
            [
                [one["transport"], one["route"], str(one["hops"]), f"{one['obtained_ms']:.3f}",
                 f"{one['compute_ms']:.3f}", f"{one['floor_ms']:.2f}", f"{one['token_ms']:.2f}", f"{one['ratio']:.4f}"]
                for one in routes
            ],
        )  # fmt: skip
        return
    print(f"{found['plan']}, {found['kernels']}, frames of {found['frame_bytes']} bytes; µs, median (10 % to 90 %)")
    names = ("half_echo_us", "link_hop_us", "chain_hop_us", "token_us", "computes_us")
    print_table(
        ("library", "half an echo", "a link's hop", "a chain's hop", "token", "its computes", "chain / half echo"),
        [
            [library, *(_spread(one[name]) for name in names), f"{one['chain_hop_over_half_echo']:.2f}"]
            for library, one in found["libraries"].items()
        ],
    )


def show_pairz(found: dict[str, Any]) -> None:
    """How often each layer's early logits are right and what they would gain, and the verdict beside lookup."""
    rows = [
        [str(layer), f"{share:.3f}", f"{gain:.3f}"]
        for layer, (share, gain) in enumerate(zip(found["agreement"], found["gain"], strict=False))
    ]
    print_table(("after layer", "right", "gain at most"), rows)
    best, beats = found["best"], found["beats_lookup"]
    words = {True: "early logits beat lookup", False: "early logits do not beat lookup", None: "too few rows to tell"}
    print(
        f"best after layer {best['layer']}: {best['gain']:.3f}; lookup {found['lookup_tokens_per_pass']:.3f} tokens a "
        f"pass; lead {found['lead']:+.3f} ± {found['lead_se']:.3f} over {found['rows']} rows: {words[beats]}"
    )


def _spread(values: dict[str, float]) -> str:
    if values["count"] < 2:
        return f"{values['median']:,.0f}"
    return f"{values['median']:,.0f} ({values['p10']:,.0f} to {values['p90']:,.0f})"
