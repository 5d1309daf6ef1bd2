"""`aeonflow eval`: what an option of the KV cache costs and saves on texts of yours."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from .failure import UsageError
from .groups import CacheOptions, EngineOptions, with_groups
from .options import AsJson, Kernels, KvMode
from .texts import read_file

if TYPE_CHECKING:
    from host.engine import Engine
    from host.evaluate import Estimate, Evaluation, Side

DEFAULT_CONTEXT, DEFAULT_TOKENS = 2048, 8192
EVALUATION_PANEL = "Evaluation"


@with_groups
def evaluate(
    engine: EngineOptions,
    cache: CacheOptions,
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Texts, UTF-8.", show_default=False)],
    context: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Tokens of a window of text.", rich_help_panel=EVALUATION_PANEL),
    ] = DEFAULT_CONTEXT,
    tokens: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="At most so many of each file.", rich_help_panel=EVALUATION_PANEL),
    ] = DEFAULT_TOKENS,
    against: Annotated[
        KvMode, typer.Option(help="The cache to compare with.", rich_help_panel=EVALUATION_PANEL)
    ] = "f32",
    against_kernels: Annotated[
        Kernels | None,
        typer.Option(
            help="The kernels to compare with, in a solo engine of this command (default: the same ones).",
            rich_help_panel=EVALUATION_PANEL,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure KV options on texts: perplexity, recall, KL and agreement with the exact cache, rates, bytes.

    Two sessions are fed in step, one with the exact cache. Recall is how much worse passages repeated from early in the
    context are predicted: perplexity on ordinary text hides lost context. With --o1 a third one has sinks and a window
    of equal bytes, and a report is kept: where it shows a gain, --o1 needs no --approximate on this model.
    """
    from .engine import prepare_engine
    from .loop import run_async
    from .output import print_json, warn

    engine.check()
    if engine.speculate is not None:
        raise UsageError("--speculate with eval: its tokens are given, none is guessed")
    cache.check()
    texts = [read_file(path) for path in files]
    if cache.o1 is not None:
        if against != "f32":
            raise UsageError(f"--o1 and --against {against} contradict each other: it is proved beside the exact cache")
        cache = msgspec.structs.replace(cache, approximate=True)  # to measure it is no use of it
    if against_kernels is not None and (engine.fleet is not None or cache.o1 is not None):
        raise UsageError("--against-kernels is for a model of this machine, without --fleet and --o1")
    if not cache.given() and against == "f32" and against_kernels in (None, engine.kernels or "fast"):
        warn(
            "no KV option was given: f32 is compared with itself, which shows the perplexity of the texts and no more; "
            "--kv q8, --kv-max N, --window W or --o1 … say what to measure"
        )
    open_engine = prepare_engine(engine, cache, context=context)
    beside = None
    if against_kernels is not None:
        beside = prepare_engine(
            EngineOptions(model=engine.model, kernels=against_kernels, threads=engine.threads), cache
        )
    about, found = run_async(_measure(open_engine, beside, engine, texts, context, tokens, against))
    if against_kernels is not None:
        about["against_kernels"] = against_kernels
    if as_json:
        about |= {"files": [str(path) for path in files]} | ({"window": found[1]} if len(found) > 1 else {})
        print_json(msgspec.to_builtins({**about, **msgspec.structs.asdict(found[0])}))
    else:
        _show(found)
        if "proof" in about:
            verdict = "permitted without --approximate" if about["proof"]["wins"] else "refused without --approximate"
            print(f"--o1 is {verdict} on this model: {about['proof']['says']} ({about['proof']['path']})")


async def _measure(
    open_engine: Callable[[], AbstractAsyncContextManager[Engine]],
    open_baseline: Callable[[], AbstractAsyncContextManager[Engine]] | None,
    options: EngineOptions,
    texts: list[str],
    context: int,
    tokens: int,
    against: str,
) -> tuple[dict[str, Any], list[Evaluation]]:
    from host.evaluate import evaluate, prove, texts_to_windows
    from host.kv_options import make_kv_options
    from host.overlay_proof import proofs_folder, save_proof

    from .output import note
    from .progress import starting

    async with AsyncExitStack() as stack:
        with starting(options.what, may_compile=options.may_compile):
            engine = await stack.enter_async_context(open_engine())
            baseline = await stack.enter_async_context(open_baseline()) if open_baseline is not None else None
        ids = [engine.tokenize(text)[:tokens] for text in texts]
        windows = texts_to_windows(ids, context, engine.card.context_length)
        num_tokens, shown = sum(map(len, ids)), "1 text" if len(texts) == 1 else f"{len(texts)} texts"
        note(f"windows of {context} tokens: {len(windows)}; {num_tokens} tokens of {shown}")
        option, exact = engine.network.kv, make_kv_options(kv=against)
        setting, about = engine.setting, {"context": context, "tokens": [len(text) for text in ids]}
        exactness = setting.exactness
        with _progress_bar(f"{option} beside {exact}") as progress:
            if option.o1 is None:
                found = await evaluate(engine, windows, [option], against=exact, baseline=baseline, progress=progress)
            else:
                proof, *found = await prove(engine, windows, option, ids, progress=progress)
                path = save_proof(proofs_folder(os.environ), proof)
                about["proof"] = {
                    **msgspec.to_builtins(proof),
                    "wins": proof.wins,
                    "says": str(proof),
                    "path": str(path),
                }
                exactness = msgspec.structs.replace(exactness, model="certified" if proof.wins else "approximate")
        about |= {
            "model": engine.card.name,
            "plan": setting.plan,
            "route": setting.route,
            "kernels": setting.kernels,
            "transport": setting.transport,
            "exactness": msgspec.to_builtins(exactness),
        }
        return about, found


@contextlib.contextmanager
def _progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr where it is a terminal, a line every few seconds elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from .progress import Ticker

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Ticker(f"{what}, rows")
        return
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _show(evaluations: list[Evaluation]) -> None:
    """A table of all caches on stdout, and below it how the first compares with the exact one."""
    from .output import print_table

    columns = ("kv", "ppl", "recall ppl", "KV bytes", "prefill tok/s", "decode tok/s")
    found = evaluations[0]
    print_table(columns, [_cells(found.exact), *(_cells(one.option) for one in evaluations)])
    print(
        f"PPL {_figure(found.delta_ppl_percent, '+.2f')} % · recall ×{_figure(found.recall, '.3f')} · "
        f"KL {_figure(found.kl, '.2g')} · same likeliest token {_figure(found.top1, '.4f')} · "
        f"logits off by {found.logits_rms:.3g} rms · "
        f"{100 * found.bytes_ratio:.1f} % of the bytes · decode ×{found.decode_ratio:.2f}, "
        f"prefill ×{found.prefill_ratio:.2f} · {found.num_windows} windows, {found.num_text_tokens} tokens, "
        f"{found.num_recall_tokens} of repeated passages"
    )


def _cells(side: Side) -> tuple[str, ...]:
    from .cache import human_bytes

    name = " ".join(value if key == "kv" else f"{key}={value}" for key, value in side.kv.items())
    return (
        name,
        _figure(side.ppl, ".3f"),
        _figure(side.recall_ppl, ".3f"),
        human_bytes(side.kv_bytes),
        f"{side.prefill_tok_s:.0f}",
        f"{side.decode_tok_s:.1f}",
    )


def _figure(estimate: Estimate | None, digits: str) -> str:
    if estimate is None:
        return "-"
    return f"{estimate.value:{digits}}" + ("" if estimate.se is None else f" ± {estimate.se:{digits.lstrip('+')}}")
