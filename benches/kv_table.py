"""The table of `docs/kv-cache.md`, *Measured*, from what benches/kv_eval.py printed, one file or several."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

COLUMNS = ("context", "option", "bytes", "KL", "ΔPPL %", "recall", "same token", "decode")


def figure(estimate: dict[str, Any] | None, digits: str) -> str:
    """Value ± standard error."""
    if estimate is None:
        return "-"
    error = "" if estimate["se"] is None else f" ± {estimate['se']:{digits.lstrip('+')}}"
    return f"{estimate['value']:{digits}}{error}"


def cells(context: str, option: str, one: dict[str, Any]) -> tuple[str, ...]:
    return (
        f"{int(context):,}",
        f"`{option.removeprefix('kv=')}`",
        f"{100 * one['bytes_ratio']:.1f} %",
        figure(one["kl"], ".2g"),
        figure(one["delta_ppl_percent"], "+.2f"),
        figure(one["recall"], ".3g"),
        f"{100 * one['top1']['value']:.1f} %",
        f"{one['decode_ratio']:.2f}",
    )


def rows(found: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """By context, then in the order of the files; under each context first what the exact cache is."""
    table: list[tuple[str, ...]] = []
    for context in sorted({context for one in found for context in one["contexts"]}, key=int):
        evaluations = [pair for one in found for pair in one["contexts"].get(context, {}).items()]
        exact = evaluations[0][1]
        size = exact["exact"]["kv_bytes"] / 1e6
        ppl, recall = exact["exact"]["ppl"], exact["exact"]["recall_ppl"]
        about = f"PPL {figure(ppl, '.2f')}", f"PPL {figure(recall, '.2f')}"
        table.append((f"{int(context):,}", "`f32`", f"{size:.1f} MB", "0", *about, "100 %", "1"))
        table.extend(cells(context, option, one) for option, one in evaluations)
    return table


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("found", type=Path, nargs="+", help="JSON objects of benches/kv_eval.py")

if __name__ == "__main__":
    printed = [json.loads(path.read_text("utf-8")) for path in parser.parse_args().found]
    for row in (COLUMNS, ("---",) * len(COLUMNS), *rows(printed)):
        print(f"| {' | '.join(row)} |")
