"""RQ's Retry, Repeat, depends_on and cancel on a real server: what RQ's own code does decides what is expected."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis
from rq import Queue, Repeat, Retry
from rq.job import Dependency, Job, JobStatus
from rq.registry import CanceledJobRegistry, DeferredJobRegistry, FinishedJobRegistry, ScheduledJobRegistry
from rq.serializers import JSONSerializer

from genmill import keys
from genmill.errors import FunctionNotAllowed, JobFailure
from genmill.jobs import Claim, JobRecord, JobState
from genmill.queues import PriorityQueue
from genmill.registry import ModelSpec
from genmill.store import Outcome, Settlement, Store, Want
from scheduler.loop import DelayedWork
from tests.conftest import SettingsFactory
from tests.genmill.store.conftest import Submit

CLASSES = ["p0", "p1", "p2", "p3"]
HOOK = "https://example.org/h"

Enqueue = Callable[..., Job]


@pytest.fixture
def enqueue(redis: Redis) -> Enqueue:
    """A plain push, as an application of RQ makes it."""
    queue = Queue("p1", connection=redis, serializer=JSONSerializer)
    return lambda **options: queue.enqueue("worker.tasks.ping", **options)


def claim(store: Store, batch_key: str = keys.CALL_BATCH_KEY) -> Claim | None:
    claims = store.claim("w", CLASSES, [Want(batch_key, 1)]).claims
    return claims[0] if claims else None


def settle(store: Store, claimed: Claim | None, outcome: Outcome, error: JobFailure | None = None) -> None:
    assert claimed is not None
    error = error or (JobFailure("it broke") if outcome is not Outcome.FINISHED else None)
    settlement = Settlement(claimed.job_id, claimed.fence, outcome, {"run": claimed.fence}, error, "Traceback")
    assert store.settle([settlement]) == [True]


def run(store: Store, outcome: Outcome, error: JobFailure | None = None) -> None:
    settle(store, claim(store), outcome, error)


def record(store: Store, job_id: str) -> JobRecord:
    found = store.get(job_id)
    assert found is not None
    return found


def come_due(store: Store, redis: Redis, job_id: str) -> None:
    """Its time has come, and RQ's own scheduler moves it."""
    assert redis.zadd("rq:scheduled:p1", {job_id: 1}, xx=True, ch=True) == 1
    delayed = DelayedWork(store)
    delayed.tick(1)
    delayed.stop()


def registry(kind: Any, redis: Redis) -> list[str]:
    return list(kind("p1", connection=redis, serializer=JSONSerializer).get_job_ids())


def status(job: Job) -> str:
    return str(job.get_status(refresh=True).value)


def deliveries(store: Store) -> list[list[str]]:
    """Arguments (job, event) of the webhook deliveries that waited."""
    claims = store.claim("w", ["callbacks"], [Want(keys.CALLBACKS, 64)]).claims
    store.settle([Settlement(claimed.job_id, claimed.fence, Outcome.FINISHED) for claimed in claims])
    return [claimed.call[1] for claimed in claims]


def eternal_keys(redis: Redis) -> set[str]:
    """But for the fleet's bounded indexes, and RQ's registries, which it trims by score."""
    known = {"rq:queues", "gm:vt", "gm:vclock"}
    found = {key.decode() for key in redis.scan_iter() if redis.ttl(key) == -1}
    return {key for key in found - known if not key.startswith(("rq:finished:", "rq:failed:", "rq:canceled:"))}


# ------------------------------------------------------------------------------------------------------------- Retry


def test_a_failed_job_with_retries_waits_as_long_as_rq_says(redis: Redis, store: Store, enqueue: Enqueue) -> None:
    redis.hset("rq:worker:w", "name", "w")
    job = enqueue(retry=Retry(max=3, interval=[10, 60]))
    for left in (2, 1, 0):
        expected = time.time() + Job.fetch(job.id, connection=redis, serializer=JSONSerializer).get_retry_interval()
        run(store, Outcome.FAILED)
        (when,) = [score for _, score in redis.zrange("rq:scheduled:p1", 0, -1, withscores=True)]
        assert when == pytest.approx(expected, abs=2)
        assert (status(job), int(redis.hget(job.key, "retries_left") or -1)) == ("scheduled", left)
        assert record(store, job.id).state is JobState.QUEUED
        assert (redis.exists("rq:failed:p1"), job.latest_result()) == (0, None)
        assert redis.ttl(job.key) == -1
        come_due(store, redis, job.id)
    run(store, Outcome.FAILED)
    assert (status(job), redis.zcard("rq:failed:p1"), redis.zcard("rq:scheduled:p1")) == ("failed", 1, 0)
    assert len(job.results()) == 1
    assert redis.hget("rq:worker:w", "failed_job_count") == b"4"
    assert eternal_keys(redis) == {"rq:worker:w"}


