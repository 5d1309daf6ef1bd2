"""The KV options of an engine: from keywords and command line to what sessions are opened with, and their exactness.

The schema and what combines with what is `aeonflow/kv_options.py`'s; here are the words that users say them in.
"""

from __future__ import annotations

from typing import Any

from aeonflow.errors import UnsupportedError
from aeonflow.kv_options import KvOptions, parse_kv_options

from .errors import InvalidRequestError, UnsupportedOptionError

_NO_ZERO = {"max_rows", "window"}


def make_kv_options(**keywords: Any) -> KvOptions:
    """Checked options from `Engine`'s keywords; None means "not given". Raises UnsupportedOptionError by name."""
    given = {name: value for name, value in keywords.items() if value is not None}
    for name in _NO_ZERO & given.keys():
        if given[name] == 0:
            raise InvalidRequestError(f"{name} 0: leave it out to be without")
    try:
        return parse_kv_options(given)
    except UnsupportedError as error:
        raise UnsupportedOptionError(str(error)) from None


def described(options: KvOptions) -> dict[str, Any]:
    """The options for status and results: the mode always, the others where they are set."""
    return {"kv": options.kv, **options.to_wire()}


def exactness_options(options: KvOptions) -> dict[str, object]:
    """What `explain` knows these options as."""
    chosen: dict[str, object] = {"kv": options.kv}
    if options.exact_recent is not None:
        chosen["kv_exact_recent"] = options.exact_recent
    if options.max_rows:
        chosen |= {"kv_max": options.max_rows, "kv_evict": options.eviction, "kv_sink": options.sink_rows}
    if options.window:
        chosen["window"] = options.window
    return chosen
