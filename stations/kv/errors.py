"""Errors of the KV stack: one root, each message with what was found and what is allowed."""

from __future__ import annotations

from aeonflow.errors import CallError, UnsupportedError


class KvError(CallError):
    """Root of everything the KV stack raises on purpose."""

    code = "kv"


class KvShapeError(KvError, ValueError):
    """Arrays whose size, heads or rows do not fit the layer."""

    code = "kv_shape"


class RollbackError(KvError):
    """A truncation below a change of the cache's form, which cannot be undone; the session resumes from tokens."""

    code = "kv_rollback"


class KvFormError(KvError, UnsupportedError):
    """The cache is in a form (mode, overlay, ring) that does not allow the operation; names both."""

    code = "kv_form"


class RecordError(KvError, ValueError):
    """A wire record that this layer refuses; the layer is untouched."""

    code = "kv_record"
