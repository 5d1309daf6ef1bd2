"""`aeonflow bench gate`: what must be shown before an option is on by default, and the verdicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .options import MAX_DELAY_MS, AsJson, Model

if TYPE_CHECKING:
    from host.pairx.gate_file import GateResult


def gate(
    model: Model = None,
    plan: Annotated[str, typer.Option(metavar="P", help="With attn, gate_up and down as roles.")] = "trisplit",
    link_delay_ms: Annotated[
        float, typer.Option(metavar="D", min=0.0, max=MAX_DELAY_MS, help="Delay every link.")
    ] = 0.0,
    runs: Annotated[int, typer.Option(metavar="N", min=1, help="Pairs of runs of what is compared.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Coalescing, residual seeds and the time of a token against their limits; the result decides defaults.

    Coalescing is off from then on where it does not pay; --pair-x live is open to the model where its seeds are what
    the chain delivers.
    """
    from host.pairx.gate import run_gates
    from host.pairx.gate_file import save_gate

    from .loop import run_async
    from .model import ready_model
    from .output import note, print_json

    name = ready_model(model).name
    result = run_async(run_gates(model=name, plan=plan, link_delay_ms=link_delay_ms, runs=runs, progress=note))
    path = save_gate(result)
    if as_json:
        import msgspec

        print_json({"bench": "gate", **msgspec.to_builtins(result), "permits_live": result.permits_live})
    else:
        _show(result)
        note(f"result in {path}")


def _show(result: GateResult) -> None:
    from .output import print_table

    rows = [
        [one.name, "passed" if one.passed else "failed", f"{one.measured:.4g}", f"{one.limit:.4g}", one.note]
        for one in result.verdicts
    ]
    print_table(["gate", "verdict", "measured", "limit", ""], rows)
