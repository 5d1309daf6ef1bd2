"""The table of `docs/kv-cache.md`, *Measured*: every way to keep KV beside f32, at several contexts, in bounded time.

All ways of a context are fed in step, so they see the same machine. What a context takes is foreseen from the ones
before it; where that is more than what is left of the time, ways are left out from the end of the list, and named.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from aeonflow.errors import AeonflowError
from aeonflow.kv_options import CODED_MODES, KvOptions
from aeonflow.kv_sizes import layer_bytes

from ..engine import Engine
from ..evaluate import Window, texts_to_windows
from ..evaluate.run import Measured, measure
from ..overlay_proof import equal_window
from ..plan import Geometry
from .kv_way import kv_way
from .measure import machine

WAYS = (  # what matters most first; born and O(1) are followed by sinks and the newest rows in as many bytes
    "kv=f16", "kv=q8", "kv=q4", "max_rows=25% evict=born", "o1=m=32,w=128", "o1=m=64,w=256", "max_rows=50% evict=born",
    "window=25%", "kv=q8 exact_recent=0", "kv=q8k", "kv=q8v",
)  # fmt: skip
EQUAL = "as many bytes as "  # before an O(1) way or born: sinks and the newest rows in equal bytes
COLUMNS = ("context", "option", "bytes", "KL", "ΔPPL %", "recall", "same token", "decode", "windows")
PAIR_COLUMNS = ("context", "option", "less", "MB when full", "KL", "lower in", "PPL %", "PPL % of repeated passages")
WINDOWS = {512: 4, 2048: 2, 8000: 1}  # by context: how many windows of text; of another context one
SCORED = 1536  # tokens of ordinary text scored at the end of a window, at most: logits cost as much as a layer's rows
MASS_BYTES = 4 * 4  # a row of born beside K and V: three sums, and what the newest row has read
MARGIN = 1.15  # on foreseen seconds
NEAR_ROWS = 3000  # rows of context that cost as much as a row's weights: the guess before two contexts are measured
DEADLINE_S = 900.0  # of one pass

Say = Callable[[str], None]


class Pace(NamedTuple):
    """What a context took: seconds a row and way."""

    context: int
    row_s: float


async def bench_kv_table(
    texts: Mapping[str, str],
    *,
    contexts: Sequence[int] = tuple(WINDOWS),
    ways: Sequence[str] = WAYS,
    num_windows: int | None = None,
    first_window: int = 0,
    minutes: float = 15.0,
    model: str = "smollm2",
    plan: str = "solo",
    threads: int | None = None,
    kernels: str = "fast",
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """Evaluations by context and way, for JSON; `paired`: options beside those of as many bytes or rows, token by
    token; `left_out` names what the time did not suffice for, or why not.

    `num_windows` of every context from the `first_window`th on, where it is not `WINDOWS`.
    """
    began_s = time.monotonic()
    found: dict[str, Any] = {}
    paired: dict[str, list[dict[str, Any]]] = {}
    left_out: dict[str, dict[str, str]] = {}
    paces: list[Pace] = []
    async with Engine.launch(model=model, plan=plan, threads=threads, kernels=kernels, deadline_s=DEADLINE_S) as engine:
        ids = [engine.tokenize(text) for text in texts.values()]
        for index, context in enumerate(sorted(contexts)):
            many = num_windows or WINDOWS.get(context, 1)
            windows = _windows(ids, context, engine.card.context_length, first_window, many)
            kinds, skipped = _kinds(ways, context, engine)
            spent_s = time.monotonic() - began_s
            left_s = 60 * minutes - spent_s
            _fit(kinds, skipped, windows, spent_s, left_s, paces, is_first=index == 0)
            say(f"context {context}: {len(windows)} windows, {len(kinds)} ways beside f32, {left_s:.0f} s left")
            started_s = time.monotonic()
            measured = await measure(engine, windows, (KvOptions(), *kinds.values()), progress=_saying(say, context))
            took_s = time.monotonic() - started_s
            rows = sum(window.num_rows for window in windows)
            paces.append(Pace(context, took_s / rows / (1 + len(kinds))))
            found[str(context)] = dict(zip(kinds, map(msgspec.to_builtins, measured.evaluations()), strict=True))
            paired[str(context)] = _paired(measured, list(kinds), kinds, engine.card)
            left_out[str(context)] = skipped
            say(f"context {context}: {took_s:.0f} s")
        return {
            "bench": "kv_table",
            "machine": machine(),
            "model": engine.card.name,
            "plan": engine.setting.plan,
            "kernels": engine.setting.kernels,
            "texts": {name: len(one) for name, one in zip(texts, ids, strict=True)},
            "seconds": round(time.monotonic() - began_s, 1),
            "contexts": found,
            "paired": paired,
            "left_out": left_out,
        }


def table_rows(found: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Cells for each context: first what the exact cache is, then the ways."""
    rows: list[tuple[str, ...]] = []
    for context, ways in sorted(found["contexts"].items(), key=lambda item: int(item[0])):
        name = f"{int(context):,}"
        if not ways:
            continue
        exact = next(iter(ways.values()))["exact"]
        about = f"PPL {_figure(exact['ppl'], '.2f')}", f"PPL {_figure(exact['recall_ppl'], '.2f')}"
        size, rate = f"{exact['kv_bytes'] / 1e6:.1f} MB", f"{exact['decode_tok_s']:.0f} tok/s"
        rows.append((name, "`f32`", size, "0", *about, "100 %", rate, ""))
        rows.extend((name, *_cells(way, one)) for way, one in ways.items())
    return rows


