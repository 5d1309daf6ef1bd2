"""Several threads on one job, so that a stalled one never holds up the others and never changes a bit.

The calling thread publishes a job; it and the helpers claim chunks by compare-and-swap. A helper computes into its own
scratch and copies the result only if the chunk is still its own: the caller, having run out of chunks and waited for
twice what one takes it, takes over a chunk whose helper was put aside by the system, and the helper drops it later.
So a helper may resume at any time: what it reads then is stale, but memory that exists, and nothing of it is kept.
The caller waits only for copies that have begun, and gives up its core for nothing else.

Between calls helpers spin a moment, then give up their core again and again, so that they are there at once for the
next call of a token, then sleep on a condition of the C library; never with Python's lock.

Words: claim = sequence << 28 | chunks << 14 | next. A helper's slot = sequence << 28 | chunk << 2 | phase, or 0. The
slot is written before the claim, and the job's record is copied before the slot is read again: a slot that still says
*working* then proves that the copy is of this job.
"""

from __future__ import annotations

import numpy as np

from .compiled import kernel
from .fields import (
    JOB_COUNT,
    JOB_FIELDS,
    POOL_ACTIVE,
    POOL_CLAIM,
    POOL_CONDITION,
    POOL_FLAGS,
    POOL_HELPERS,
    POOL_JOB,
    POOL_LINE,
    POOL_MUTEX,
    POOL_QUIT,
    POOL_SEQUENCE,
    POOL_SLOTS,
    POOL_STOLEN,
)
from .jobs import copy_chunk, run_chunk
from .machine import (
    atomic_load,
    atomic_store,
    compare_and_swap,
    condition_broadcast,
    condition_init,
    condition_wait,
    copy_bytes,
    field,
    monotonic_ns,
    mutex_init,
    mutex_lock,
    mutex_unlock,
    set_field,
    spin_pause,
    stack_bytes,
    yield_core,
)

WORKING, COMMITTING, STOLEN = 1, 2, 3
SPIN_NS = 20_000  # the longest spin of any wait
LINGER_NS = 1_000_000  # how long a helper stays runnable between calls: from the head to the next token's layers
PATIENCE_NS = 2_000  # added to twice the caller's time for a chunk before it takes one over
_MASK = (1 << 14) - 1
_JOB_BYTES = JOB_FIELDS * 8
_DIRECT, _STAGED = np.int64(1), np.int64(0)  # typed: numba would compile the callee for each literal


@kernel
def start_pool(pool):
    """Make the place where helpers sleep; once, before any helper."""
    mutex_init(pool + POOL_MUTEX * 8, 0)
    condition_init(pool + POOL_CONDITION * 8, 0)


@kernel
def wake_helpers(pool, word):
    """Set POOL_ACTIVE or POOL_QUIT, and wake who sleeps."""
    mutex = pool + POOL_MUTEX * 8
    mutex_lock(mutex, 0)
    atomic_store(pool + word * 8, 1)
    condition_broadcast(pool + POOL_CONDITION * 8, 0)
    mutex_unlock(mutex, 0)


@kernel
def run_job(pool, scratch, stage):
    """Run the job in the pool's record to its end. `scratch` and `stage` are the caller's own."""
    job = pool + POOL_JOB * 8
    count = field(job, JOB_COUNT)
    if count == 1 or field(pool, POOL_HELPERS) == 0:
        for chunk in range(count):
            run_chunk(job, chunk, _DIRECT, _DIRECT, scratch)
        return
    sequence = field(pool, POOL_SEQUENCE) + 1
    set_field(pool, POOL_SEQUENCE, sequence)
    flags = field(pool, POOL_FLAGS)
    claim = pool + POOL_CLAIM * 8
    atomic_store(claim, sequence << 28 | count << 14)
    own = 0
    time, quickest = monotonic_ns(), SPIN_NS
    while True:
        word = atomic_load(claim)
        chunk = word & _MASK
        if chunk >= count:
            break
        if compare_and_swap(claim, word, word + 1):
            run_chunk(job, chunk, _DIRECT, _DIRECT, scratch)
            atomic_store(flags + chunk * 8, sequence)
            own += 1
            now = monotonic_ns()
            quickest = min(quickest, now - time)
            time = now
    if own < count:
        _await_chunks(pool, sequence, count, min(2 * quickest + PATIENCE_NS, SPIN_NS), scratch, stage)


