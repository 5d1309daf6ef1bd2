"""O(1) layers beside sinks and a window of equal bytes on one model: what `--o1` is permitted by."""

from __future__ import annotations

from collections.abc import Sequence

from aeonflow.kv_options import KvOptions

from ..engine import Engine
from ..errors import InvalidRequestError
from ..overlay_proof import OverlayProof, digest_of, equal_window
from .report import Evaluation, gain
from .run import Progress, measure
from .windows import Window


async def prove(
    engine: Engine, windows: Sequence[Window], option: KvOptions, texts: Sequence[list[int]], *, progress: Progress
) -> tuple[OverlayProof, Evaluation, Evaluation]:
    """Measure `option`, which has O(1) layers, and its window of equal bytes, each beside the exact cache.

    `texts`: token ids that the windows were cut from. Raises InvalidRequestError where the windows are too short for a
    difference, and as `evaluate`.
    """
    if option.o1 is None:
        raise InvalidRequestError(f"{option} has no O(1) layers to prove")
    context = len(windows[0].ids)
    window = equal_window(option.o1, context, engine.card)
    measured = await measure(engine, windows, (KvOptions(), option, window), progress=progress)
    overlay, other = measured.evaluations()
    difference = gain(windows, measured.rows[1], measured.rows[2])
    if difference is None or overlay.kl is None or other.kl is None or overlay.recall is None or other.recall is None:
        raise InvalidRequestError(f"windows of {context} tokens have nothing to score: measure at a longer context")
    proof = OverlayProof(
        fingerprint=engine.card.fingerprint,
        model=engine.card.name,
        o1=option.o1,
        window=window,
        context=context,
        num_text_tokens=overlay.num_text_tokens,
        texts=tuple(map(digest_of, texts)),
        kl=overlay.kl.value,
        window_kl=other.kl.value,
        gain=difference.value,
        gain_se=difference.se,
        recall=overlay.recall.value,
        window_recall=other.recall.value,
        kv_bytes=overlay.option.kv_bytes,
        window_kv_bytes=other.option.kv_bytes,
    )
    return proof, overlay, other
