"""Deadlines: what they do to a job's place, which jobs are refused for them, and what becomes of those that wait."""

from __future__ import annotations

import pytest
from redis import Redis

from genmill import keys
from genmill.errors import DeadlineUnmeetable
from genmill.jobs import JobRequest, JobState, new_job_id
from genmill.registry import ModelSpec
from genmill.store import Outcome, Settlement, Store, Want
from tests.genmill.store.conftest import Submit

CLASSES = ["p0", "p1", "p2", "p3"]
RUN_S, GPU_MS = 8.0, 500.0


@pytest.fixture
def history(store: Store, submit: Submit, shapes: ModelSpec, redis: Redis) -> None:
    """One worker, and four jobs that ran for RUN_S each and took GPU_MS of it."""
    redis.sadd("rq:workers:p1", "rq:worker:w")
    ids = [submit("past") for _ in range(4)]
    claims = store.claim("w", CLASSES, [Want(shapes.batch_key, 4)]).claims
    assert len(claims) == len(ids)
    store.settle(
        [Settlement(c.job_id, c.fence, Outcome.FINISHED, {}, gpu_ms=GPU_MS, run_ms=RUN_S * 1e3) for c in claims]
    )


def server_ms(redis: Redis) -> int:
    seconds, micros = redis.time()
    return int(seconds * 1000 + micros // 1000)


def age_pace(redis: Redis, minutes: int) -> None:
    """As if what is known had been learnt so much earlier."""
    for batch_key, text in redis.hgetall("gm:pace").items():
        *numbers, at_s = text.split()
        redis.hset("gm:pace", batch_key, b" ".join([*numbers, b"%d" % (int(at_s) - 60 * minutes)]))


def vd_of(redis: Redis, job_id: str) -> float:
    return float(redis.hget(keys.job(job_id), "vd"))


def test_without_history_any_deadline_is_taken_and_counts_the_estimated_cost(
    redis: Redis, store: Store, submit: Submit, shapes: ModelSpec
) -> None:
    job_id = submit(job_class="p3", deadline_s=100)
    cost_ms = shapes.cost_ms(shapes.parse_input({"prompt": "a red circle"}))
    assert vd_of(redis, job_id) == pytest.approx(server_ms(redis) + 100_000 - cost_ms, abs=500)
    record = store.get(job_id)
    assert record is not None
    assert record.deadline_ms == pytest.approx(server_ms(redis) + 100_000, abs=500)


@pytest.mark.usefixtures("history")
def test_a_deadline_moves_a_job_forward_by_what_jobs_like_it_took(redis: Redis, submit: Submit) -> None:
    urgent, twice_the_work = submit(job_class="p3", deadline_s=60), submit(job_class="p3", deadline_s=60, num_images=2)
    assert vd_of(redis, urgent) == pytest.approx(server_ms(redis) + (60 - RUN_S) * 1000, abs=500)
    assert vd_of(redis, twice_the_work) == pytest.approx(server_ms(redis) + (60 - 2 * RUN_S) * 1000, abs=500)


@pytest.mark.usefixtures("history")
def test_a_distant_deadline_leaves_the_class_its_place(redis: Redis, submit: Submit) -> None:
    assert vd_of(redis, submit(deadline_s=3600)) == pytest.approx(vd_of(redis, submit()), abs=500)


def test_a_time_to_live_gives_no_urgency(redis: Redis, submit: Submit) -> None:
    assert vd_of(redis, submit(job_class="p3", ttl_s=5)) == pytest.approx(
        vd_of(redis, submit(job_class="p3")), abs=500
    )


@pytest.mark.usefixtures("history")
def test_a_job_that_cannot_end_in_time_is_refused_and_nothing_is_stored(redis: Redis, submit: Submit) -> None:
    before = set(redis.scan_iter("*"))
    with pytest.raises(DeadlineUnmeetable, match=r"deadline_s is 5, the job would end after 8\.") as caught:
        submit(deadline_s=5)
    (fault,) = caught.value.faults
    assert (fault.pointer, fault.value) == ("/deadline_s", "5")
    assert set(redis.scan_iter("*")) == before
    assert submit(deadline_s=9)


@pytest.mark.usefixtures("history")
def test_the_work_before_it_counts_shared_by_the_workers(redis: Redis, submit: Submit) -> None:
    for _ in range(39):
        submit("a", "p0")
    with pytest.raises(DeadlineUnmeetable, match=r"after 20\.0 s"):  # 40 jobs of 0.5 s
        submit(deadline_s=15)
    redis.sadd("rq:workers:p1", "rq:worker:another")
    assert submit(deadline_s=15)


@pytest.mark.usefixtures("history")
def test_work_that_comes_later_does_not_count(submit: Submit) -> None:
    for _ in range(100):
        submit("a", "p3")
    assert submit(deadline_s=15)


@pytest.mark.usefixtures("history")
def test_best_effort_is_taken_goes_first_and_never_expires(redis: Redis, store: Store, submit: Submit) -> None:
    job_id = submit(deadline_s=1, is_best_effort=True)
    assert vd_of(redis, job_id) == pytest.approx(server_ms(redis), abs=500)
    assert redis.zscore("gm:ttl", job_id) is None


def test_a_deadline_that_passes_while_the_job_waits_ends_it(redis: Redis, store: Store, submit: Submit) -> None:
    job_id = submit(deadline_s=600, ttl_s=900)
    assert redis.zscore("gm:ttl", job_id) == pytest.approx(server_ms(redis) + 600_000, abs=500)
    redis.zadd("gm:ttl", {job_id: 1})
    assert store.reap().expired == 1
    record = store.get(job_id)
    assert record is not None
    assert record.state is JobState.EXPIRED


@pytest.mark.usefixtures("history")
def test_of_many_only_those_that_come_too_late_are_refused(store: Store, shapes: ModelSpec) -> None:
    job_input = shapes.parse_input({"prompt": "x"})
    told = store.submit_many(
        [JobRequest(new_job_id(), "a", shapes, job_input, deadline_s=deadline_s) for deadline_s in (1, None, 100, 2)]
    )
    assert [one.late is not None for one in told] == [True, False, False, True]
    assert told[0].late is not None
    assert told[0].late.deadline_s == 1
    assert told[0].late.soonest_s == pytest.approx(RUN_S, abs=0.5)


@pytest.mark.usefixtures("history")
def test_a_model_that_has_become_slower_is_believed_in_time(
    redis: Redis, store: Store, submit: Submit, shapes: ModelSpec
) -> None:
    assert submit(deadline_s=10)
    store.claim("w", CLASSES, [Want(shapes.batch_key, 1)])
    for _ in range(40):
        job_id = submit()
        (claim,) = store.claim("w", CLASSES, [Want(shapes.batch_key, 1)]).claims
        store.settle([Settlement(job_id, claim.fence, Outcome.FINISHED, {}, gpu_ms=GPU_MS, run_ms=30_000)])
        age_pace(redis, minutes=10)
    with pytest.raises(DeadlineUnmeetable):
        submit(deadline_s=10)


@pytest.mark.usefixtures("history")
def test_only_work_that_goes_before_it_counts(redis: Redis, submit: Submit) -> None:
    """Its own deadline puts it before jobs whose virtual deadlines would come before the end of its class's delay."""
    for _ in range(39):
        submit("a")
    job_id = submit(deadline_s=15)
    assert redis.zrank("gm:ready:p1:" + redis.hget(keys.job(job_id), "batch_key").decode(), job_id) == 0


@pytest.mark.usefixtures("history")
def test_jobs_of_one_call_count_for_each_other(store: Store, shapes: ModelSpec) -> None:
    job_input = shapes.parse_input({"prompt": "x"})
    told = store.submit_many([JobRequest(new_job_id(), "a", shapes, job_input, deadline_s=15) for _ in range(100)])
    kept = sum(one.late is None for one in told)
    assert kept == pytest.approx(30, abs=1), "thirty jobs of half a second each"


@pytest.mark.usefixtures("history")
def test_a_run_of_unknown_length_teaches_nothing(
    redis: Redis, store: Store, submit: Submit, shapes: ModelSpec
) -> None:
    before = redis.hgetall("gm:pace")
    job_id = submit()
    (claim,) = store.claim("w", CLASSES, [Want(shapes.batch_key, 1)]).claims
    store.settle([Settlement(job_id, claim.fence, Outcome.FINISHED, {}, gpu_ms=1)])
    assert redis.hgetall("gm:pace") == before


@pytest.mark.usefixtures("history")
def test_refusals_do_not_go_on_for_ever_where_nothing_else_runs(submit: Submit) -> None:
    refused = 0
    while True:
        try:
            submit(deadline_s=5)
            break
        except DeadlineUnmeetable:
            refused += 1
    assert 10 < refused < 40


@pytest.mark.usefixtures("history")
def test_half_of_what_runs_counts(redis: Redis, store: Store, submit: Submit, shapes: ModelSpec) -> None:
    for _ in range(40):
        submit("a", "p0")
    assert len(store.claim("w", CLASSES, [Want(shapes.batch_key, 40)]).claims) == 40
    with pytest.raises(DeadlineUnmeetable, match=r"after 10\.5 s"):
        submit(deadline_s=10)
    assert submit(deadline_s=11)