@kernel
def _await_chunks(pool, sequence, count, patience, scratch, stage):
    """Wait until every chunk's flag shows this job, taking over those that are late."""
    flags = field(pool, POOL_FLAGS)
    job = pool + POOL_JOB * 8
    since = monotonic_ns()
    for chunk in range(count):
        while atomic_load(flags + chunk * 8) != sequence:
            spin_pause()
            waited = monotonic_ns() - since
            if waited > patience and _steal(pool, sequence, chunk):
                run_chunk(job, chunk, _STAGED, stage, scratch)
                copy_chunk(job, chunk, stage)
                atomic_store(flags + chunk * 8, sequence)
            elif waited > 2 * SPIN_NS:  # its copy has begun
                yield_core()


@kernel
def _steal(pool, sequence, chunk):
    """Take a chunk from the helper that works on it; False when none does (it is being copied, or done)."""
    held = sequence << 28 | chunk << 2
    for helper in range(field(pool, POOL_HELPERS)):
        slot = pool + (POOL_SLOTS + helper * POOL_LINE) * 8
        if compare_and_swap(slot, held | WORKING, held | STOLEN):
            set_field(pool, POOL_STOLEN, field(pool, POOL_STOLEN) + 1)
            return True
    return False


@kernel
def help_out(pool, helper):
    """A helper's life: take chunks during calls, sleep between them, until the pool is ended."""
    mutex, condition = pool + POOL_MUTEX * 8, pool + POOL_CONDITION * 8
    active = pool + POOL_ACTIVE * 8
    while atomic_load(pool + POOL_QUIT * 8) == 0:
        idle_since = monotonic_ns()
        while atomic_load(active) == 0 and monotonic_ns() < idle_since + SPIN_NS:
            spin_pause()
        while atomic_load(active) == 0 and monotonic_ns() < idle_since + LINGER_NS:
            yield_core()
        mutex_lock(mutex, 0)
        while atomic_load(active) == 0 and atomic_load(pool + POOL_QUIT * 8) == 0:
            condition_wait(condition, mutex)
        mutex_unlock(mutex, 0)
        _help_call(pool, pool + (POOL_SLOTS + helper * POOL_LINE) * 8)


@kernel
def _help_call(pool, slot):
    """Take chunks for as long as the call lasts."""
    flags = field(pool, POOL_FLAGS)
    claim = pool + POOL_CLAIM * 8
    job = stack_bytes(_JOB_BYTES)
    idle_since = monotonic_ns()
    while atomic_load(pool + POOL_ACTIVE * 8) != 0:
        word = atomic_load(claim)
        chunk, count, sequence = word & _MASK, word >> 14 & _MASK, word >> 28
        if chunk >= count:
            spin_pause()
            if monotonic_ns() > idle_since + SPIN_NS:
                yield_core()
            continue
        held = sequence << 28 | chunk << 2
        atomic_store(slot, held | WORKING)
        if compare_and_swap(claim, word, word + 1):
            copy_bytes(job, pool + POOL_JOB * 8, _JOB_BYTES)
            stage, scratch = field(slot, 1), field(slot, 2)
            if atomic_load(slot) == held | WORKING:
                run_chunk(job, chunk, _STAGED, stage, scratch)
                if compare_and_swap(slot, held | WORKING, held | COMMITTING):
                    copy_chunk(job, chunk, stage)
                    atomic_store(flags + chunk * 8, sequence)
                    set_field(slot, 3, field(slot, 3) + 1)
        atomic_store(slot, 0)
        idle_since = monotonic_ns()
