"""Options that several commands share, under one name and with one help text each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

MAX_DELAY_MS = 60_000.0  # no answer is waited for any longer

FLEET_PANEL = "Fleet"
KV_PANEL = "KV cache"
SAMPLING_PANEL = "Sampling"
OUTPUT_PANEL = "Output"

OnOff = Literal["on", "off"]
Route = Literal["relay", "chain"]
Kernels = Literal["fast", "fast-int8", "reference"]
Transport = Literal["auto", "websockets", "picows"]
PairXMode = Literal["off", "shadow", "bypass", "draft", "live"]
KvMode = Literal["f32", "f16", "q8", "q8k", "q8v", "q4"]
Eviction = Literal["born", "recent"]
SocketLibrary = Literal["websockets", "picows"]

Model = Annotated[
    str | None,
    typer.Option(help="Model name in the cache, or synthetic:… (default smollm2).", rich_help_panel=FLEET_PANEL),
]
Plan = Annotated[
    str | None,
    typer.Option(
        metavar="P",
        help="solo, layers:N, trisplit, ffslice:K, trisplit:per-layer (suffix +shards=N), or a .toml file.",
        rich_help_panel=FLEET_PANEL,
    ),
]
RouteOption = Annotated[
    Route | None,
    typer.Option(
        help="How a pass travels: station to station, or by the host (default chain).", rich_help_panel=FLEET_PANEL
    ),
]
KernelsOption = Annotated[
    Kernels | None,
    typer.Option(
        help="fast: exact under every cut; fast-int8: activations in 8 bits, faster; reference: plain numpy "
        "(default fast).",
        rich_help_panel=FLEET_PANEL,
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Compute threads a station (default 1; in solo the usable cores, at most 8).",
        rich_help_panel=FLEET_PANEL,
    ),
]
TransportOption = Annotated[
    Transport | None, typer.Option(help="WebSocket library (default auto).", rich_help_panel=FLEET_PANEL)
]
LinkDelay = Annotated[
    float | None,
    typer.Option(
        metavar="D",
        min=0.0,
        max=MAX_DELAY_MS,
        help="Delay every link by D ms, one way: for measurements.",
        rich_help_panel=FLEET_PANEL,
    ),
]
Coalesce = Annotated[
    OnOff | None,
    typer.Option(help="Send frames of one moment as one message (default on).", rich_help_panel=FLEET_PANEL),
]
Speculate = Annotated[
    str | None,
    typer.Option(
        metavar="HOW",
        help="Guess ahead, emit only what plain decoding would: off, lookup, model:NAME, auto (default off).",
        rich_help_panel=FLEET_PANEL,
    ),
]
Exact = Annotated[
    bool,
    typer.Option("--exact", help="Refuse whatever makes the result depend on the cut.", rich_help_panel=FLEET_PANEL),
]
PairX = Annotated[
    PairXMode | None,
    typer.Option(
        help="Residual seeds: compared, moving one add, drafting, or used (default off).", rich_help_panel=FLEET_PANEL
    ),
]
PairXLayers = Annotated[
    str | None,
    typer.Option(
        metavar="all|LIST|auto:K",
        help="Layers that take a seed, as 2,5-9; auto:K by the probe's ranking (default all).",
        rich_help_panel=FLEET_PANEL,
    ),
]
PairXSeed = Annotated[
    Literal["h", "x"] | None,
    typer.Option(help="What a seed is: h past attention, x before it (default h).", rich_help_panel=FLEET_PANEL),
]
PrefillChunk = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Prompt tokens a prefill pass (default: from the plan).", rich_help_panel=FLEET_PANEL
    ),
]
Kv = Annotated[
    KvMode | None,
    typer.Option(
        "--kv", help="How K and V are kept; q8k and q8v code one of them (default f32).", rich_help_panel=KV_PANEL
    ),
]
KvExactRecent = Annotated[
    int | None,
    typer.Option(metavar="N", help="Newest rows kept exact beside coded ones (32; q4 64).", rich_help_panel=KV_PANEL),
]
KvMax = Annotated[
    int | None,
    typer.Option(metavar="N", help="At N rows a layer a quarter of them leaves.", rich_help_panel=KV_PANEL),
]
KvEvict = Annotated[
    Eviction | None,
    typer.Option(help="Which rows stay: most read by attention, or newest (default born).", rich_help_panel=KV_PANEL),
]
KvSink = Annotated[
    int | None, typer.Option(metavar="S", help="First rows that never leave (default 4).", rich_help_panel=KV_PANEL)
]
Window = Annotated[
    int | None, typer.Option(metavar="W", help="A row sees the newest W rows only.", rich_help_panel=KV_PANEL)
]
O1 = Annotated[
    str | None,
    typer.Option(
        metavar="m=32,w=128,sink=4",
        help="Layers of constant size: landmarks for old rows (also layers=LO-HI+…, at=ROWS).",
        rich_help_panel=KV_PANEL,
    ),
]
Approximate = Annotated[
    bool,
    typer.Option(
        "--approximate",
        help="Use --o1 though it loses to a window, or --pair-x live though it is another model.",
        rich_help_panel=KV_PANEL,
    ),
]
Fleet = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|URL",
        help="A fleet started by `aeonflow up`, or station addresses (ws://…, separated by commas).",
        rich_help_panel=FLEET_PANEL,
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(help="File with the fleet's secret (or AEONFLOW_TOKEN).", rich_help_panel=FLEET_PANEL),
]
TlsCa = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Certificate authority to trust wss:// addresses by (default: the system's).",
        rich_help_panel=FLEET_PANEL,
    ),
]
MaxTokens = Annotated[
    int | None, typer.Option(metavar="N", help="Stop after N tokens (default 256).", rich_help_panel=SAMPLING_PANEL)
]
Temperature = Annotated[
    float | None, typer.Option(metavar="T", help="0: greedy (default 0).", rich_help_panel=SAMPLING_PANEL)
]
TopK = Annotated[int | None, typer.Option(metavar="K", help="Keep the K likeliest.", rich_help_panel=SAMPLING_PANEL)]
TopP = Annotated[
    float | None, typer.Option(metavar="P", help="Keep the likeliest with sum P.", rich_help_panel=SAMPLING_PANEL)
]
MinP = Annotated[
    float | None,
    typer.Option(metavar="P", help="Drop what is below P times the likeliest.", rich_help_panel=SAMPLING_PANEL),
]
Seed = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="The same seed gives the same tokens on every plan.", rich_help_panel=SAMPLING_PANEL
    ),
]
Stop = Annotated[
    list[str] | None,
    typer.Option(metavar="S", help="End before this text; may be repeated.", rich_help_panel=SAMPLING_PANEL),
]
IgnoreEos = Annotated[
    bool, typer.Option("--ignore-eos", help="Go on past the end of the answer.", rich_help_panel=SAMPLING_PANEL)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.", rich_help_panel=OUTPUT_PANEL)]
Trace = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write a Chrome trace of every hop of every token: for ui.perfetto.dev.",
        rich_help_panel=OUTPUT_PANEL,
    ),
]
FleetName = Annotated[
    str | None, typer.Option("--fleet", metavar="NAME", help="Which fleet (default: the only one, or `default`).")
]
