"""Errors of models on disk. Each message names what was found, what is supported, and the numbers."""

from __future__ import annotations

from aeonflow.errors import AeonflowError

from ..errors import StationsError


class ModelError(StationsError, AeonflowError):
    """Root of everything that goes wrong with a model on disk; has a wire code, since peers ask for weights."""

    code = "bad_model"


class ModelNotFoundError(ModelError):
    """No such model, file or folder; the message lists what there is."""

    code = "model_not_found"


class ModelNameError(ModelError):
    """No name that a model can have in the cache."""

    code = "model_name"


class CorruptModelError(ModelError):
    """Bytes that contradict their own header, manifest or digest: truncated, edited or half written."""


class UnsupportedModelError(ModelError):
    """An architecture, weight type, tokenizer or option this version does not do, with what it does."""

    code = "unsupported"


class MissingWeightsError(ModelError):
    """The folder is valid but does not hold the weights of a role; names the files."""


class DiskSpaceError(ModelError):
    """Not enough room; the message has bytes needed and bytes free."""
