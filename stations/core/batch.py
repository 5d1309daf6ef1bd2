"""Computing a batch: rows of several jobs through one kernel call. The only code that may run in the compute thread.

It reads the jobs and the backend and appends to the caches of their sessions; it changes nothing else of the station.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from aeonflow.tensors import Kind

from ..kernels.base import Backend, Span
from ..kernels.residual import ladder_attn, ladder_block, normed_gate_up, parallel_attn, parallel_block
from ..kv.layer_cache import LayerKvCache
from .forms import DELTA, LADDER, NORMED, PARALLEL
from .queue import Job
from .stages import Stage

Array = npt.NDArray[Any]
F32 = npt.NDArray[np.float32]
_CANONICAL = int(Kind.CANONICAL)


class Batch:
    """Jobs of one stage. `outputs[i]` are job i's arrays, in the order of its outputs; `poisoned` the jobs whose rows
    are not finite; `error` what the kernels raised, if they did. `rows` is the number of rows computed.
    """

    __slots__ = ("began_s", "caches", "error", "jobs", "outputs", "poisoned", "rows", "seconds", "stage")

    def __init__(self, stage: Stage, jobs: list[Job], caches: list[list[LayerKvCache]]) -> None:
        self.stage = stage
        self.jobs = jobs
        self.caches = caches  # of each job, layers stage.layer..stage.hi; empty for roles without
        self.rows = len(jobs[0].inputs[0]) if len(jobs) == 1 else sum(len(job.inputs[0]) for job in jobs)
        self.outputs: list[tuple[F32, ...]] = []
        self.poisoned: list[int] = []
        self.error: Exception | None = None
        self.began_s = self.seconds = 0.0  # noted by whoever runs it in the compute thread

    @property
    def can_wait(self) -> bool:
        """Should what waits to be sent leave before this is computed: canonical rows before drafts, early seeds?"""
        return bool(self.stage.early) or self.jobs[0].head.kind != _CANONICAL


def compute(batch: Batch, backend: Backend) -> None:
    """Run the kernels and check every row. Never raises: an error is kept in the batch for `finish`."""
    try:
        outputs = _run(batch, backend)
    except Exception as error:  # whatever a kernel raises must reach the hosts, not end the compute thread
        batch.error = error
        return
    all_finite = True
    for array in outputs:
        all_finite = all_finite and is_finite(array)
    if len(batch.jobs) == 1:
        batch.outputs = [outputs]
        if not all_finite:
            batch.poisoned = [0]
        return
    at = 0
    for index, job in enumerate(batch.jobs):
        rows = len(job.inputs[0])
        own = tuple(array[at : at + rows] for array in outputs)
        at += rows
        batch.outputs.append(own)
        if not all_finite and not all(is_finite(array) for array in own):
            batch.poisoned.append(index)


def _run(batch: Batch, backend: Backend) -> tuple[F32, ...]:
    stage, role = batch.stage, batch.stage.role
    x = _stacked(batch.jobs, 0)
    if role == "attn":
        return _attn(batch, backend, x)
    if role == "gate_up":
        if stage.form == NORMED:
            return x, normed_gate_up(backend, stage.layer, x)
        return (backend.gate_up(stage.layer, x),)
    if role == "down":
        if stage.form == DELTA:
            return (backend.down_delta(stage.layer, x),)
        return (backend.down(stage.layer, x, _stacked(batch.jobs, 1)),)
    if role == "ffn":
        return (backend.ffn(stage.layer, x, stage.part, stage.parts),)
    if role == "block":
        return _block(batch, backend, x)
    if role == "embed":
        return (backend.embed(x.reshape(-1), stage.part, stage.parts),)
    return (backend.head(x, stage.part, stage.parts),)


def _attn(batch: Batch, backend: Backend, x: F32) -> tuple[F32, ...]:
    layer, form, spans = batch.stage.layer, batch.stage.form, _spans(batch, 0)
    if form == DELTA:
        return (backend.attn_delta(layer, x, spans),)
    if form == LADDER:
        return ladder_attn(backend, layer, x, _below(batch, x), spans)
    if form == PARALLEL:
        return parallel_attn(backend, layer, x, spans)
    return backend.attn(layer, x, spans)


def _block(batch: Batch, backend: Backend, x: F32) -> tuple[F32, ...]:
    lo, hi, form = batch.stage.layer, batch.stage.hi, batch.stage.form
    spans = [_spans(batch, depth) for depth in range(hi - lo + 1)]
    if form == LADDER:
        return ladder_block(backend, lo, hi, x, _below(batch, x), spans)
    if form == PARALLEL:
        return (parallel_block(backend, lo, hi, x, spans),)
    return (backend.block(lo, hi, x, spans),)


def _below(batch: Batch, x: F32) -> F32:
    """h of the layer below; at the foot of a ladder that is x."""
    return _stacked(batch.jobs, 1) if batch.stage.layer else x


def _spans(batch: Batch, depth: int) -> list[Span]:
    """The rows of every job at one of its layers; a draft's are appended to its view, which changes no form."""
    spans = []
    for job, caches in zip(batch.jobs, batch.caches, strict=True):
        if job.head.kind == _CANONICAL:
            job.session.prepare(caches[depth], job.head.first)
        spans.append(Span(caches[depth], job.head.first, job.head.rows))
    return spans


def _stacked(jobs: list[Job], index: int) -> Array:
    """Input `index` of all jobs as one aligned array that kernels may read as f32 vectors.

    Views of a message start wherever the frame put them, so a single one is copied too unless it is well placed.
    """
    if len(jobs) == 1:
        array = jobs[0].inputs[index]
        return array if array.flags.carray else array.copy()
    return np.concatenate([job.inputs[index] for job in jobs])


def is_finite(array: F32) -> bool:
    """No NaN and no infinity. One pass for the sum of squares; where that overflows, beyond 1e18, the max decides."""
    if math.isfinite(np.vdot(array, array)):
        return True
    return bool(np.isfinite(np.abs(array).max()))
