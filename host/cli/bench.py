"""`aeonflow bench wire|hop|decode|pairz|trisplit|gate`: tables, or with `--json` one object; `benches/METHOD.md`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any

import typer

from .bench_gate import gate
from .bench_trisplit import trisplit
from .failure import CommandFailedError, UsageError
from .groups import check_speculate
from .options import MAX_DELAY_MS, Kernels, KvMode, Model, Route, SocketLibrary, Speculate, Transport
from .output import note, print_json

app = typer.Typer(
    help="Measure the wire, a hop, decoding, a fleet's hops one by one, what gates ask, early logits.",
    no_args_is_help=True,
)
app.command()(trisplit)
app.command()(gate)

Runs = Annotated[int, typer.Option(metavar="N", min=1, help="Runs of each side, in turn.")]
OneLine = Annotated[bool, typer.Option("--json", help="The object on one line, without progress.")]
Library = Annotated[SocketLibrary | None, typer.Option(help="Only this WebSocket library (default: each).")]


@app.command()
def wire(
    runs: Runs = 5,
    transport: Library = None,
    link_delay_ms: Annotated[
        float | None,
        typer.Option(
            metavar="D",
            min=0.0,
            max=MAX_DELAY_MS,
            help="Also measure the delay that a link obtains when asked for D ms.",
        ),
    ] = None,
    as_json: OneLine = False,
) -> None:
    """Frames a second packed and decoded, and through a socket with coalescing off and on."""
    from host.bench import bench_wire

    from .bench_words import show_wire

    libraries, progress = _libraries(transport), _silent if as_json else note
    measuring = bench_wire(runs=runs, link_delay_ms=link_delay_ms, libraries=libraries, progress=progress)
    _measure(measuring, as_json=as_json, show=show_wire)


@app.command()
def hop(
    runs: Runs = 5,
    transport: Library = None,
    kernels: Annotated[Kernels, typer.Option(help="Kernel set of the stations.")] = "fast",
    link_delay_ms: Annotated[
        float | None,
        typer.Option(
            metavar="D",
            min=0.1,
            max=MAX_DELAY_MS,
            help="Instead: a token over links with D ms of delay, beside hops × delay obtained + computes.",
        ),
    ] = None,
    as_json: OneLine = False,
) -> None:
    """A hop of a chain beside half a bare echo of the same bytes over the same library."""
    from host.bench import bench_hop

    from .bench_words import show_hop

    _measure(
        bench_hop(runs=runs, kernels=kernels, libraries=_libraries(transport), link_delay_ms=link_delay_ms),
        as_json=as_json,
        show=show_hop,
    )


@app.command()
def decode(
    plan: Annotated[list[str] | None, typer.Option(metavar="P", help="May be repeated (default: five ways).")] = None,
    route: Annotated[Route | None, typer.Option(help="With --plan (default chain).")] = None,
    kernels: Annotated[Kernels | None, typer.Option(help="With --plan (default fast).")] = None,
    threads: Annotated[int | None, typer.Option(metavar="N", min=1, help="With --plan (default 1).")] = None,
    model: Model = None,
    transport: Annotated[Transport, typer.Option()] = "auto",
    prompt_tokens: Annotated[int, typer.Option(metavar="N", min=1)] = 256,
    new_tokens: Annotated[int, typer.Option(metavar="N", min=2)] = 64,
    kv: Annotated[KvMode | None, typer.Option(help="With --plan: how K and V are kept (default f32).")] = None,
    speculate: Speculate = None,
    sessions: Annotated[int, typer.Option(metavar="M", min=1, help="Also so many answers at once.")] = 1,
    runs: Runs = 3,
    as_json: OneLine = False,
) -> None:
    """Prefill and decode rates of plans, kernel sets and routes, runs in turn; where a token's time goes."""
    from host.bench import bench_decode
    from host.bench.decode import DEFAULT_WAYS, Way, num_visits

    from .bench_progress import CountProgress
    from .bench_table import show_decode
    from .model import ready_model

    if speculate is not None:
        check_speculate(speculate)
    of_plans: dict[str, Any] = {
        "route": route, "kernels": kernels, "threads": threads, "kv": kv, "speculate": speculate
    }  # fmt: skip
    given = {name: value for name, value in of_plans.items() if value is not None}
    if given and not plan:
        named = ", ".join(f"--{name}" for name in given)
        raise UsageError(f"{named} without --plan: what is measured then are {len(DEFAULT_WAYS)} ways of their own")
    ways = tuple(Way(p, **given) for p in plan) if plan else DEFAULT_WAYS
    progress = None if as_json else CountProgress(num_visits(len(ways), runs), "runs", is_still=True)
    measuring = bench_decode(
        ways,
        model=ready_model(model).name,
        transport=transport,
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        sessions=sessions,
        runs=runs,
        progress=progress.came if progress is not None else _silent,
    )
    _measure(measuring, as_json=as_json, show=show_decode, during=progress)


@app.command()
def pairz(
    model: Model = None,
    prompts: Annotated[str, typer.Option(metavar="chat|edit|FILE", help="Prompt set.")] = "chat",
    new_tokens: Annotated[int, typer.Option(metavar="N", min=2)] = 100,
    as_json: OneLine = False,
) -> None:
    """How often early logits are right after each layer, and what they would gain beside prompt lookup."""
    from host.bench.pairz import bench_pairz

    from .bench_words import show_pairz
    from .model import ready_model

    measuring = bench_pairz(model=ready_model(model).name, prompts=prompts, new_tokens=new_tokens)
    _measure(measuring, as_json=as_json, show=show_pairz)


def _libraries(chosen: str | None) -> tuple[str, ...]:
    from host.bench.echo import LIBRARIES

    return LIBRARIES if chosen is None else (chosen,)


def _silent(what: object) -> None:
    """With `--json` nothing is told on the way."""


def _measure(
    bench: Coroutine[Any, Any, dict[str, Any]],
    *,
    as_json: bool,
    show: Callable[[dict[str, Any]], None],
    during: AbstractContextManager[object] | None = None,
) -> None:
    """Print what was measured, as one line of JSON or as `show` does. CommandFailedError for what was not."""
    from .loop import run_async

    with during or nullcontext():
        found = run_async(bench)
    if as_json:
        print_json(found)
    else:
        show(found)
    if failed := found.get("failed"):
        raise CommandFailedError(f"not measured: {'; '.join(failed)}", has_printed=True)
