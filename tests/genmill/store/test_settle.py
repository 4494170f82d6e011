"""Ends of jobs: settle, cancel, renew, reap; what RQ sees of them; what is left behind (nothing)."""

from __future__ import annotations

import json
import time

import pytest
from redis import Redis
from rq.job import Job, JobStatus
from rq.registry import CanceledJobRegistry, FailedJobRegistry, FinishedJobRegistry, ScheduledJobRegistry
from rq.serializers import JSONSerializer

from genmill import keys
from genmill.errors import GenerationFailed, IdempotencyMismatch
from genmill.jobs import Claim, JobRequest, JobState, new_job_id
from genmill.registry import ModelSpec
from genmill.store import Outcome, Settlement, Store, Want
from tests.conftest import SettingsFactory
from tests.genmill.store.conftest import Submit

CLASSES = ["p0", "p1", "p2", "p3"]


def claim_one(store: Store, spec: ModelSpec) -> Claim:
    (claim,) = store.claim("w", CLASSES, [Want(spec.batch_key, 1, False)]).claims
    return claim


def state(store: Store, job_id: str) -> JobState:
    record = store.get(job_id)
    assert record is not None
    return record.state


def live_keys(redis: Redis) -> set[str]:
    """Keys that a place of a job leaves: leases, parking, lanes, executions."""
    patterns = ("gm:run:*", "gm:parked:*", "gm:lane:*", "gm:ready:*", "gm:act:*", "rq:execution*", "rq:wip:*")
    return {key.decode() for pattern in patterns for key in redis.scan_iter(pattern)}


def test_success_is_what_rq_and_the_client_read(redis: Redis, store: Store, submit: Submit, shapes: ModelSpec) -> None:
    job_id = submit()
    claim = claim_one(store, shapes)
    result = {"outputs": [{"key": "k"}]}
    assert store.settle([Settlement(job_id, claim.fence, Outcome.FINISHED, result, gpu_ms=7)]) == [True]
    record = store.get(job_id)
    assert record is not None
    assert (record.state, record.result, record.gpu_ms) == (JobState.SUCCEEDED, result, 7)
    job = Job.fetch(job_id, connection=redis, serializer=JSONSerializer)
    assert job.get_status() == JobStatus.FINISHED
    assert job.return_value() == result
    assert job_id in FinishedJobRegistry("p1", connection=redis, serializer=JSONSerializer).get_job_ids()
    assert live_keys(redis) == set()


def test_failure_shows_its_reason_to_both(redis: Redis, store: Store, submit: Submit, shapes: ModelSpec) -> None:
    job_id = submit()
    claim = claim_one(store, shapes)
    error = GenerationFailed("the UNet raised")
    store.settle([Settlement(job_id, claim.fence, Outcome.FAILED, error=error, exc="Traceback: the UNet raised")])
    record = store.get(job_id)
    assert record is not None
    assert record.state is JobState.FAILED
    assert record.error == {"code": "generation_failed", "message": "the UNet raised"}
    job = Job.fetch(job_id, connection=redis, serializer=JSONSerializer)
    latest = job.latest_result()
    assert latest is not None
    assert "the UNet raised" in str(latest.exc_string)
    assert job_id in FailedJobRegistry("p1", connection=redis, serializer=JSONSerializer).get_job_ids()


def test_a_stale_fence_commits_nothing(store: Store, submit: Submit, shapes: ModelSpec) -> None:
    job_id = submit()
    old = claim_one(store, shapes)
    store.settle([Settlement(job_id, old.fence, Outcome.RETURNED)])
    new = claim_one(store, shapes)
    assert new.fence == old.fence + 1
    assert store.settle([Settlement(job_id, old.fence, Outcome.FINISHED, {"outputs": []})]) == [False]
    assert state(store, job_id) is JobState.RUNNING