def test_without_an_interval_the_next_run_is_at_once_and_its_success_forgets_the_error(
    redis: Redis, store: Store, enqueue: Enqueue
) -> None:
    job = enqueue(retry=Retry(max=1))
    run(store, Outcome.FAILED)
    waiting = record(store, job.id)
    assert (waiting.state, waiting.error) == (JobState.QUEUED, {"code": "job_failed", "message": "it broke"})
    again = claim(store)
    assert record(store, job.id).error is None
    settle(store, again, Outcome.FINISHED)
    ended = record(store, job.id)
    assert (ended.state, ended.error, ended.result, ended.fence) == (JobState.SUCCEEDED, None, {"run": 2}, 2)
    assert [result.type.name for result in job.results()] == ["SUCCESSFUL"]


@pytest.mark.parametrize(("is_front", "interval"), [(False, 0), (True, 0), (False, 60), (True, 60)])
def test_a_retry_goes_to_the_end_of_the_line_or_keeps_its_place(
    redis: Redis, store: Store, enqueue: Enqueue, is_front: bool, interval: int
) -> None:
    retried = "a" if is_front else "z"  # of two with one virtual deadline the lesser id goes first
    enqueue(job_id=retried, retry=Retry(max=1, interval=interval, enqueue_at_front=is_front))
    first = claim(store)
    enqueue(job_id="other")
    assert claim(store, "another@1/auto") is None  # the other stands in its lane by now
    settle(store, first, Outcome.FAILED)
    if interval:
        come_due(store, redis, retried)
    following = claim(store)
    assert following is not None
    assert following.job_id == (retried if is_front else "other")


def test_what_is_hopeless_stopped_or_canceled_is_not_tried_again(store: Store, enqueue: Enqueue) -> None:
    hopeless = enqueue(retry=Retry(max=3))
    run(store, Outcome.FAILED, FunctionNotAllowed())
    stopped = enqueue(retry=Retry(max=3))
    run(store, Outcome.STOPPED)
    canceled = enqueue(retry=Retry(max=3))
    claimed = claim(store)
    assert store.cancel(canceled.id) == "interrupting"
    settle(store, claimed, Outcome.FAILED)
    assert [status(job) for job in (hopeless, stopped, canceled)] == ["failed", "stopped", "failed"]
    assert claim(store) is None


def test_a_failure_that_is_committed_twice_takes_one_retry(redis: Redis, store: Store, enqueue: Enqueue) -> None:
    job = enqueue(retry=Retry(max=2))
    claimed = claim(store)
    assert claimed is not None
    failed = Settlement(job.id, claimed.fence, Outcome.FAILED, error=JobFailure())
    assert store.settle([failed, failed]) == [True, True]
    assert store.settle([failed]) == [True]
    assert redis.hget(job.key, "retries_left") == b"1"
    assert redis.lrange("rq:queue:p1", 0, -1) == [job.id.encode()]


def test_a_full_job_with_retries_comes_back_to_its_own_lane_with_its_ttl(
    redis: Redis, store: Store, submit: Submit, shapes: ModelSpec
) -> None:
    job_id = submit(ttl_s=600, webhook=HOOK)
    redis.hset(keys.job(job_id), mapping={"retries_left": 1, "retry_intervals": "[0]", "crashes": 2})
    settle(store, claim(store, shapes.batch_key), Outcome.FAILED)
    assert deliveries(store) == []
    again = claim(store, shapes.batch_key)
    assert again is not None
    assert (again.job_id, again.fence, again.is_suspect) == (job_id, 2, True)
    store.settle([Settlement(job_id, 2, Outcome.RETURNED)])
    assert redis.zscore("gm:ttl", job_id) is not None
    settle(store, claim(store, shapes.batch_key), Outcome.FAILED)
    assert deliveries(store) == [[job_id, "failed"]]


