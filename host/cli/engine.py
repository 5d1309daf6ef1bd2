"""An engine for `run`, `chat` and `eval`: started for this command, or connected to a fleet that runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .groups import SAMPLING, AnswerOptions, CacheOptions, EngineOptions, option_name
from .model import ready_model
from .output import warn
from .preflight import check_model, check_trace
from .target import find_target

if TYPE_CHECKING:
    from host.engine import Engine


def check_options(engine: EngineOptions, cache: CacheOptions, answer: AnswerOptions) -> None:
    """Refuse what cannot be meant before a model is fetched or a station starts; name what has no effect."""
    engine.check()
    cache.check(is_live=engine.pair_x == "live")
    answer.check()
    _warn_of_idle(answer.given())


def prepare_engine(
    options: EngineOptions, cache: CacheOptions, *, trace: Path | None = None, prompt: str = "", context: int = 0
) -> Callable[[], AbstractAsyncContextManager[Engine]]:
    """A maker of the engine's context, with the model in place (this may pull it) or the fleet found.

    The options have been checked; what the model's files refuse is refused here. `prompt`, `context`: what will be
    asked of it, as far as it is known. Entering the context starts the stations or connects to them.
    """
    check_trace(trace)
    keywords: dict[str, Any] = {**options.given(), **cache.given(), "trace": trace}
    if options.coalesce is not None:
        keywords["coalesce"] = options.coalesce == "on"
    for name in EngineOptions.OF_FLEETS:
        keywords.pop(name, None)
    if options.fleet is not None:
        target = find_target(options.fleet, options.token_file, options.tls_ca)
        return partial(target.connecting, **keywords)
    model = ready_model(options.model)
    check_model(options, cache, model, prompt, context)
    from host.engine import Engine

    return partial(Engine.launch, **keywords | {"model": model.name})


def warn_of_drift(engine: Engine) -> None:
    """Say how far the output is another model's, where live seeds run on a model that was not built for them."""
    if engine.network.seeding.drift:
        warn(f"pair_x live: {engine.network.seeding.drift}")


def _warn_of_idle(given: dict[str, Any]) -> None:
    """Name the sampling options that decide nothing because decoding is greedy."""
    from host.sampling import SamplingParams

    idle = [option_name(name) for name in SAMPLING if name in given and name != "temperature"]
    if idle and SamplingParams(temperature=given.get("temperature", 0.0)).is_greedy:
        warn(f"{', '.join(idle)}: without effect at temperature 0, which takes the likeliest token")
