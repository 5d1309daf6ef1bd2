"""`aeonflow models`: what the cache holds; `models rm` to make room, `models verify` to hash it again."""

from __future__ import annotations

from typing import Annotated

import typer

from .children import run_verb
from .failure import UsageError
from .options import AsJson

GENERATED_SOURCE, GENERATED_NAME = "generated", "synthetic"  # of models that benches make: nobody named them

app = typer.Typer(invoke_without_command=True, no_args_is_help=False)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The model's name in the cache.")]


@app.callback()
def models(context: typer.Context, as_json: AsJson = False) -> None:
    """List the imported models, delete one, or check its files."""
    if (asked := context.invoked_subcommand) is not None:
        if as_json:
            raise UsageError(f"--json goes behind {asked}: aeonflow models {asked} NAME --json")
        return
    from .cache import human_bytes, models_folder
    from .output import note, print_json, print_table

    found = run_verb("models", [])["models"]
    for m in found:
        m["generated"] = m["source"].startswith(GENERATED_SOURCE) and m["name"].startswith(GENERATED_NAME)
    if as_json:
        print_json(found)
    elif not found:
        note(f"no models in {models_folder()}; import one with: aeonflow pull smollm2")
    else:
        rows = [
            (
                m["name"],
                human_bytes(m["bytes"]),
                f"{m['files']} of {m['files_total']}",
                m["fingerprint"][:12],
                m["source"],
            )
            for m in found
            if not m["generated"]
        ]
        print_table(("model", "size", "files", "fingerprint", "source"), rows)
        if made := [m for m in found if m["generated"]]:
            size = human_bytes(sum(m["bytes"] for m in made))
            note(f"and {size} generated for measurements, made anew when needed: {', '.join(m['name'] for m in made)}")


@app.command("rm")
def remove(name: Name, as_json: AsJson = False) -> None:
    """Delete an imported model."""
    from .cache import human_bytes
    from .output import note, print_json

    freed = run_verb("models", ["rm", name])["bytes"]
    note(f"removed {name}: {human_bytes(freed)} freed")
    if as_json:
        print_json({"removed": name, "bytes": freed})


@app.command("verify")
def verify(name: Name, as_json: AsJson = False) -> None:
    """Hash every weight file of a model and compare with its manifest."""
    from .output import note, print_json

    run_verb("models", ["verify", name])
    note(f"{name} is intact")
    if as_json:
        print_json({"verified": name})