def table_text(found: Mapping[str, Any]) -> str:
    """The table, in Markdown."""
    return _markdown(COLUMNS, table_rows(found))


def pairs_text(found: Mapping[str, Any]) -> str:
    """The paired differences, in Markdown."""
    rows = []
    for context, pairs in sorted(found.get("paired", {}).items(), key=lambda item: int(item[0])):
        for one in pairs:
            figures = one["difference"]
            rows.append(
                (
                    f"{int(context):,}", f"`{one['way']}`", f"`{one['less']}`",
                    " · ".join(f"{size / 1e6:.1f}" for size in one["full_bytes"]), _figure(figures["kl"], "+.2g"),
                    f"{round(figures['better'] * figures['num_windows'])} of {figures['num_windows']} windows",
                    _figure(figures["delta_ppl_percent"], "+.2f"), _figure(figures["recall_percent"], "+.1f"),
                )
            )  # fmt: skip
    return _markdown(PAIR_COLUMNS, rows)


def merged(before: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """`before` with the ways that `found` has measured anew, or first."""
    contexts, paired, left_out = (dict(before.get(part, {})) for part in ("contexts", "paired", "left_out"))
    for context, ways in found["contexts"].items():
        contexts[context] = {**contexts.get(context, {}), **ways}
        missing = left_out.get(context, {})
        left_out[context] = {way: why for way, why in missing.items() if way not in ways}
        again = {(one["way"], one["less"]) for one in found["paired"][context]}
        kept = [one for one in paired.get(context, []) if (one["way"], one["less"]) not in again]
        paired[context] = kept + found["paired"][context]
    return {**before, "contexts": contexts, "paired": paired, "left_out": left_out}


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (columns, ("---",) * len(columns), *rows))


def with_table(document: str, table: str) -> str:
    """`document` with the table of the same columns replaced. ValueError where it has none."""
    lines = document.split("\n")
    first = lines.index(table.split("\n", 1)[0])
    end = next(i for i in range(first, len(lines) + 1) if i == len(lines) or not lines[i].startswith("|"))
    return "\n".join([*lines[:first], table, *lines[end:]])


def _cells(way: str, one: Mapping[str, Any]) -> tuple[str, ...]:
    name = way.removeprefix("kv=")
    if way.startswith(EQUAL):
        name = _name(one["option"]["kv"])
    return (
        f"`{name}`",
        f"{100 * one['bytes_ratio']:.1f} %",
        _figure(one["kl"], ".2g"),
        _figure(one["delta_ppl_percent"], "+.2f"),
        _figure(one["recall"], ".3g"),
        f"{100 * one['top1']['value']:.1f} %",
        f"{one['option']['decode_tok_s']:.0f} (×{one['decode_ratio']:.2f})",
        str(one["num_windows"]),
    )


def _name(kv: Mapping[str, Any]) -> str:
    """`max_rows=275 evict=recent` of what a side says of its options."""
    return " ".join(f"{name}={value}" for name, value in kv.items() if name in ("max_rows", "evict"))


def _figure(estimate: Mapping[str, Any] | None, digits: str) -> str:
    """Value ± standard error."""
    if estimate is None:
        return "-"
    error = "" if estimate["se"] is None else f" ± {estimate['se']:{digits.lstrip('+')}}"
    return f"{estimate['value']:{digits}}{error}"


