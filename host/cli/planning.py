"""`aeonflow plan` and `aeonflow explain`: what a cut costs and what an option does, before anything starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from .groups import AnswerOptions, CacheOptions, WayOptions, check_preset, with_groups
from .options import MAX_DELAY_MS, AsJson, Model, Route

if TYPE_CHECKING:
    from host.plan import PlanCost
    from host.plan.explain import Effect


@with_groups
def plan(
    cache: CacheOptions,
    plan: Annotated[str, typer.Argument(metavar="P", help="A preset or a .toml file.")],
    model: Model = None,
    route: Annotated[Route, typer.Option(help="How a pass travels.")] = "chain",
    rtt_ms: Annotated[
        float | None,
        typer.Option(
            metavar="MS", min=0.0, max=MAX_DELAY_MS, help="Measured round trip between two stations (default 0.12)."
        ),
    ] = None,
    context: Annotated[int | None, typer.Option(metavar="N", help="Positions the KV cache is sized for.")] = None,
    cores: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Cores that all stations share (default: one machine each).")
    ] = None,
    as_toml: Annotated[bool, typer.Option("--toml", help="Print the plan as a file to start from.")] = False,
    as_json: AsJson = False,
) -> None:
    """Who carries what, memory a station, hops and bytes a token, predicted tokens/s, warnings."""
    import msgspec

    from host.kv_options import make_kv_options
    from host.plan import Machine, make_plan, plan_cost, to_toml

    from .output import print_json

    kv = make_kv_options(**cache.given())
    geometry, weights = _sizes(model)
    made = make_plan(plan, geometry.num_layers)
    if as_toml:
        print(to_toml(made), end="")
        return
    measured: dict[str, Any] = {"cores": cores}
    if rtt_ms is not None:
        measured["hop_s"] = rtt_ms / 2000.0
    cost = plan_cost(made, geometry, weights, route=route, context=context, kv=kv, machine=Machine(**measured))
    if as_json:
        print_json(msgspec.to_builtins(cost))
    else:
        _print_cost(cost)


@with_groups
def explain(
    way: WayOptions,
    answer: AnswerOptions,
    cache: CacheOptions,
    pair_x: Annotated[str | None, typer.Option(metavar="MODE", help="As of `run`.")] = None,
    speculate: Annotated[str | None, typer.Option(metavar="HOW", help="As of `run`.")] = None,
    as_json: AsJson = False,
) -> None:
    """What each chosen option does to exactness; without options, the whole table.

    cut: is the result the same for every plan, chunk and batch? model: how does it stand to the unmodified model?
    """
    import msgspec

    from host.kv_options import exactness_options, make_kv_options
    from host.plan import exactness
    from host.plan import explain as rows_of
    from host.plan.explain import TABLE

    from .output import note, print_json, print_table

    answer.check()
    cache.check()
    if way.plan is not None:
        check_preset(way.plan)
    kept: dict[str, Any] = cache.given()
    promised = exactness_options(make_kv_options(**kept))  # what some of these values are known as
    kept.pop("approximate", None)  # it permits o1, and has no effect of its own
    options = way.given() | answer.given() | {name: promised.get(name, value) for name, value in kept.items()}
    options |= {"pair_x": pair_x, "speculate": speculate}
    chosen = rows_of(options)
    together = exactness(options)
    if as_json:
        effects = [{**msgspec.to_builtins(e), "is_built": e.is_built} for e in chosen or TABLE]
        print_json({"options": effects, "exactness": msgspec.to_builtins(together)})
        return
    rows = [
        (e.option.replace("_", "-"), "any" if e.value == "*" else e.value, e.cut, e.model, _note(e))
        for e in chosen or TABLE
    ]
    print_table(("option", "value", "cut", "model", "what it does"), rows)
    if chosen:
        note(f"together: cut {together.cut}, model {together.model}")


def _note(effect: Effect) -> str:
    return effect.note if effect.is_built else f"(refused: {effect.refusal}) {effect.note}"


def _sizes(model: str | None) -> Any:
    """Geometry and weight sizes of a model, from its card and manifest."""
    from host.plan import Geometry, weights_from_manifest

    from .cache import model_path, read_manifest
    from .model import ready_model

    ready = ready_model(model)
    geometry = Geometry.from_card(ready.card)
    return geometry, weights_from_manifest(read_manifest(model_path(ready.name)), geometry.num_layers)


def _named(kv: dict[str, Any]) -> str:
    """`q8 exact_recent=32`."""
    return " ".join(str(value) if name == "kv" else f"{name}={value}" for name, value in kv.items())


def _print_cost(cost: PlanCost) -> None:
    from .cache import human_bytes
    from .output import print_table, warn

    rows = [
        (
            s.name,
            s.roles,
            human_bytes(s.weight_bytes),
            human_bytes(s.kv_bytes),
            human_bytes(s.total_bytes),
            f"{s.compute_s * 1e3:.2f} ms",
        )
        for s in cost.stations
    ]
    print_table(
        ("station", "roles", "weights", f"{_named(cost.kv)} kv at {cost.context}", "memory", "compute a token"), rows
    )
    print()
    print(
        f"{cost.plan}, {cost.route}: {cost.hops_per_token} hops and {human_bytes(cost.bytes_per_token)} a token; "
        f"predicted {cost.tok_s:.1f} tokens/s for one session, at most {cost.ceiling_tok_s:.1f} for many "
        f"(busiest: {cost.busiest})"
    )
    for text in cost.warnings:
        warn(text)