def test_settling_twice_commits_once(redis: Redis, store: Store, submit: Submit, shapes: ModelSpec) -> None:
    job_id = submit(webhook="http://127.0.0.1:9/hook")
    claim = claim_one(store, shapes)
    settlement = Settlement(job_id, claim.fence, Outcome.FINISHED, {"outputs": []})
    assert store.settle([settlement, settlement]) == [True, True]
    assert redis.xlen(keys.results(job_id)) == 1
    assert redis.zcard(keys.ready("callbacks", "callbacks")) == 1


def test_a_commit_and_its_callback_are_one(store: Store, submit: Submit, shapes: ModelSpec) -> None:
    job_id = submit(webhook="https://example.org/hook?x=1")
    claim = claim_one(store, shapes)
    store.settle([Settlement(job_id, claim.fence, Outcome.FINISHED, {"outputs": []})])
    (delivery,) = store.claim("w", ["callbacks"], [Want(keys.CALLBACKS, 8, True)]).claims
    assert delivery.call == (keys.DELIVER, [job_id, "succeeded"], {})
    assert (delivery.tenant, delivery.parent) == ("host:example.org", job_id)
    assert "." not in delivery.job_id


def test_a_dead_receivers_host_has_its_own_limit(store: Store, submit: Submit, shapes: ModelSpec) -> None:
    for host in ("dead", "dead", "dead", "well"):
        submit(webhook=f"https://{host}.example/hook")
    for claim in store.claim("w", CLASSES, [Want(shapes.batch_key, 8, False)]).claims:
        store.settle([Settlement(claim.job_id, claim.fence, Outcome.FINISHED, {})])
    limited = Store(store.redis, store.settings.model_copy(update={"limits": {"host:*": 2}}))
    hosts = [c.tenant for c in limited.claim("w", ["callbacks"], [Want(keys.CALLBACKS, 8, True)]).claims]
    assert sorted(hosts) == ["host:dead.example", "host:dead.example", "host:well.example"]


def test_a_postponed_job_is_in_rqs_scheduled_registry(
    redis: Redis, store: Store, submit: Submit, shapes: ModelSpec
) -> None:
    job_id = submit()
    claim = claim_one(store, shapes)
    store.settle([Settlement(job_id, claim.fence, Outcome.SCHEDULED, error=GenerationFailed(), delay_ms=60_000)])
    registry = ScheduledJobRegistry("p1", connection=redis, serializer=JSONSerializer)
    assert registry.get_job_ids() == [job_id]
    assert state(store, job_id) is JobState.QUEUED
    assert store.claim("w", CLASSES, [Want(shapes.batch_key, 1, False)]).claims == ()


@pytest.mark.parametrize("job_class", CLASSES)
def test_cancel_of_a_queued_job(redis: Redis, store: Store, submit: Submit, job_class: str) -> None:
    job_id = submit(job_class=job_class)
    assert store.cancel(job_id) == "dequeued"
    assert state(store, job_id) is JobState.CANCELED
    assert CanceledJobRegistry(job_class, connection=redis, serializer=JSONSerializer).get_job_ids() == [job_id]
    assert store.cancel(job_id) == "too_late"
    assert live_keys(redis) == set()


def test_cancel_of_a_running_job_reaches_its_worker(
    redis: Redis, store: Store, submit: Submit, shapes: ModelSpec
) -> None:
    job_id = submit()
    claim = claim_one(store, shapes)
    with redis.pubsub() as heard:
        heard.subscribe("rq:pubsub:w")
        assert heard.get_message(timeout=2) is not None
        assert store.cancel(job_id) == "interrupting"
        message = heard.get_message(timeout=2)
    assert message is not None
    assert json.loads(message["data"]) == {"command": "stop-job", "job_id": job_id, "by": "client"}
    assert store.renew([(job_id, claim.fence)]).canceled == {job_id}
    store.settle([Settlement(job_id, claim.fence, Outcome.RETURNED)])
    assert state(store, job_id) is JobState.CANCELED


def test_cancel_of_an_unknown_job(store: Store) -> None:
    assert store.cancel("no-such-job") == "unknown"


