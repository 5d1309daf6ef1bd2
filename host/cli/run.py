"""`aeonflow run`: one prompt, one answer, streamed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .failure import UsageError
from .options import (
    O1,
    Approximate,
    AsJson,
    Coalesce,
    Exact,
    Fleet,
    IgnoreEos,
    KernelsOption,
    Kv,
    KvEvict,
    KvExactRecent,
    KvMax,
    KvSink,
    LinkDelay,
    MaxTokens,
    MinP,
    Model,
    Plan,
    PrefillChunk,
    RouteOption,
    Seed,
    Stop,
    Temperature,
    Threads,
    TokenFile,
    TopK,
    TopP,
    Trace,
    TransportOption,
    Window,
)

if TYPE_CHECKING:
    from host.engine import Engine

OUTPUT_PANEL = "Output"


def run(
    prompt: Annotated[
        str | None, typer.Argument(metavar="[PROMPT | -]", help="The prompt; - reads stdin.", show_default=False)
    ] = None,
    model: Model = None,
    plan: Plan = None,
    route: RouteOption = None,
    kernels: KernelsOption = None,
    threads: Threads = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    seed: Seed = None,
    stop: Stop = None,
    raw: Annotated[bool, typer.Option("--raw", help="No chat template: continue the text.")] = False,
    ignore_eos: IgnoreEos = False,
    prefill_chunk: PrefillChunk = None,
    logits_hash: Annotated[
        bool,
        typer.Option("--logits-hash", help="Tell the blake3 of all logits rows.", rich_help_panel=OUTPUT_PANEL),
    ] = False,
    transport: TransportOption = None,
    link_delay_ms: LinkDelay = None,
    coalesce: Coalesce = None,
    exact: Exact = False,
    kv: Kv = None,
    kv_exact_recent: KvExactRecent = None,
    kv_max: KvMax = None,
    kv_evict: KvEvict = None,
    kv_sink: KvSink = None,
    window: Window = None,
    o1: O1 = None,
    approximate: Approximate = False,
    fleet: Fleet = None,
    token_file: TokenFile = None,
    trace: Trace = None,
    as_json: AsJson = False,
) -> None:
    """Generate: start a fleet (or use one that runs), stream the answer, stop it.

    The text goes to stdout, everything else to stderr. The default plan is solo: one process, no sockets.
    """
    from .engine import DEFAULT_PLAN, EngineRequest, check_sampling, given, prepare_engine, warn_of_idle
    from .loop import run_async
    from .output import note

    request = EngineRequest(
        model=model,
        plan=plan,
        route=route,
        kernels=kernels,
        threads=threads,
        transport=transport,
        link_delay_ms=link_delay_ms,
        coalesce=coalesce,
        exact=exact,
        kv={
            "kv": kv,
            "kv_exact_recent": kv_exact_recent,
            "kv_max": kv_max,
            "kv_evict": kv_evict,
            "kv_sink": kv_sink,
            "window": window,
            "o1": o1,
            "approximate": approximate,
        },
        fleet=fleet,
        token_file=token_file,
        trace=trace,
    )
    request.check()
    text = _prompt(prompt)
    keywords = given(
        {
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "seed": seed,
            "stop": stop,
            "raw": raw,
            "ignore_eos": ignore_eos,
            "prefill_chunk": prefill_chunk,
            "logits_hash": logits_hash,
        }
    )
    check_sampling(keywords)
    warn_of_idle(keywords)
    open_engine = prepare_engine(request)
    run_async(_generate(open_engine, request.fleet or request.plan or DEFAULT_PLAN, text, keywords, as_json=as_json))
    if trace is not None:
        note(f"trace in {trace}: open it at https://ui.perfetto.dev")


def _prompt(given: str | None) -> str:
    """The prompt's text; `-`, or nothing where stdin is no terminal, reads stdin to its end."""
    text = given
    if given is None and sys.stdin.isatty():
        raise UsageError('a prompt is needed: aeonflow run "Why is the sky blue?", or - for stdin')
    if given is None or given == "-":
        text = sys.stdin.buffer.read().decode("utf-8", "replace")
    if not text:
        raise UsageError("the prompt is empty: at least one character is needed")
    return text


async def _generate(
    open_engine: Callable[[], AbstractAsyncContextManager[Engine]],
    plan: str,
    text: str,
    keywords: dict[str, Any],
    *,
    as_json: bool,
) -> None:
    from .output import note, print_json
    from .progress import starting, summary

    async with AsyncExitStack() as stack:
        with starting(plan):
            engine = await stack.enter_async_context(open_engine())
        generation = engine.generate(text, **keywords)
        try:
            async for chunk in generation:
                if not as_json:
                    sys.stdout.write(chunk.text)
                    sys.stdout.flush()
        except asyncio.CancelledError:
            generation.cancel()
            if as_json:
                print_json(generation.result.to_json())
            raise
        if as_json:
            print_json(generation.result.to_json())
        elif sys.stdout.isatty():
            sys.stdout.write("\n")
        note(summary(generation.result))