def _windows(texts: Sequence[list[int]], context: int, context_length: int, first: int, many: int) -> list[Window]:
    """At most `many` windows from the `first`th on, from the texts in turn."""
    by_text = [texts_to_windows([text], context, context_length) for text in texts if len(text) >= context]
    turns = itertools.chain.from_iterable(itertools.zip_longest(*by_text))
    windows = [window for window in turns if window is not None][first : first + many]
    if not windows:
        texts_to_windows(texts, context, context_length)  # says why
    return [msgspec.structs.replace(w, first_scored=max(w.first_scored, w.text_end - 1 - SCORED)) for w in windows]


def _kinds(ways: Sequence[str], context: int, engine: Engine) -> tuple[dict[str, KvOptions], dict[str, str]]:
    """Options by way, those that `EQUAL` is about followed by the newest rows in as many bytes; and why others cannot
    be at this context."""
    kinds: dict[str, KvOptions] = {}
    skipped: dict[str, str] = {}
    for way in ways:
        try:
            kv = kv_way(way, context)
            other = _equal(kv, context, engine.card)
        except AeonflowError as error:
            skipped[way] = str(error)
            continue
        kinds[way] = kv
        if other is not None:
            kinds[EQUAL + way] = other
    return kinds, skipped


def _equal(kv: KvOptions, context: int, model: Geometry) -> KvOptions | None:
    """Sinks and the newest rows in as many bytes: of O(1) layers on average, of born once it is full."""
    if kv.o1 is not None:
        return equal_window(kv.o1, context, model)
    if not kv.keeps_mass:
        return None
    bare = KvOptions(kv=kv.kv, max_rows=kv.max_rows, evict="recent", sink=kv.sink)
    return msgspec.structs.replace(bare, max_rows=-(-kv.max_rows * _row_bytes(kv, model) // _row_bytes(bare, model)))


def _row_bytes(kv: KvOptions, model: Geometry) -> int:
    """Of a stored row of one layer, when nothing but the newest row is in doubt."""
    plain = KvOptions(kv=kv.kv, exact_recent=0 if kv.kv in CODED_MODES else None)
    one, two = (layer_bytes(plain, rows, model.num_kv_heads, model.head_dim) for rows in (1, 2))
    return two - one + (MASS_BYTES if kv.keeps_mass else 0)


def _paired(
    measured: Measured, names: Sequence[str], kinds: Mapping[str, KvOptions], model: Geometry
) -> list[dict[str, Any]]:
    """What differs token by token between a way and the newest rows in as many bytes, and in as many rows. Of evictions
    `full_bytes`, both caches when as many rows are stored as may be: the bytes of a window's end depend on how long ago
    rows left."""
    found = []
    for index, name in enumerate(names):
        for other in (EQUAL + name, name.replace("evict=born", "evict=recent")):
            if other == name or other not in names:
                continue
            difference = measured.difference(1 + index, 1 + names.index(other))
            if difference is not None:
                both = kinds[name], kinds[other]
                full = [kv.max_rows * _row_bytes(kv, model) * model.num_layers for kv in both if kv.max_rows]
                figures = msgspec.to_builtins(difference)
                less = _name(kinds[other].shown())
                found.append({"way": name, "less": less, "full_bytes": full, "difference": figures})
    return found


def _fit(
    kinds: dict[str, KvOptions],
    skipped: dict[str, str],
    windows: Sequence[Window],
    spent_s: float,
    left_s: float,
    paces: Sequence[Pace],
    *,
    is_first: bool,
) -> None:
    """Leave out ways from the end of the list until the rest fits the time that is left; say what would let them in."""
    if is_first:
        return
    context, rows = len(windows[0].ids), sum(window.num_rows for window in windows)
    each_s = MARGIN * rows * foreseen_row_s(paces, context)
    while kinds and (need_s := (1 + len(kinds)) * each_s) > left_s:
        way, _ = kinds.popitem()
        skipped[way] = (
            f"out of time: f32 and the ways up to this one need about {need_s:.0f} s, {max(left_s, 0):.0f} s were left;"
            f" --minutes {math.ceil((spent_s + need_s) / 60)} lets it in"
        )


def foreseen_row_s(paces: Sequence[Pace], context: int) -> float:
    """Seconds a row: a line through the last two contexts measured, or a guess from the only one."""
    last = paces[-1]
    if len(paces) == 1:
        return last.row_s * (1 + context / NEAR_ROWS) / (1 + last.context / NEAR_ROWS)
    slope = (last.row_s - paces[-2].row_s) / (last.context - paces[-2].context)
    return last.row_s + max(slope, 0.0) * (context - last.context)


def _saying(say: Say, context: int) -> Callable[[int, int], None]:
    said = 0

    def progress(done: int, total: int) -> None:
        nonlocal said
        if 10 * done // total > said:
            said = 10 * done // total
            say(f"context {context}: {10 * said} %")

    return progress
