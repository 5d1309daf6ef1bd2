"""The plain kernel set: numpy on f32 weights, the oracle that the fast set is compared with."""

from .backend import ReferenceBackend

__all__ = ["ReferenceBackend"]
