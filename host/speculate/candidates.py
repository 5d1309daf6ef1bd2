"""What the parts of a draft's head answered, put together: the likeliest tokens and their logits, best effort.

Each part says TOKEN u32 [1, K] and LOGITS f32 [1, K] of its share of the vocabulary. Whatever does not fit is dropped
by the caller and counted: a draft decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aeonflow.errors import BadTensorError
from aeonflow.tensors import DType, Port, Tensor

from ..sequence import DraftAnswer, TokenSequence

MAX_CANDIDATES = 64  # of a part


def collect_draft(
    sequence: TokenSequence, tensors: Sequence[Tensor], num_parts: int, vocab_size: int
) -> DraftAnswer | None:
    """The whole answer, once the last part of the newest draft is there. BadTensorError for what is none."""
    check_part(tensors, vocab_size)
    position, part = tensors[0].first, tensors[0].part
    kept = sequence.draft_parts
    if kept and position != next(iter(kept.values()))[0].first:
        kept.clear()  # at most one draft is live: what an older one still lacked will not come
    kept[part] = tensors
    if len(kept) < num_parts:
        return None
    answer = merge_parts(list(kept.values()))
    kept.clear()
    return answer


def check_part(tensors: Sequence[Tensor], vocab_size: int) -> None:
    """BadTensorError unless these are one part's candidates."""
    shapes = [(t.port, t.dtype, t.dim0) for t in tensors]
    if shapes != [(Port.TOKEN, DType.U32, 1), (Port.LOGITS, DType.F32, 1)] or tensors[0].dim1 != tensors[1].dim1:
        raise BadTensorError(
            f"a draft's head answered with {shapes}: token u32 [1, K] and logits f32 [1, K] are expected"
        )
    if tensors[0].dim1 > MAX_CANDIDATES:
        raise BadTensorError(f"a draft's head answered with {tensors[0].dim1} candidates, at most {MAX_CANDIDATES}")
    if (highest := int(np.frombuffer(tensors[0].data, "<u4").max())) >= vocab_size:
        raise BadTensorError(f"a draft's head answered with token {highest} of a vocabulary of {vocab_size}")


def merge_parts(parts: Sequence[Sequence[Tensor]]) -> DraftAnswer:
    """All parts' candidates by falling logit, of equal ones the lowest id first."""
    ids = np.concatenate([np.frombuffer(part[0].data, "<u4") for part in parts])
    logits = np.concatenate([np.frombuffer(part[1].data, "<f4") for part in parts])
    order = np.lexsort((ids, -logits))
    return DraftAnswer(parts[0][0].first, ids[order], logits[order])