@pytest.mark.parametrize("intervals", ["", "[", "{}", "null", '["x"]', "[null]", "[-5]"])
def test_intervals_that_make_no_sense_are_none(redis: Redis, store: Store, enqueue: Enqueue, intervals: str) -> None:
    job = enqueue()
    redis.hset(job.key, mapping={"retries_left": 1, "retry_intervals": intervals})
    run(store, Outcome.FAILED)
    assert status(job) == "queued"
    assert claim(store) is not None


# ------------------------------------------------------------------------------------------------------------ Repeat


def test_a_repeated_job_succeeds_each_time_and_waits_as_rq_says(redis: Redis, store: Store, enqueue: Enqueue) -> None:
    job = enqueue(repeat=Repeat(times=3, interval=[0, 30]))
    run(store, Outcome.FINISHED)
    assert (status(job), redis.hget(job.key, "repeats_left")) == ("queued", b"2")
    for left in (b"1", b"0"):  # the last interval is used for all that follow
        run(store, Outcome.FINISHED)
        assert redis.zscore("rq:scheduled:p1", job.id) == pytest.approx(time.time() + 30, abs=2)
        assert (status(job), redis.hget(job.key, "repeats_left")) == ("scheduled", left)
        assert record(store, job.id).state is JobState.QUEUED
        assert redis.ttl(job.key) == -1
        come_due(store, redis, job.id)
    run(store, Outcome.FINISHED)
    assert (status(job), job.return_value(refresh=True)) == ("finished", {"run": 4})
    assert [result.return_value for result in job.results()] == [{"run": run} for run in (4, 3, 2, 1)]
    assert registry(FinishedJobRegistry, redis) == [job.id]
    assert eternal_keys(redis) == set()


def test_each_repetition_starts_anew_and_tells_the_webhook(
    redis: Redis, store: Store, submit: Submit, shapes: ModelSpec
) -> None:
    job_id = submit(webhook=HOOK)
    redis.hset(keys.job(job_id), mapping={"repeats_left": 1, "crashes": 1})
    first = claim(store, shapes.batch_key)
    settle(store, first, Outcome.FINISHED)
    again = claim(store, shapes.batch_key)
    assert first is not None
    assert again is not None
    assert again.vd_ms >= first.vd_ms
    assert redis.hget(keys.job(job_id), "crashes") is None
    settle(store, again, Outcome.FINISHED)
    assert record(store, job_id).state is JobState.SUCCEEDED
    assert deliveries(store) == [[job_id, "succeeded"]] * 2


def test_a_repeated_job_that_fails_or_that_a_client_cancels_is_over(store: Store, enqueue: Enqueue) -> None:
    failed = enqueue(repeat=Repeat(times=2))
    run(store, Outcome.FAILED)
    canceled = enqueue(repeat=Repeat(times=2))
    claimed = claim(store)
    store.cancel(canceled.id)
    settle(store, claimed, Outcome.FINISHED)
    assert [status(job) for job in (failed, canceled)] == ["failed", "finished"]
    assert claim(store) is None


def test_a_job_that_waits_for_its_next_run_can_be_canceled(redis: Redis, store: Store, enqueue: Enqueue) -> None:
    repeated, retried = enqueue(repeat=Repeat(times=2, interval=60)), enqueue(retry=Retry(max=2))
    claims = [claim(store), claim(store)]
    for claimed in claims:
        assert claimed is not None
        settle(store, claimed, Outcome.FINISHED if claimed.job_id == repeated.id else Outcome.FAILED)
    assert [store.cancel(job.id) for job in (repeated, retried)] == ["dequeued", "dequeued"]
    assert (redis.zcard("rq:scheduled:p1"), redis.llen("rq:queue:p1")) == (0, 0)
    assert eternal_keys(redis) == set()


# -------------------------------------------------------------------------------------------------------- depends_on


