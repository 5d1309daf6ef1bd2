"""KV options as benches are told of them: `kv=q8 exact_recent=64`, `o1=m=32,w=128`, names as in `Open.cache`."""

from __future__ import annotations

from typing import Any

from aeonflow.kv_options import KvOptions, parse_kv_options

from ..kv_options import parse_overlay


def kv_way(spec: str, context: int) -> KvOptions:
    """Options for a context of so many rows; `max_rows=25%` is a share of it. UnsupportedError for what is none."""
    return parse_kv_options(dict(_option(part, context) for part in spec.split()))


def _option(part: str, context: int) -> tuple[str, Any]:
    name, _, value = part.partition("=")
    if name == "o1":
        return name, parse_overlay(value)
    if value.endswith("%") and value[:-1].isdigit():
        return name, int(value[:-1]) * context // 100
    return name, int(value) if value.isdigit() else value
