"""`aeonflow pairx probe`: which layers bear a residual seed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .options import AsJson, Model
from .texts import read_file

if TYPE_CHECKING:
    from host.pairx.report import ProbeReport, SeedEffect

app = typer.Typer(help="Residual seeds (Pair X) of a model.", no_args_is_help=True)

DEFAULT_TOKENS, DEFAULT_NEW_TOKENS = 512, 48


@app.callback()
def pairx() -> None:
    """Residual seeds (Pair X) of a model."""


@app.command()
def probe(
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE…]", help="Texts, UTF-8 (default: those shipped).")
    ] = None,
    model: Model = None,
    seed: Annotated[Literal["h", "x"], typer.Option(help="What a seed is: h past attention, x before it.")] = "h",
    tokens: Annotated[int, typer.Option(metavar="N", min=2, help="At most so many of each text.")] = DEFAULT_TOKENS,
    new_tokens: Annotated[
        int, typer.Option(metavar="N", min=2, help="Tokens of each answer that is drafted again.")
    ] = DEFAULT_NEW_TOKENS,
    as_json: AsJson = False,
) -> None:
    """Measure for every layer what a residual seed in place of its input does, and keep the report.

    Minutes with the defaults; --tokens 64 --new-tokens 8 gives a rough ranking within one.

    --pair-x-layers auto:K takes the K least harmed, and --pair-x draft leaves out what harms it most.
    """
    from host.pairx.probe import gather_material, shipped_texts
    from host.pairx.probe_report import to_report
    from host.pairx.report import save_report

    from .children import run_verb
    from .loop import run_async
    from .model import ready_model
    from .output import note, print_json
    from .pull import StageBar

    name = ready_model(model).name
    texts = [read_file(path) for path in files] if files else shipped_texts()
    with StageBar() as bar:

        def answered(done: int, total: int) -> None:
            bar.update({"stage": "answers of the plain model", "done": done, "total": total, "unit": "answers"})

        gathering = gather_material(name, texts, tokens=tokens, new_tokens=new_tokens, progress=answered)
        material = run_async(gathering)
        found = run_verb("seeded", [name, "--seed", seed], on_progress=bar.update, given=material.to_verb)
    report = to_report(found)
    path = save_report(report)
    if as_json:
        import msgspec

        print_json({**msgspec.to_builtins(report), "path": str(path)})
    else:
        _show(report)
        note(f"report in {path}")


def _show(report: ProbeReport) -> None:
    from .output import print_table

    layers = [
        [
            str(one.layer), f"{one.max_abs:.4g}", f"{one.max_abs_block or 0:.4g}", f"{one.relative:.3f}",
            f"{one.attention_moves or 0:.2f}", *_effect(one),
        ]
        for one in report.layers
    ]  # fmt: skip
    columns = ["top-1", "KL", "perplexity ×", "α", *(f"α {name}" for name in report.layers[0].alpha_of)]
    of_block = f"of {report.block_rows} rows"
    print_table(["layer", "max_abs", of_block, "relative", "attention moves", *columns], layers)
    print_table(["least harmed layers", *columns], [[str(len(one.layers)), *_effect(one)] for one in report.sets])


def _effect(one: SeedEffect) -> list[str]:
    def with_error(value: float, error: float | None) -> str:
        return f"{value:.3f}" if error is None else f"{value:.3f} ± {error:.3f}"

    return [
        f"{one.top1:.3f}",
        f"{one.kl:.4f}",
        with_error(one.perplexity_ratio, one.perplexity_ratio_se),
        with_error(one.alpha, one.alpha_se),
        *(f"{share.value:.3f}" for share in one.alpha_of.values()),
    ]