@pytest.mark.parametrize("takes_failure", [False, True])
@pytest.mark.parametrize("outcome", [Outcome.FINISHED, Outcome.FAILED, Outcome.CANCELED, Outcome.STOPPED])
def test_dependents_go_on_when_rq_would_let_them(
    redis: Redis, store: Store, enqueue: Enqueue, outcome: Outcome, takes_failure: bool
) -> None:
    ours = enqueue()
    child = enqueue(depends_on=Dependency([ours], allow_failure=takes_failure))
    assert status(child) == "deferred"
    run(store, outcome)

    theirs = enqueue()
    other = enqueue(depends_on=Dependency([theirs], allow_failure=takes_failure))
    theirs.set_status(JobStatus(outcome.value))
    Queue("p1", connection=redis, serializer=JSONSerializer).enqueue_dependents(theirs)
    assert status(child) == status(other)
    is_free = status(child) == "queued"
    assert (child.id in registry(DeferredJobRegistry, redis)) is not is_free
    assert redis.lrange("rq:queue:p1", 0, -1).count(child.id.encode()) == is_free
    assert redis.ttl(ours.dependents_key) == (-2 if is_free else pytest.approx(redis.ttl(ours.key), abs=1))


def test_a_job_waits_for_the_last_of_those_it_depends_on(redis: Redis, store: Store, enqueue: Enqueue) -> None:
    parents = [enqueue() for _ in range(3)]
    child = enqueue(depends_on=parents)
    run(store, Outcome.FINISHED)
    assert status(child) == "deferred"
    claims = [claim(store), claim(store)]
    assert store.settle([Settlement(c.job_id, c.fence, Outcome.FINISHED) for c in claims if c]) == [True, True]
    assert (status(child), redis.zcard("rq:deferred:p1")) == ("queued", 0)
    run(store, Outcome.FINISHED)
    assert (status(child), claim(store)) == ("finished", None)
    assert eternal_keys(redis) == set()


def test_a_dependency_that_is_gone_is_met_as_in_rq(redis: Redis, store: Store, enqueue: Enqueue) -> None:
    gone, parent = enqueue(), enqueue()
    child = enqueue(depends_on=[gone, parent])
    gone.delete()
    run(store, Outcome.FINISHED)
    assert status(child) == "queued"


def test_dependents_of_a_full_job_and_of_one_that_is_tried_again_or_repeated(
    redis: Redis, store: Store, enqueue: Enqueue, submit: Submit, shapes: ModelSpec
) -> None:
    full = submit()
    child = enqueue(depends_on=full)
    settle(store, claim(store, shapes.batch_key), Outcome.FINISHED)
    assert status(child) == "queued"
    run(store, Outcome.FINISHED)

    retried, repeated = (
        enqueue(job_id="a", retry=Retry(max=1, interval=60)),
        enqueue(job_id="b", repeat=Repeat(times=1)),
    )
    after_retried = enqueue(depends_on=Dependency([retried], allow_failure=True))
    after_repeated = enqueue(depends_on=repeated)
    run(store, Outcome.FAILED)
    run(store, Outcome.FINISHED)
    assert (status(after_retried), status(after_repeated)) == ("deferred", "queued")
    come_due(store, redis, retried.id)
    while (claimed := claim(store)) is not None:
        settle(store, claimed, Outcome.FAILED if claimed.job_id == retried.id else Outcome.FINISHED)
    assert (status(after_retried), status(after_repeated)) == ("finished", "finished")
    assert after_repeated.results()[0].execution_id == "f1"  # the second success of its parent runs it no second time
    assert eternal_keys(redis) == set()


def test_poisoned_and_expired_jobs_free_those_that_allow_failures(
    make_settings: SettingsFactory, redis: Redis, enqueue: Enqueue, submit: Submit
) -> None:
    store = Store(redis, make_settings(lease_s=0.002, renew_s=0.001, max_crashes=1))
    poisoned, expired = enqueue(), submit(ttl_s=1)
    children = [enqueue(depends_on=Dependency([job], allow_failure=True)) for job in (poisoned, expired)]
    strict = enqueue(depends_on=[poisoned])
    assert claim(store) is not None
    redis.zadd("gm:run:global", {poisoned.id: 1}, xx=True)
    redis.zadd("gm:ttl", {expired: 1}, xx=True)
    reaped = store.reap()
    assert (reaped.poisoned, reaped.expired) == (1, 1)
    assert [status(job) for job in (*children, strict)] == ["queued", "queued", "deferred"]


