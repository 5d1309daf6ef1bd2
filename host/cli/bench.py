"""`aeonflow bench wire|hop|decode`: measurements. Each prints one JSON object; methods are in `benches/METHOD.md`."""

from __future__ import annotations

import typer

app = typer.Typer(help="Measure the wire, a hop, or decoding.", no_args_is_help=True, rich_markup_mode=None)