def test_renewal_tells_a_lost_lease(store: Store, submit: Submit, shapes: ModelSpec) -> None:
    job_id = submit()
    claim = claim_one(store, shapes)
    assert store.renew([(job_id, claim.fence), ("ghost", 1), (job_id, 99)]).lost == {("ghost", 1), (job_id, 99)}
    assert store.renew([(job_id, claim.fence)]).lost == frozenset()


def test_two_reapers_requeue_a_dead_workers_jobs_once(
    make_settings: SettingsFactory, redis: Redis, submit: Submit, shapes: ModelSpec
) -> None:
    store = Store(redis, make_settings(lease_s=0.02, renew_s=0.01))
    ids = {submit(store=store) for _ in range(20)}
    store.claim("dead", CLASSES, [Want(shapes.batch_key, 20, False)])
    counts = [0, 0]
    deadline = time.monotonic() + 5
    while sum(counts) < 20 and time.monotonic() < deadline:
        counts[0] += store.reap(7).requeued
        counts[1] += store.reap(7).requeued
    assert sum(counts) == 20
    assert sum(store.queue_depths().values()) == len(ids)


def test_a_job_that_kills_its_workers_is_poisoned(
    make_settings: SettingsFactory, redis: Redis, submit: Submit, shapes: ModelSpec
) -> None:
    store = Store(redis, make_settings(lease_s=0.002, renew_s=0.001, max_crashes=3))
    job_id = submit(store=store, webhook="https://example.org/h")
    outcomes = []
    deadline = time.monotonic() + 5
    while state(store, job_id) is not JobState.FAILED and time.monotonic() < deadline:
        store.claim("w", CLASSES, [Want(shapes.batch_key, 1, False)])
        outcomes.append(store.reap())
    assert sum(r.requeued for r in outcomes) == 2
    assert sum(r.poisoned for r in outcomes) == 1
    record = store.get(job_id)
    assert record is not None
    assert record.error is not None
    assert record.error["code"] == "poisoned"
    assert redis.zcard(keys.ready("callbacks", "callbacks")) == 1


def test_a_job_past_its_ttl_expires_with_a_callback(
    redis: Redis, store: Store, submit: Submit, shapes: ModelSpec
) -> None:
    job_id = submit(ttl_s=1, webhook="https://example.org/h")
    redis.zadd("gm:ttl", {job_id: 1})
    assert store.reap().expired == 1
    assert state(store, job_id) is JobState.EXPIRED
    assert store.claim("w", CLASSES, [Want(shapes.batch_key, 1, False)]).claims == ()
    assert redis.zcard(keys.ready("callbacks", "callbacks")) == 1


def test_rq_requeue_of_a_failed_job_runs_it_again(
    redis: Redis, store: Store, submit: Submit, shapes: ModelSpec
) -> None:
    job_id = submit()
    claim = claim_one(store, shapes)
    store.settle([Settlement(job_id, claim.fence, Outcome.FAILED, error=GenerationFailed())])
    FailedJobRegistry("p1", connection=redis, serializer=JSONSerializer).requeue(job_id)
    again = claim_one(store, shapes)
    assert (again.job_id, again.fence) == (job_id, claim.fence + 1)
    store.settle([Settlement(job_id, again.fence, Outcome.FINISHED, {"outputs": [1]})])
    record = store.get(job_id)
    assert record is not None
    assert (record.state, record.result, record.error) == (JobState.SUCCEEDED, {"outputs": [1]}, None)


