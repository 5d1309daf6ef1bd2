"""The KV stack: what attention remembers of a sequence, layer by layer. Plain numpy; knows no model and no socket."""

from .cache import KvCache
from .errors import KvError, KvFormError, KvShapeError, RecordError, RollbackError
from .identity import operator_identity
from .layer_cache import LayerKvCache
from .wire import RecordKind

__all__ = [
    "KvCache",
    "KvError",
    "KvFormError",
    "KvShapeError",
    "LayerKvCache",
    "RecordError",
    "RecordKind",
    "RollbackError",
    "operator_identity",
]
