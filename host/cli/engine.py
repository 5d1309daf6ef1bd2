"""An engine for `run` and `chat`: started for this command, or connected to a fleet that runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from .failure import UsageError
from .model import ready_model
from .output import warn
from .target import find_target

if TYPE_CHECKING:
    from host.engine import Engine

DEFAULT_PLAN = "solo"
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "seed")


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `run` and `chat` that concern the fleet; None where the user left the choice to us.

    `kv` are those of the KV cache, named as `Engine`'s keywords.
    """

    model: str | None = None
    plan: str | None = None
    route: str | None = None
    kernels: str | None = None
    threads: int | None = None
    transport: str | None = None
    link_delay_ms: float | None = None
    coalesce: str | None = None
    exact: bool = False
    kv: dict[str, Any] = {}
    fleet: str | None = None
    token_file: Path | None = None
    trace: Path | None = None

    def check(self) -> None:
        """UsageError for options that contradict each other."""
        if self.fleet is None:
            if self.token_file is not None:
                raise UsageError(
                    "--token-file goes with --fleet URL: stations started for this command get a secret of their own"
                )
            return
        started_with = {
            "--model": self.model,
            "--plan": self.plan,
            "--kernels": self.kernels,
            "--threads": self.threads,
        }
        given = [option for option, value in started_with.items() if value is not None]
        if given:
            raise UsageError(
                f"{', '.join(given)} and --fleet contradict each other: the fleet runs already, with the options it "
                "was started with"
            )


def prepare_engine(request: EngineRequest) -> Callable[[], AbstractAsyncContextManager[Engine]]:
    """A maker of the engine's context, with the model in place (this may pull it) or the fleet found.

    Entering the context starts the stations or connects to them.
    """
    from host.engine import Engine

    request.check()
    shared: dict[str, Any] = {
        "route": request.route,
        "transport": request.transport,
        "link_delay_ms": request.link_delay_ms,
        "exact": request.exact,
        **request.kv,
        "trace": request.trace,
    }
    if request.coalesce is not None:
        shared["coalesce"] = request.coalesce == "on"
    if request.fleet is not None:
        target = find_target(request.fleet, request.token_file)
        return partial(Engine.connect, target.state or target.urls, token=target.token, **given(shared))
    model = ready_model(request.model).name
    started = {"kernels": request.kernels, "threads": request.threads}
    return partial(Engine.launch, model=model, plan=request.plan or DEFAULT_PLAN, **given(shared | started))


def check_sampling(keywords: dict[str, Any]) -> None:
    """Refuse what `generate` would refuse, before any station starts. Raises InvalidRequestError."""
    from host.request import check_count
    from host.sampling import SamplingParams
    from host.text import validated_stops

    SamplingParams(**{name: keywords[name] for name in SAMPLING if name in keywords})
    for name in ("max_tokens", "prefill_chunk"):
        if name in keywords:
            check_count(name, keywords[name])
    validated_stops(keywords.get("stop"))


def warn_of_idle(keywords: dict[str, Any]) -> None:
    """Name the sampling options that decide nothing because decoding is greedy."""
    from host.sampling import SamplingParams

    idle = [option_name(name) for name in SAMPLING if name in keywords and name != "temperature"]
    if idle and SamplingParams(temperature=keywords.get("temperature", 0.0)).is_greedy:
        warn(f"{', '.join(idle)}: without effect at temperature 0, which takes the likeliest token")


def option_name(keyword: str) -> str:
    """`top_p` as the command line spells it."""
    return "--" + keyword.replace("_", "-")


def given(values: dict[str, Any]) -> dict[str, Any]:
    """Without the options that the user left to the engine's defaults."""
    return {name: value for name, value in values.items() if value is not None}
