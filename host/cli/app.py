"""The commands, put together."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from . import bench, chat, doctor, fleets, models, planning, pull, run, station

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

app.command(rich_help_panel=GENERATING)(run.run)
app.command(rich_help_panel=GENERATING)(chat.chat)
app.command(rich_help_panel=MODELS)(pull.pull)
app.add_typer(models.app, name="models", rich_help_panel=MODELS)
app.command(rich_help_panel=FLEETS)(fleets.up)
app.command(rich_help_panel=FLEETS)(fleets.down)
app.command(rich_help_panel=FLEETS)(fleets.status)
app.command(rich_help_panel=FLEETS)(fleets.logs)
app.command(rich_help_panel=FLEETS)(doctor.doctor)
app.command(
    rich_help_panel=FLEETS,
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False},
)(station.station)
app.command(rich_help_panel=LOOKING)(planning.plan)
app.command(rich_help_panel=LOOKING)(planning.explain)
app.add_typer(bench.app, name="bench", rich_help_panel=LOOKING)
