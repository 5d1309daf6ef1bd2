"""The KV stack: what attention remembers of a sequence, layer by layer. Plain numpy; knows no model and no socket."""

from .cache import KvCache
from .errors import KvError, KvFormError, KvShapeError, RecordError, RollbackError
from .eviction import Born, EvictionPolicy, Recent, policy_named
from .identity import operator_identity
from .layer_cache import LayerKvCache
from .nystrom import OverlayShape, Rect
from .ring import RingRope, RingWeights
from .shipment import pack_shipment, unpack_shipment
from .wire import RecordKind

__all__ = [
    "Born",
    "EvictionPolicy",
    "KvCache",
    "KvError",
    "KvFormError",
    "KvShapeError",
    "LayerKvCache",
    "OverlayShape",
    "Recent",
    "RecordError",
    "RecordKind",
    "Rect",
    "RingRope",
    "RingWeights",
    "RollbackError",
    "operator_identity",
    "pack_shipment",
    "policy_named",
    "unpack_shipment",
]
