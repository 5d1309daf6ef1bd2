"""`aeonflow bench trisplit`: one way to generate, taken apart into hops, or a grid of ways and delays."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from .bench_progress import CountProgress, GridProgress
from .failure import CommandFailedError, UsageError
from .groups import check_speculate
from .options import MAX_DELAY_MS, Kernels, Model, PairX, PairXLayers, PairXSeed, Route, Speculate, Transport
from .output import note, print_json

if TYPE_CHECKING:
    from host.bench.trisplit import Cell

NEW_TOKENS = 32


def trisplit(
    plan: Annotated[str, typer.Option(metavar="P", help="As of `run`: trisplit, ffslice:K, layers:N, …")] = "trisplit",
    route: Annotated[Route, typer.Option(help="How a pass travels.")] = "chain",
    pair_x: PairX = None,
    pair_x_layers: PairXLayers = None,
    pair_x_seed: PairXSeed = None,
    speculate: Speculate = None,
    coalesce: Annotated[
        Literal["on", "off", "both"],
        typer.Option(help="Send frames of one moment as one message; both: compare, with 1 session and with 8."),
    ] = "on",
    link_delay_ms: Annotated[
        float, typer.Option(metavar="D", min=0.0, max=MAX_DELAY_MS, help="Delay of every link, one way.")
    ] = 0.0,
    new_tokens: Annotated[
        int, typer.Option(metavar="N", min=2, help="Tokens to generate, past the end of the answer.")
    ] = NEW_TOKENS,
    prompts: Annotated[
        str, typer.Option(metavar="chat|edit|FILE", help="The first prompt of this set is answered.")
    ] = "chat",
    model: Model = None,
    kernels: Annotated[Kernels, typer.Option(help="Kernel set of the stations.")] = "fast",
    threads: Annotated[int, typer.Option(metavar="N", min=1, help="Compute threads a station.")] = 1,
    transport: Annotated[Transport, typer.Option()] = "auto",
    netns: Annotated[
        bool, typer.Option("--netns", help="Every station in a network namespace, delayed by tc netem (root).")
    ] = False,
    grid: Annotated[bool, typer.Option("--grid", help="Relay, chain and tricks at several delays.")] = False,
    delays: Annotated[
        str | None, typer.Option(metavar="D,D,…", help="With --grid: delays in ms (default 0.2,1,5,20,69).")
    ] = None,
    only: Annotated[
        str | None, typer.Option(metavar="TEXT", help="With --grid: ways whose name holds TEXT, and the relay.")
    ] = None,
    limit_s: Annotated[
        float | None, typer.Option(metavar="S", min=1.0, help="Give a cell up after S (default: 4 x its estimate).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write JSON, a page (HTML), pictures (PNG), a trace.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The object on one line.")] = False,
) -> None:
    """Seconds a token of one way to generate, by hop, layer and role, beside what hops and computes should take."""
    from host.bench.trisplit import Cell

    if not grid and (delays or only):
        raise UsageError("--delays and --only are of --grid")
    if speculate is not None:
        check_speculate(speculate)
    cell = Cell(
        plan=plan,
        route=route,
        pair_x=pair_x or "off",
        pair_x_layers=pair_x_layers,
        pair_x_seed=pair_x_seed,
        speculate=speculate or "off",
        coalesce=coalesce != "off",
        link_delay_ms=link_delay_ms,
        new_tokens=new_tokens,
        prompts=prompts,
        kernels=kernels,
        threads=threads,
        transport=transport,
        netns=netns,
    )
    if coalesce == "both":
        if grid or netns or out:
            raise UsageError("--coalesce both compares two fleets: without --grid, --netns and --out")
        _run_coalesce(cell, model, limit_s, as_json)
    elif grid:
        _run_grid(cell, model, delays, only, limit_s, out, as_json)
    else:
        _run_cell(cell, model, limit_s, out, as_json)


def _run_cell(cell: Cell, model: str | None, limit_s: float | None, out: Path | None, as_json: bool) -> None:
    from host.bench.prompts import load_prompts
    from host.bench.trisplit import measure_cell
    from host.bench.trisplit_estimate import Estimator
    from host.bench.trisplit_files import write_cell

    from .bench_trisplit_table import show_cell
    from .loop import run_async

    prompt = load_prompts(cell.prompts).prompts[0]
    name, card = _model(model, cell)
    estimator = Estimator(card)
    limit = limit_s or estimator.limit_s(cell)
    note(
        f"{cell.way} at {cell.link_delay_ms:g} ms: at least {duration(estimator.cell_s(cell))}, more when busy; "
        f"given up after {duration(limit)}"
    )
    with CountProgress(cell.new_tokens) as progress:
        measuring = measure_cell(cell, model=name, prompt=prompt, limit_s=limit, on_token=progress.came)
        measured = run_async(measuring)
    if as_json:
        print_json(measured.report)
    else:
        show_cell(measured.report)
    if out is not None:
        _tell(*write_cell(measured, out))


def _run_coalesce(cell: Cell, model: str | None, limit_s: float | None, as_json: bool) -> None:
    from host.bench.prompts import load_prompts
    from host.bench.trisplit_coalesce import RUNS, SESSIONS, bench_coalesce
    from host.bench.trisplit_estimate import Estimator

    from .bench_trisplit_table import show_coalesce
    from .loop import run_async

    prompt = load_prompts(cell.prompts).prompts[0]
    name, card = _model(model, cell)
    estimate_s = Estimator(card).sessions_s(cell, SESSIONS, 2 * RUNS)
    limit = limit_s or 4 * estimate_s + 60
    note(f"coalescing off and on, {cell.way}: at least {duration(estimate_s)}, given up after {duration(limit)}")
    try:
        found = run_async(bench_coalesce(cell, model=name, prompt=prompt, limit_s=limit))
    except TimeoutError:
        raise CommandFailedError(f"the comparison has not ended within {limit:.0f} s") from None
    if as_json:
        print_json(found)
    else:
        show_coalesce(found)


def _run_grid(
    cell: Cell, model: str | None, delays: str | None, only: str | None, limit_s: float | None, out: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    import msgspec

    from host.bench.grid import BASELINE, DELAYS_MS, WAYS, Outcome, grid_report, plan_grid, run_grid, solo_answers
    from host.bench.trisplit import Cell
    from host.bench.trisplit_estimate import Estimator
    from host.bench.trisplit_files import write_grid

    from .bench_trisplit_table import show_grid
    from .loop import run_async

    kept = {name: getattr(cell, name) for name in ("kernels", "threads", "transport", "netns")}
    plain = Cell(**kept, new_tokens=cell.new_tokens)
    if cell != plain:
        raise UsageError("--grid has its own ways and delays: only --new-tokens, --model, --kernels, --threads, "
                         "--transport, --netns, --delays, --only go with it")  # fmt: skip
    if only and not any(only in way.way for way in WAYS):
        raise UsageError(f"--only {only!r}: the ways are {'; '.join(way.way for way in WAYS)}")
    ways = [msgspec.structs.replace(way, **kept) for way in WAYS if not only or only in way.way or way.way == BASELINE]
    name, card = _model(model, cell)
    planned = plan_grid(Estimator(card), _delays(delays, DELAYS_MS), cell.new_tokens, ways)
    if limit_s is not None:
        planned = tuple(msgspec.structs.replace(one, limit_s=limit_s) for one in planned)
    whole_s = sum(one.estimate_s for one in planned)
    note(f"cells: {len(planned)}, of {len(ways)} ways; at least {duration(whole_s)} together")
    outcomes: list[Outcome] = []
    solo: list[dict[str, Any]] = []

    def measured(outcome: Outcome) -> None:
        outcomes.append(outcome)
        progress.ended(outcome)

    async def run() -> None:
        solo.extend(await solo_answers(planned, name))
        await run_grid(planned, model=name, on_cell=progress.began, on_measured=measured)

    try:
        with GridProgress(planned) as progress:
            run_async(run())
    finally:  # what was measured before an error or Ctrl-C is kept
        if outcomes:
            report = grid_report(outcomes, solo, name)
            if as_json:
                print_json(report)
            else:
                show_grid(report)
            if out is not None:
                _tell(*write_grid(outcomes, report, out))
    if report["failed"]:
        raise CommandFailedError(f"{len(report['failed'])} of {len(planned)} cells failed", has_printed=True)
    if not report["tokens_agree"]:
        raise CommandFailedError(
            "answers to the same prompt differ, or from plan solo: the JSON object has the token ids", has_printed=True
        )


def _model(model: str | None, cell: Cell) -> tuple[str, dict[str, Any]]:
    """Name and card. Refuses, before any station starts, what the model may not do as the cell asks for it."""
    from host.bench.trisplit_models import available_memory_bytes, resolve_model
    from host.pairx import PairX

    from .model import ready_model
    from .preflight import check_seeds

    ready = ready_model(resolve_model(model, available_memory_bytes()) if model else None)
    check_seeds(PairX(mode=cell.pair_x, layers=cell.pair_x_layers, seed=cell.pair_x_seed), cell.plan, ready)
    return ready.name, ready.card


def _delays(text: str | None, default: tuple[float, ...]) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")] if text else list(default)
    except ValueError:
        raise UsageError(f"--delays {text!r}: numbers of milliseconds, separated by commas") from None
    if not found or any(not 0 <= delay <= MAX_DELAY_MS for delay in found):
        raise UsageError(f"--delays {text!r}: from 0 to {MAX_DELAY_MS:g} ms")
    return found


def _tell(written: list[Path], problem: str) -> None:
    shown = ", ".join(str(path) for path in written[:4]) + (f" and {len(written) - 4} more" if len(written) > 4 else "")
    note(f"written: {shown}")
    if problem:
        note(problem)


def duration(seconds: float) -> str:
    """`42 s`, `3 min`, `1 h 5 min`."""
    minutes = round(seconds / 60)
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