def test_rqs_own_cancel_takes_the_job_out_of_its_lane(
    redis: Redis, store: Store, submit: Submit, shapes: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = submit()
    monkeypatch.setenv("GENMILL_REDIS_URL", store.settings.redis_url)
    Job.fetch(job_id, connection=redis, serializer=JSONSerializer).cancel()
    assert state(store, job_id) is JobState.CANCELED
    assert store.claim("w", CLASSES, [Want(shapes.batch_key, 1, False)]).claims == ()
    assert live_keys(redis) == set()


def test_an_idempotency_key_replays_its_job_and_refuses_another_body(store: Store, submit: Submit) -> None:
    first = submit(idempotency_key="k", body_hash="1")
    assert submit(idempotency_key="k", body_hash="1") == first
    assert submit("b", idempotency_key="k", body_hash="2") != first
    with pytest.raises(IdempotencyMismatch):
        submit(idempotency_key="k", body_hash="2")


def test_submitting_one_id_twice_stores_once(redis: Redis, store: Store, submit: Submit, shapes: ModelSpec) -> None:
    assert submit(job_id="j1") == submit(job_id="j1") == "j1"
    assert redis.zcard(keys.ready("p1", shapes.batch_key)) == 1


def test_lists_are_newest_first_and_paged(store: Store, submit: Submit) -> None:
    ids = [submit() for _ in range(5)]
    submit("b")
    assert set(store.list_ids("a", None, 10)) == set(ids)
    page = store.list_ids("a", None, 2)
    assert set(page + store.list_ids("a", page[-1], 10)) == set(ids)
    assert len(page) == 2


def test_nothing_without_ttl_stays_when_all_has_ended(
    redis: Redis, store: Store, submit: Submit, shapes: ModelSpec
) -> None:
    """Every key that is left either expires or is a bounded index of the fleet."""
    for outcome in (Outcome.FINISHED, Outcome.FAILED, Outcome.CANCELED, Outcome.STOPPED):
        job_id = submit()
        claim = claim_one(store, shapes)
        store.settle([Settlement(job_id, claim.fence, outcome, error=GenerationFailed())])
    store.cancel(submit())
    registries = ("rq:finished:", "rq:failed:", "rq:canceled:")
    bounded = {"rq:queues", "gm:vt", "gm:vclock"}
    eternal = {key.decode() for key in redis.scan_iter() if redis.ttl(key) == -1}
    assert {key for key in eternal - bounded if not key.startswith(registries)} == set()


def test_a_job_that_rq_deletes_from_its_lane_leaves_nothing(
    redis: Redis, store: Store, submit: Submit, shapes: ModelSpec
) -> None:
    Job.fetch(submit(), connection=redis, serializer=JSONSerializer).delete()
    kept = submit()
    claim = claim_one(store, shapes)
    assert claim.job_id == kept
    store.settle([Settlement(kept, claim.fence, Outcome.FINISHED, {})])
    assert store.claim("w", CLASSES, [Want(shapes.batch_key, 1, False)]).claims == ()
    assert live_keys(redis) == set()


def test_a_running_job_that_rq_deletes_frees_its_slots_and_its_id(
    redis: Redis, store: Store, submit: Submit, shapes: ModelSpec
) -> None:
    job_id = submit(job_id="fixed")
    claim = claim_one(store, shapes)
    Job.fetch(job_id, connection=redis, serializer=JSONSerializer).delete()
    assert store.renew([(job_id, claim.fence)]).lost == {(job_id, claim.fence)}
    redis.zadd("gm:run:global", {job_id: 1}, xx=True)
    store.reap()
    assert live_keys(redis) == set()
    assert submit(job_id="fixed") == claim_one(store, shapes).job_id


def test_a_running_job_that_rq_cancels_stays_canceled_and_tells_its_webhook(
    redis: Redis, store: Store, submit: Submit, shapes: ModelSpec
) -> None:
    job_id = submit(webhook="https://example.org/h")
    claim = claim_one(store, shapes)
    Job.fetch(job_id, connection=redis, serializer=JSONSerializer).cancel()
    assert store.renew([(job_id, claim.fence)]).lost == {(job_id, claim.fence)}
    assert store.settle([Settlement(job_id, claim.fence, Outcome.FINISHED, {})]) == [False]
    redis.zadd("gm:run:global", {job_id: 1}, xx=True)
    store.reap()
    assert state(store, job_id) is JobState.CANCELED
    deliveries = store.claim("w", ["callbacks"], [Want(keys.CALLBACKS, 8)]).claims
    assert [d.call[1] for d in deliveries] == [[job_id, "canceled"]]


def test_a_ttl_outlives_a_claim(redis: Redis, store: Store, submit: Submit, shapes: ModelSpec) -> None:
    job_id = submit(ttl_s=60)
    claim = claim_one(store, shapes)
    assert redis.zscore("gm:ttl", job_id) is None
    store.settle([Settlement(job_id, claim.fence, Outcome.RETURNED)])
    assert redis.zscore("gm:ttl", job_id) is not None


@pytest.mark.parametrize("outcome", [Outcome.SCHEDULED, Outcome.RETURNED])
def test_a_canceled_job_that_is_put_off_ends_instead(
    store: Store, submit: Submit, shapes: ModelSpec, outcome: Outcome
) -> None:
    job_id = submit()
    claim = claim_one(store, shapes)
    assert store.cancel(job_id) == "interrupting"
    assert store.settle([Settlement(job_id, claim.fence, outcome, delay_ms=1000)]) == [True]
    record = store.get(job_id)
    assert record is not None
    assert (record.state, record.error) == (
        JobState.CANCELED,
        {"code": "canceled", "message": "The job was canceled."},
    )


def test_rqs_result_ttl_for_ever_keeps_the_result(redis: Redis, store: Store) -> None:
    from rq import Queue

    job = Queue("p1", connection=redis, serializer=JSONSerializer).enqueue("worker.tasks.ping", result_ttl=-1)
    (claim,) = store.claim("w", CLASSES, [Want(keys.CALL_BATCH_KEY, 1)]).claims
    store.settle([Settlement(job.id, claim.fence, Outcome.FINISHED, "pong")])
    assert (job.return_value(refresh=True), redis.ttl(job.key)) == ("pong", -1)


def test_another_end_of_the_same_fence_is_not_taken_for_a_repetition(
    store: Store, submit: Submit, shapes: ModelSpec
) -> None:
    job_id = submit()
    claim = claim_one(store, shapes)
    returned = Settlement(job_id, claim.fence, Outcome.RETURNED)
    finished = Settlement(job_id, claim.fence, Outcome.FINISHED, {})
    assert store.settle([returned, returned, finished]) == [True, True, False]


def test_thousands_of_jobs_end_in_one_call(redis: Redis, store: Store, shapes: ModelSpec) -> None:
    job_input = shapes.parse_input({"prompt": "x"})
    store.submit_many([JobRequest(new_job_id(), "a", shapes, job_input) for _ in range(4200)])
    claims = [c for _ in range(9) for c in store.claim("w", CLASSES, [Want(shapes.batch_key, 500)]).claims]
    assert all(store.settle([Settlement(c.job_id, c.fence, Outcome.FINISHED, 1) for c in claims]))
    assert (len(claims), redis.zcard("rq:finished:p1")) == (4200, 4200)
    assert live_keys(redis) == set()


def test_a_second_end_of_a_job_that_never_ran_is_told_under_another_id(
    redis: Redis, store: Store, submit: Submit
) -> None:
    job_id = submit(webhook="https://example.org/h")
    store.cancel(job_id)
    (first,) = store.claim("w", ["callbacks"], [Want(keys.CALLBACKS, 4, True)]).claims
    redis.hset(keys.job(job_id), "status", "queued")
    redis.rpush("rq:queue:p1", job_id)
    store.claim("w", CLASSES, [Want("another@1/auto", 1)])
    store.cancel(job_id)
    (second,) = store.claim("w2", ["callbacks"], [Want(keys.CALLBACKS, 4, True)]).claims
    assert second.job_id != first.job_id
    assert store.settle([Settlement(c.job_id, c.fence, Outcome.FINISHED) for c in (first, second)]) == [True, True]


def test_two_ends_of_one_job_in_one_call_are_told_once(
    redis: Redis, store: Store, submit: Submit, shapes: ModelSpec
) -> None:
    job_id = submit(webhook="https://example.org/h")
    claim = claim_one(store, shapes)
    ends = [Settlement(job_id, claim.fence, outcome) for outcome in (Outcome.CANCELED, Outcome.FINISHED)]
    assert store.settle(ends) == [True, False]
    assert redis.zcard(keys.ready("callbacks", "callbacks")) == 1
    assert redis.hgetall("gm:waiting") == {b"host:example.org": b"1"}
