"""`aeonflow chat`: a conversation in the terminal. History and KV stay in one session; Ctrl-C stops the answer only."""

from __future__ import annotations

from typing import Annotated

import typer

from .options import (
    O1,
    Approximate,
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
    TransportOption,
    Window,
)


def chat(
    model: Model = None,
    plan: Plan = None,
    route: RouteOption = None,
    kernels: KernelsOption = None,
    threads: Threads = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="A system message to begin with.")] = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    seed: Seed = None,
    stop: Stop = None,
    ignore_eos: IgnoreEos = False,
    prefill_chunk: PrefillChunk = None,
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
) -> None:
    """Talk with the model. /help, /reset and /quit; Ctrl-C stops an answer, Ctrl-D leaves.

    Without a terminal each line of stdin is one message.
    """
    from .conversation import converse
    from .engine import DEFAULT_PLAN, EngineRequest, check_sampling, given, prepare_engine, warn_of_idle

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
    )
    keywords = given(
        {
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "seed": seed,
            "stop": stop,
            "ignore_eos": ignore_eos,
            "prefill_chunk": prefill_chunk,
        }
    )
    check_sampling(keywords)
    warn_of_idle(keywords)
    converse(prepare_engine(request), fleet or plan or DEFAULT_PLAN, system=system, keywords=keywords)
