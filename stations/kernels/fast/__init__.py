"""The fast kernel set: compiled code over packed weights, the same bits for every batch, thread count and CPU."""

from .backend import MAX_THREADS, FastBackend

__all__ = ["MAX_THREADS", "FastBackend"]