def test_an_end_that_is_committed_twice_frees_a_dependent_once(redis: Redis, store: Store, enqueue: Enqueue) -> None:
    parent = enqueue()
    child = enqueue(depends_on=parent)
    claimed = claim(store)
    assert claimed is not None
    end = Settlement(parent.id, claimed.fence, Outcome.FINISHED)
    assert store.settle([end, end]) == [True, True]
    assert store.settle([end]) == [True]
    assert redis.lrange("rq:queue:p1", 0, -1) == [child.id.encode()]


def test_a_failed_parent_that_is_requeued_frees_its_dependents_in_the_end(
    redis: Redis, store: Store, enqueue: Enqueue
) -> None:
    parent = enqueue(failure_ttl=60)
    child = enqueue(depends_on=parent)
    run(store, Outcome.FAILED)
    Job.fetch(parent.id, connection=redis, serializer=JSONSerializer).requeue()
    claimed = claim(store)
    assert redis.ttl(parent.dependents_key) == -1, "it lives as long as the parent"
    settle(store, claimed, Outcome.FINISHED)
    assert status(child) == "queued"


def test_a_dependent_at_the_front_goes_before_its_class(redis: Redis, store: Store, enqueue: Enqueue) -> None:
    parent = enqueue()
    claimed = claim(store)
    child = enqueue(depends_on=Dependency([parent], enqueue_at_front=True))
    enqueue()
    assert claim(store, "another@1/auto") is None  # it stands in its lane by now
    settle(store, claimed, Outcome.FINISHED)
    following = claim(store)
    assert following is not None
    assert following.job_id == child.id


def test_a_deferred_job_can_be_canceled(redis: Redis, store: Store, enqueue: Enqueue) -> None:
    parent = enqueue()
    child = enqueue(depends_on=parent)
    grandchild = enqueue(depends_on=child)
    assert store.cancel(child.id) == "dequeued"
    run(store, Outcome.FINISHED)
    assert (status(child), status(grandchild), claim(store)) == ("canceled", "deferred", None)
    assert store.cancel(grandchild.id) == "dequeued"
    assert redis.zcard("rq:deferred:p1") == 0
    assert eternal_keys(redis) == set()


def test_whether_jobs_have_dependents_is_one_question_for_all_that_end_together(
    redis: Redis, store: Store, submit: Submit, shapes: ModelSpec
) -> None:
    def commands_of_a_settle(jobs: int) -> dict[str, int]:
        for _ in range(jobs):
            submit()
        claims = store.claim("w", CLASSES, [Want(shapes.batch_key, jobs)]).claims
        redis.config_resetstat()
        assert all(store.settle([Settlement(c.job_id, c.fence, Outcome.FINISHED, {}) for c in claims]))
        return {name: stat["calls"] for name, stat in redis.info("commandstats").items()}

    commands_of_a_settle(1)  # the scripts are known to the server from here on
    one, many = commands_of_a_settle(1), commands_of_a_settle(16)
    assert one["cmdstat_exists"] == many["cmdstat_exists"]
    assert "cmdstat_smembers" not in many


# ------------------------------------------------------------------------------------------------------- RQ's cancel


@pytest.mark.parametrize("first", ["reap", "claim"])
def test_rqs_cancel_of_a_waiting_job_tells_its_webhook_once(
    redis: Redis, store: Store, submit: Submit, shapes: ModelSpec, first: str
) -> None:
    job_id = submit(webhook=HOOK)
    Job.fetch(job_id, connection=redis, serializer=JSONSerializer).cancel()
    if first == "claim":
        assert claim(store, shapes.batch_key) is None
    for _ in range(2):
        store.reap()
        assert claim(store, shapes.batch_key) is None
    canceled = record(store, job_id)
    assert (canceled.state, canceled.error) == (
        JobState.CANCELED,
        {"code": "canceled", "message": "The job was canceled."},
    )
    assert PriorityQueue("p1", connection=redis).count == 0
    assert registry(CanceledJobRegistry, redis) == [job_id]
    assert redis.zscore("rq:canceled:p1", job_id) == pytest.approx(time.time() + redis.ttl(keys.job(job_id)), abs=3)
    assert deliveries(store) == [[job_id, "canceled"]]
    assert eternal_keys(redis) == set()


