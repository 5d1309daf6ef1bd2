"""The commands, put together."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from .bench import app as bench
from .chat import chat
from .doctor import doctor
from .evaluate import evaluate
from .fleets import down, logs, status, up
from .models import app as models
from .pairx import app as pairx
from .planning import explain, plan
from .pull import pull
from .run import run
from .station import station

app = typer.Typer(
    name="aeonflow",
    help="One language model over many small stations: however you cut it, the same tokens, bit for bit.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


def _show_version(value: bool) -> None:
    if value:
        print(f"aeonflow {version('aeonflow')}")
        raise typer.Exit


@app.callback()
def aeonflow(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


GENERATING, FLEETS, MODELS, LOOKING = "Generate", "Fleets", "Models", "Look before you run"

app.command(rich_help_panel=GENERATING)(run)
app.command(rich_help_panel=GENERATING)(chat)
app.command(rich_help_panel=MODELS)(pull)
app.add_typer(models, name="models", rich_help_panel=MODELS)
app.command(rich_help_panel=FLEETS)(up)
app.command(rich_help_panel=FLEETS)(down)
app.command(rich_help_panel=FLEETS)(status)
app.command(rich_help_panel=FLEETS)(logs)
app.command(rich_help_panel=FLEETS)(doctor)
app.command(
    rich_help_panel=FLEETS,
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False},
)(station)
app.command(rich_help_panel=LOOKING)(plan)
app.command(rich_help_panel=LOOKING)(explain)
app.command("eval", rich_help_panel=LOOKING)(evaluate)
app.add_typer(bench, name="bench", rich_help_panel=LOOKING)
app.add_typer(pairx, name="pairx", rich_help_panel=LOOKING)
