"""`aeonflow eval`: what an option of the KV cache costs and saves on texts of yours."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from .groups import CacheOptions, EngineOptions, with_groups
from .options import AsJson, KvMode
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
    as_json: AsJson = False,
) -> None:
    """Measure KV options on texts: perplexity, recall, KL and agreement with the exact cache, rates, bytes.

    Two sessions are fed in step, one with the exact cache. Recall is how much worse passages repeated from early in the
    context are predicted: perplexity on ordinary text hides lost context.
    """
    from .engine import prepare_engine
    from .loop import run_async
    from .output import print_json

    engine.check()
    cache.check()
    texts = [read_file(path) for path in files]
    open_engine = prepare_engine(engine, cache)
    about, found = run_async(_measure(open_engine, engine, texts, context, tokens, against))
    if as_json:
        print_json({**about, "files": [str(path) for path in files], **msgspec.to_builtins(found)})
    else:
        _show(found)


async def _measure(
    open_engine: Callable[[], AbstractAsyncContextManager[Engine]],
    options: EngineOptions,
    texts: list[str],
    context: int,
    tokens: int,
    against: str,
) -> tuple[dict[str, Any], Evaluation]:
    from host.evaluate import evaluate, texts_to_windows
    from host.kv_options import make_kv_options

    from .progress import starting

    async with AsyncExitStack() as stack:
        with starting(options.what, may_compile=options.may_compile):
            engine = await stack.enter_async_context(open_engine())
        ids = [engine.tokenize(text)[:tokens] for text in texts]
        windows = texts_to_windows(ids, context, engine.card.context_length)
        option, exact = engine.network.kv, make_kv_options(kv=against)
        with _progress_bar(f"{option} beside {exact}") as progress:
            (found,) = await evaluate(engine, windows, [option], against=exact, progress=progress)
        setting = engine.setting
        about = {
            "model": engine.card.name,
            "plan": setting.plan,
            "route": setting.route,
            "kernels": setting.kernels,
            "transport": setting.transport,
            "exactness": msgspec.to_builtins(setting.exactness),
            "context": context,
            "tokens": [len(text) for text in ids],
        }
        return about, found


@contextlib.contextmanager
def _progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr where it is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _show(found: Evaluation) -> None:
    """A table on stdout of both caches, and how one compares with the other on stderr."""
    from .output import note, print_table

    columns = ("kv", "ppl", "recall ppl", "KV bytes", "prefill tok/s", "decode tok/s")
    print_table(columns, [_cells(found.exact), _cells(found.option)])
    note(
        f"PPL {_figure(found.delta_ppl_percent, '+.2f')} % · recall ×{_figure(found.recall, '.3f')} · "
        f"KL {_figure(found.kl, '.2g')} · same likeliest token {_figure(found.top1, '.4f')} · "
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
