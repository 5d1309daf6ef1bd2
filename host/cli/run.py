"""`aeonflow run`: one prompt, one answer, streamed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .failure import UsageError
from .groups import AnswerOptions, CacheOptions, EngineOptions, with_groups
from .options import OUTPUT_PANEL, AsJson, Trace
from .texts import read_prompt

if TYPE_CHECKING:
    from host.engine import Engine


@with_groups
def run(
    engine: EngineOptions,
    answer: AnswerOptions,
    cache: CacheOptions,
    prompt: Annotated[
        str | None, typer.Argument(metavar="[PROMPT | -]", help="The prompt; - reads stdin.", show_default=False)
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="No chat template: continue the text.")] = False,
    logits_hash: Annotated[
        bool,
        typer.Option("--logits-hash", help="Tell the blake3 of all logits rows.", rich_help_panel=OUTPUT_PANEL),
    ] = False,
    trace: Trace = None,
    as_json: AsJson = False,
) -> None:
    """Generate: start a fleet (or use one that runs), stream the answer, stop it.

    The text and one final newline go to stdout, everything else to stderr. The default plan is solo: one process, no
    sockets.
    """
    from .engine import check_options, prepare_engine
    from .loop import run_async
    from .output import note

    check_options(engine, cache, answer)
    text = _prompt(prompt)
    keywords = {**answer.given(), "raw": raw, "logits_hash": logits_hash}
    open_engine = prepare_engine(engine, cache, trace=trace, prompt=text)
    run_async(_generate(open_engine, engine, text, keywords, as_json=as_json))
    if trace is not None:
        note(f"trace in {trace}: open it at https://ui.perfetto.dev")


def _prompt(given: str | None) -> str:
    """The prompt's text; `-`, or nothing where stdin is no terminal, reads stdin to its end."""
    if given is None and sys.stdin is not None and sys.stdin.isatty():
        raise UsageError('a prompt is needed: aeonflow run "Why is the sky blue?", or - for stdin')
    text = read_prompt() if given is None or given == "-" else given
    if not text:
        raise UsageError("the prompt is empty: at least one character is needed")
    return text


async def _generate(
    open_engine: Callable[[], AbstractAsyncContextManager[Engine]],
    options: EngineOptions,
    text: str,
    keywords: dict[str, Any],
    *,
    as_json: bool,
) -> None:
    from .engine import warn_of_drift
    from .output import note, print_json
    from .progress import starting, summary

    async with AsyncExitStack() as stack:
        with starting(options.what, may_compile=options.may_compile):
            engine = await stack.enter_async_context(open_engine())
        warn_of_drift(engine)
        generation = engine.generate(text, **keywords)
        line_begun = False
        try:
            async for chunk in generation:
                if not as_json and chunk.text:
                    line_begun = True
                    sys.stdout.write(chunk.text)
                    sys.stdout.flush()
        except asyncio.CancelledError:
            generation.cancel()
            if as_json:
                print_json(generation.result.to_json())
            raise
        finally:
            if line_begun:  # what follows on stderr may go to the same file: it begins a line of its own
                sys.stdout.write("\n")
                sys.stdout.flush()
        if as_json:
            print_json(generation.result.to_json())
        note(summary(generation.result))
