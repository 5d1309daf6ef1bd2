"""`aeonflow chat`: a conversation in the terminal. History and KV stay in one session; Ctrl-C stops the answer only."""

from __future__ import annotations

from typing import Annotated

import typer

from .groups import AnswerOptions, CacheOptions, EngineOptions, with_groups


@with_groups
def chat(
    engine: EngineOptions,
    answer: AnswerOptions,
    cache: CacheOptions,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="A system message to begin with.")] = None,
) -> None:
    """Talk with the model. /help, /reset and /quit; Ctrl-C stops an answer, Ctrl-D leaves.

    Without a terminal each line of stdin is one message.
    """
    from .conversation import converse
    from .engine import check_options, prepare_engine

    check_options(engine, cache, answer)
    converse(prepare_engine(engine, cache), engine, system=system, keywords=answer.given())
