"""Models on disk: the card, import from GGUF and Hugging Face folders, generated models, the store, weights by role."""

from .card import ModelCard, Rope, RopeScaling
from .errors import (
    CorruptModelError,
    DiskSpaceError,
    MissingWeightsError,
    ModelError,
    ModelNotFoundError,
    UnsupportedModelError,
)
from .folder import ModelFolder
from .manifest import FileEntry, Manifest, TensorEntry
from .roles import RoleSpan, parse_roles
from .store import ModelStore
from .synthetic import build_synthetic
from .synthetic_spec import SyntheticSpec

__all__ = [
    "CorruptModelError",
    "DiskSpaceError",
    "FileEntry",
    "Manifest",
    "MissingWeightsError",
    "ModelCard",
    "ModelError",
    "ModelFolder",
    "ModelNotFoundError",
    "ModelStore",
    "RoleSpan",
    "Rope",
    "RopeScaling",
    "SyntheticSpec",
    "TensorEntry",
    "UnsupportedModelError",
    "build_synthetic",
    "parse_roles",
]