@pytest.fixture
def lanes_for_rq(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if RQ asked the configured class."""
    monkeypatch.setenv("GENMILL_REDIS_URL", store.settings.redis_url)
    monkeypatch.setattr("rq.queue.Queue", PriorityQueue)


@pytest.mark.usefixtures("lanes_for_rq")
def test_a_cancel_by_way_of_the_queue_is_one_transaction(
    redis: Redis, store: Store, submit: Submit, shapes: ModelSpec
) -> None:
    job_id = submit(webhook=HOOK)
    Job.fetch(job_id, connection=redis, serializer=JSONSerializer).cancel()
    assert redis.zcard(keys.ready("p1", shapes.batch_key)) == 0
    assert redis.zcard(keys.ready("callbacks", "callbacks")) == 1
    store.reap()
    assert registry(CanceledJobRegistry, redis) == [job_id]
    assert redis.zscore("rq:canceled:p1", job_id) > time.time() + 60
    assert deliveries(store) == [[job_id, "canceled"]]


@pytest.mark.usefixtures("lanes_for_rq")
def test_a_cancel_whose_transaction_is_given_up_takes_nothing_out_of_its_lane(
    redis: Redis, store: Store, submit: Submit, shapes: ModelSpec
) -> None:
    job = Job.fetch(submit(webhook=HOOK), connection=redis, serializer=JSONSerializer)
    with redis.pipeline() as given_up:
        given_up.multi()
        job.cancel(pipeline=given_up)
    assert deliveries(store) == []
    assert claim(store, shapes.batch_key) is not None


@pytest.mark.parametrize("has_lanes", [False, True])
def test_rqs_delete_of_a_waiting_job_tells_nobody(
    redis: Redis, store: Store, submit: Submit, shapes: ModelSpec, request: pytest.FixtureRequest, has_lanes: bool
) -> None:
    if has_lanes:
        request.getfixturevalue("lanes_for_rq")
    Job.fetch(submit(webhook=HOOK), connection=redis, serializer=JSONSerializer).delete()
    assert redis.zcard(keys.ready("p1", shapes.batch_key)) == (not has_lanes)
    store.reap()
    assert claim(store, shapes.batch_key) is None
    assert deliveries(store) == []


def test_rqs_cancel_of_what_waits_outside_the_lanes_tells_its_webhook_once(
    redis: Redis, store: Store, submit: Submit, shapes: ModelSpec
) -> None:
    requeued, put_off = submit(webhook=HOOK), submit(webhook=HOOK)
    for outcome in (Outcome.FAILED, Outcome.SCHEDULED):
        settle(store, claim(store, shapes.batch_key), outcome)
    assert deliveries(store) == [[requeued, "failed"]]
    Job.fetch(requeued, connection=redis, serializer=JSONSerializer).requeue()
    for job_id in (requeued, put_off):
        Job.fetch(job_id, connection=redis, serializer=JSONSerializer).cancel()
    store.reap(), store.reap()
    assert {tuple(told) for told in deliveries(store)} == {(requeued, "canceled"), (put_off, "canceled")}
    assert registry(ScheduledJobRegistry, redis) == []


def test_a_job_that_we_canceled_is_told_of_once_and_goes_with_its_ttl(
    redis: Redis, store: Store, submit: Submit
) -> None:
    job_id = submit(webhook=HOOK)
    store.cancel(job_id)
    redis.expire(keys.job(job_id), 50)
    redis.zadd("rq:canceled:p1", {job_id: 1})  # its time is up
    store.reap()
    assert redis.ttl(keys.job(job_id)) <= 50, "looking at it does not prolong it"
    assert redis.zscore("rq:canceled:p1", job_id) == pytest.approx(time.time() + 50, abs=3)
    redis.delete(keys.job(job_id))
    redis.zadd("rq:canceled:p1", {job_id: 1})
    store.reap()
    assert redis.exists("rq:canceled:p1") == 0
    assert deliveries(store) == [[job_id, "canceled"]]
