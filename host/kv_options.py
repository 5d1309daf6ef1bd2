"""The KV options of an engine: from keywords and command line to what sessions are opened with, and their exactness.

The schema and what combines with what is `aeonflow/kv_options.py`'s; here are the words that users say them in.
"""

from __future__ import annotations

from typing import Any

from aeonflow.errors import UnsupportedError
from aeonflow.kv_options import KvOptions, parse_kv_options

from .errors import UnsupportedOptionError


def make_kv_options(**keywords: Any) -> KvOptions:
    """Checked options from `Engine`'s keywords; None means "not given". Raises UnsupportedOptionError by name."""
    given = {name: value for name, value in keywords.items() if value is not None}
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
    return chosen
