"""What is computed next, and together with what."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aeonflow.kv_options import KvOptions
from aeonflow.tensors import Kind, Port
from stations.core.joins import JoinGauge
from stations.core.kv_layout import KvLayout
from stations.core.limits import StationLimits
from stations.core.queue import Job, JobQueue
from stations.core.session import Session
from stations.core.stages import CompiledRoute, Stage, compile_local
from stations.models.card import ModelCard, Rope
from stations.models.roles import parse_roles

from .cores import tensor

LIMITS = StationLimits(
    max_message_bytes=1 << 20, max_rows=256, kv_budget_bytes=0, max_decode_rows=4, max_batch_rows=10, max_passed_over=3
)
CARD = ModelCard(
    name="queue", architecture="llama", num_layers=4, hidden_size=64, num_heads=4, num_kv_heads=2, head_dim=16,
    ffn_size=128, vocab_size=512, context_length=64, rms_eps=1e-5, rope=Rope(1e4, 16), tied_embeddings=True,
    bos_id=None, eos_ids=(), add_bos=False,
)  # fmt: skip
LOCAL: CompiledRoute = compile_local(parse_roles("attn:0-3,gate_up:0-3,down:0-3", 4))


def stage(role: str = "attn", layer: int = 0) -> Stage:
    (found,) = (s for stages in LOCAL.stages.values() for s in stages if (s.role, s.layer) == (role, layer))
    return found


def sessions(count: int) -> list[Session]:
    layout = KvLayout(CARD, KvOptions())
    return [Session(number, 1, 0, 64, 0, 60.0, 0.0, JoinGauge(), layout) for number in range(count)]


def job(session: Session, first: int = 0, rows: int = 1, at: Stage | None = None, kind: Kind = Kind.CANONICAL) -> Job:
    head = tensor(Port.X, np.zeros((rows, 1), np.float32), first=first, session=session.id, kind=kind)
    return Job(at or stage(), LOCAL, session, head, (np.zeros((rows, 1), np.float32),), None)


def push(queue: JobQueue, *jobs: Job) -> None:
    for one in jobs:
        queue.push(one)


@pytest.fixture
def queue() -> JobQueue:
    return JobQueue(LIMITS)


def test_decode_rows_of_all_sessions_at_one_stage_go_together(queue: JobQueue) -> None:
    jobs = [job(session) for session in sessions(5)]
    push(queue, *jobs)
    assert queue.take() == jobs
    assert queue.take() == []


def test_stages_take_turns_in_the_order_they_came_to_wait(queue: JobQueue) -> None:
    a, b, c = sessions(3)
    first, second, third = job(a), job(b, at=stage(layer=2)), job(c)
    push(queue, first, second, third)
    assert queue.take() == [first, third]
    assert queue.take() == [second]


def test_two_jobs_of_one_session_never_meet_at_a_cache_but_may_elsewhere(queue: JobQueue) -> None:
    (a,) = sessions(1)
    at_cache = [job(a, 0), job(a, 1)]
    push(queue, *at_cache)
    assert [queue.take(), queue.take()] == [[at_cache[0]], [at_cache[1]]]
    elsewhere = [job(a, 0, at=stage("gate_up")), job(a, 1, at=stage("gate_up"))]
    push(queue, *elsewhere)
    assert queue.take() == elsewhere


def test_a_batch_has_at_most_one_prefill_chunk_behind_the_decode_rows(queue: JobQueue) -> None:
    a, b, c = sessions(3)
    chunks = [job(a, rows=8), job(b, rows=8)]
    row = job(c)
    push(queue, *chunks, row)
    assert queue.take() == [row, chunks[0]]
    assert queue.take() == [chunks[1]]


def test_a_short_last_chunk_does_not_overtake_the_chunk_before_it(queue: JobQueue) -> None:
    (a,) = sessions(1)
    chunks = [job(a, 0, 8), job(a, 8, 1)]
    push(queue, *chunks)
    assert [queue.take(), queue.take()] == [[chunks[0]], [chunks[1]]]


def test_decode_goes_before_prefill_elsewhere_but_only_so_many_times(queue: JobQueue) -> None:
    a, b = sessions(2)
    chunk = job(a, rows=8, at=stage(layer=3))
    queue.push(chunk)
    rows = [job(b, position) for position in range(6)]
    taken = []
    for row in rows:
        queue.push(row)
        taken.append(queue.take())
    assert taken[:3] == [[rows[0]], [rows[1]], [rows[2]]]
    assert taken[3] == [chunk], f"passed over {LIMITS.max_passed_over} times, then its turn"


def test_drafts_wait_for_everything_canonical_and_never_share_its_batch(queue: JobQueue) -> None:
    a, b, c = sessions(3)
    draft, chunk, row = job(a, kind=Kind.DRAFT, at=stage("gate_up")), job(b, rows=8), job(c, at=stage("gate_up"))
    push(queue, draft, chunk, row)
    assert [queue.take(), queue.take(), queue.take()] == [[row], [chunk], [draft]]


def test_decode_rows_of_a_batch_are_bounded_and_a_session_keeps_its_order(queue: JobQueue) -> None:
    a, b = sessions(2)
    at = stage("down")
    jobs = [job(a, 0, 4, at), job(b, 0, 4, at), job(a, 4, 4, at), job(a, 8, 1, at)]
    push(queue, *jobs)
    assert queue.take() == jobs[:2], "the third does not fit, and the fourth must not overtake it"
    assert queue.take() == jobs[2:]


def test_dropping_a_session_leaves_the_others_and_the_counts_right(queue: JobQueue) -> None:
    a, b = sessions(2)
    jobs = [job(a), job(b), job(a, 1, 8), job(b, 1, 8), job(a, 9, kind=Kind.DRAFT)]
    push(queue, *jobs)
    assert queue.drop(lambda one: one.session is a) == [jobs[0], jobs[2], jobs[4]]
    assert (queue.length, a.queued, b.queued, a.prefills) == (2, 0, 2, {})
    assert queue.take() == [jobs[1]]
    assert queue.take() == [jobs[3]]
    assert queue.num_bytes == 0


ARRIVALS = st.lists(
    st.tuples(
        st.integers(0, 3), st.integers(0, 2), st.sampled_from([1, 1, 1, 3, 6, 12]), st.sampled_from([0, 0, 0, 1])
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=150)
@given(arrivals=ARRIVALS, takes=st.randoms(use_true_random=False))
def test_every_job_leaves_once_and_each_session_in_order_at_each_stage(arrivals: list[Any], takes: Any) -> None:
    queue = JobQueue(LIMITS)
    who = sessions(4)
    stages = [stage("attn", 0), stage("attn", 1), stage("down", 0)]
    pushed: list[Job] = []
    left: list[Job] = []

    def take() -> None:
        batch = queue.take()
        assert batch
        assert len({one.stage.key for one in batch}) == 1
        assert len({one.head.kind for one in batch}) == 1
        canonical = [one for one in batch if one.head.kind == Kind.CANONICAL]
        assert sum(one.head.rows > LIMITS.max_decode_rows for one in canonical) <= 1
        if batch[0].stage.has_cache:
            assert len({one.session.id for one in batch}) == len(batch)
        left.extend(batch)

    for number, at, rows, kind in arrivals:
        one = job(who[number], len(pushed), rows, stages[at], Kind(kind))
        pushed.append(one)
        queue.push(one)
        if takes.random() < 0.3:
            take()
    while queue.length:
        take()
    assert sorted(map(id, left)) == sorted(map(id, pushed))
    for session in who:
        for key in {one.stage.key for one in pushed}:
            for kind in (0, 1):
                mine = [o.head.first for o in left if (o.session, o.stage.key, o.head.kind) == (session, key, kind)]
                assert mine == sorted(mine)
    assert queue.num_bytes == 0
    assert all(session.queued == 0 and not session.prefills for session in who)
