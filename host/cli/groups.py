"""Options that several commands share, as groups: a command with a parameter of a group's type has the group's options.

    @with_groups
    def run(engine: EngineOptions, answer: AnswerOptions, …) -> None: …

Fields left alone are None, or False for a flag; defaults are the engine's.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, get_type_hints

import msgspec

from .failure import UsageError
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
    PairX,
    PairXLayers,
    PairXSeed,
    Plan,
    PrefillChunk,
    RouteOption,
    Seed,
    Speculate,
    Stop,
    Temperature,
    Threads,
    TlsCa,
    TokenFile,
    TopK,
    TopP,
    TransportOption,
    Window,
)

MAX_LAYERS = 1024  # presets are checked without a model: no model is deeper
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "seed")


class OptionGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Fields are options of the command line, annotated as Typer reads them."""

    def given(self) -> dict[str, Any]:
        """What the user set, by field: the rest is left to the engine's defaults."""
        values = msgspec.structs.asdict(self)
        return {name: value for name, value in values.items() if value is not None and value is not False}


class WayOptions(OptionGroup, frozen=True, kw_only=True):
    """How a model is cut and run."""

    plan: Plan = None
    route: RouteOption = None
    kernels: KernelsOption = None
    threads: Threads = None
    transport: TransportOption = None
    link_delay_ms: LinkDelay = None
    coalesce: Coalesce = None


class EngineOptions(WayOptions, frozen=True, kw_only=True):
    """What an engine is made of: stations started for one command, or those of a fleet that runs."""

    model: Model = None
    pair_x: PairX = None
    pair_x_layers: PairXLayers = None
    pair_x_seed: PairXSeed = None
    speculate: Speculate = None
    exact: Exact = False
    fleet: Fleet = None
    token_file: TokenFile = None
    tls_ca: TlsCa = None

    OF_FLEETS: ClassVar = ("fleet", "token_file", "tls_ca")  # they say which stations, and are no keywords of `Engine`

    @property
    def what(self) -> str:
        """The name for people of what is started or joined."""
        from .target import fleet_title

        return fleet_title(self.fleet) if self.fleet is not None else self.plan or "solo"

    @property
    def may_compile(self) -> bool:
        """May its start wait for kernels that have to be compiled?"""
        return self.fleet is None and self.kernels != "reference"

    def check(self) -> None:
        """UsageError for options that contradict each other, PlanError for a plan that no model has."""
        self._check_pair_x()
        if self.plan is not None:
            check_preset(self.plan)
        if self.speculate is not None:
            check_speculate(self.speculate)
        if self.fleet is None:
            for name in ("token_file", "tls_ca"):
                if getattr(self, name) is not None:
                    raise UsageError(
                        f"{option_name(name)} goes with --fleet URL: stations started for this command get a secret of "
                        "their own, on loopback"
                    )
            return
        started_with = [name for name in ("model", "plan", "kernels", "threads") if getattr(self, name) is not None]
        if started_with:
            raise UsageError(
                f"{', '.join(map(option_name, started_with))} and --fleet contradict each other: the fleet runs "
                "already, with the options it was started with"
            )

    def _check_pair_x(self) -> None:
        """Refuse what `Engine` would refuse, before a model is fetched. Raises InvalidRequestError."""
        from host.pairx import PairX

        asked = PairX(mode=self.pair_x or "off", layers=self.pair_x_layers, seed=self.pair_x_seed)
        asked.check()


class CacheOptions(OptionGroup, frozen=True, kw_only=True):
    """How keys and values are kept; named as `Engine`'s keywords."""

    kv: Kv = None
    kv_exact_recent: KvExactRecent = None
    kv_max: KvMax = None
    kv_evict: KvEvict = None
    kv_sink: KvSink = None
    window: Window = None
    o1: O1 = None
    approximate: Approximate = False

    def check(self, *, is_live: bool = False) -> None:
        """Refuse what an engine would refuse, before a model is fetched. Raises InvalidRequestError.

        `is_live`: `approximate` is meant for Pair X, whatever it is to the caches.
        """
        from host.kv_options import make_kv_options

        given = self.given()
        if is_live and self.o1 is None:
            given.pop("approximate", None)
        make_kv_options(**given)


class AnswerOptions(OptionGroup, frozen=True, kw_only=True):
    """How tokens are chosen and when an answer ends; named as `Engine.generate`'s keywords."""

    max_tokens: MaxTokens = None
    temperature: Temperature = None
    top_k: TopK = None
    top_p: TopP = None
    min_p: MinP = None
    seed: Seed = None
    stop: Stop = None
    ignore_eos: IgnoreEos = False
    prefill_chunk: PrefillChunk = None

    def check(self) -> None:
        """Refuse what `generate` would refuse, before any station starts. Raises InvalidRequestError."""
        from host.request import check_count
        from host.sampling import SamplingParams
        from host.text import validated_stops

        found = self.given()
        SamplingParams(**{name: found[name] for name in SAMPLING if name in found})
        for name in ("max_tokens", "prefill_chunk"):
            if name in found:
                check_count(name, found[name])
        validated_stops(self.stop)


def check_speculate(speculate: str) -> None:
    """Refuse what an engine would refuse. Raises InvalidRequestError, UnsupportedOptionError."""
    from host.plan import effect_of
    from host.speculate.drafters import SpeculateMode

    effect_of("speculate", speculate)
    SpeculateMode.parse(speculate)


def check_preset(plan: str) -> None:
    """PlanError for what is no preset on any model; a file is checked against a model's depth, none is known here."""
    from host.plan.presets import expand_preset

    if not plan.endswith(".toml"):
        expand_preset(plan, MAX_LAYERS)


def option_name(keyword: str) -> str:
    """`top_p` as the command line spells it."""
    return "--" + keyword.replace("_", "-")


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """`command` for Typer: each parameter whose type is a group is replaced by the group's options."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type[OptionGroup]] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        hint = hints[parameter.name]
        if isinstance(hint, type) and issubclass(hint, OptionGroup):
            groups[parameter.name] = hint
            parameters += _options(hint)
        else:
            parameters.append(parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def wrapper(**given: Any) -> None:
        made = {name: group(**{f: given.pop(f) for f in group.__struct_fields__}) for name, group in groups.items()}
        command(**made, **given)

    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapper


def _options(group: type[OptionGroup]) -> list[inspect.Parameter]:
    hints, defaults = get_type_hints(group, include_extras=True), group()
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=getattr(defaults, name), annotation=hints[name])
        for name in group.__struct_fields__
    ]
