"""`aeonflow models`: what the cache holds, and `models rm` to make room."""

from __future__ import annotations

from typing import Annotated

import typer

from .options import AsJson

app = typer.Typer(invoke_without_command=True, no_args_is_help=False, rich_markup_mode=None)


@app.callback()
def models(context: typer.Context, as_json: AsJson = False) -> None:
    """List the imported models; `aeonflow models rm NAME` deletes one."""
    if context.invoked_subcommand is not None:
        return
    import msgspec

    from .cache import cached_models, human_bytes, models_folder
    from .output import note, print_json, print_table

    found = cached_models()
    if as_json:
        print_json([msgspec.to_builtins(model) for model in found])
        return
    if not found:
        note(f"no models in {models_folder()}; import one with: aeonflow pull smollm2")
        return
    rows = [
        (
            m.name,
            human_bytes(m.disk_bytes),
            str(m.num_layers),
            str(m.hidden_size),
            str(m.context_length),
            m.problem or m.source,
        )
        for m in found
    ]
    print_table(("model", "size", "layers", "hidden", "context", "source"), rows)


@app.command("rm")
def remove(name: Annotated[str, typer.Argument(metavar="NAME", help="The model's name in the cache.")]) -> None:
    """Delete an imported model."""
    from .cache import human_bytes, remove_model
    from .output import note

    note(f"removed {name}: {human_bytes(remove_model(name))} freed")
