"""Which layers slide, in the forms that files say it, as one window a layer."""

from __future__ import annotations

from collections.abc import Sequence

from .errors import UnsupportedModelError
from .manifest import MAX_LAYERS


def layer_windows(window: int, num_layers: int, slides: Sequence[bool] | int) -> tuple[int, ...]:
    """Rows that a query of each layer sees, 0 where a layer does not slide; empty where none does.

    `slides`: one entry a layer; or a number n: of n layers all but the last slide, 0: every layer does (Gemma's form).
    UnsupportedModelError for entries of another count.
    """
    if not window:
        return ()
    if num_layers > MAX_LAYERS:  # out of a header: no list is made of it
        raise UnsupportedModelError(f"{num_layers:,} layers; at most {MAX_LAYERS:,} are supported")
    if isinstance(slides, int):
        slides = [not slides or (layer + 1) % slides != 0 for layer in range(num_layers)]
    if len(slides) != num_layers:
        raise UnsupportedModelError(f"which layers slide is said of {len(slides)}, the model has {num_layers}")
    return tuple(window if is_sliding else 0 for is_sliding in slides) if any(slides) else ()
