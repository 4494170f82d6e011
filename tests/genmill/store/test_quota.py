"""What a tenant may submit, and what a waiting job is told."""

from __future__ import annotations

import pytest
from redis import Redis

from genmill.errors import LimitReached
from genmill.jobs import JobRequest, new_job_id
from genmill.registry import ModelSpec
from genmill.store import Outcome, Settlement, Store, Waiting, Want
from tests.conftest import SettingsFactory
from tests.genmill.store.conftest import Submit

CLASSES = ["p0", "p1", "p2", "p3"]


def settle_all(store: Store, spec: ModelSpec, *, gpu_ms: float = 1.0, outcome: Outcome = Outcome.FINISHED) -> int:
    claims = store.claim("w", CLASSES, [Want(spec.batch_key, 48)]).claims
    store.settle([Settlement(c.job_id, c.fence, outcome, {}, gpu_ms=gpu_ms) for c in claims])
    return len(claims)


def test_waiting_jobs_are_bounded_and_counted_true_through_every_way_out(
    make_settings: SettingsFactory, redis: Redis, submit: Submit, shapes: ModelSpec
) -> None:
    store = Store(redis, make_settings(limits={"queued:a": 3}))
    ids = [submit("a", store=store) for _ in range(3)]
    with pytest.raises(LimitReached, match="queued:a is 3, it stands at 3") as caught:
        submit("a", store=store)
    assert caught.value.retry_after_s == 5
    submit("b", store=store)
    store.cancel(ids[0])
    submit("a", store=store)
    settle_all(store, shapes, outcome=Outcome.RETURNED)
    with pytest.raises(LimitReached):
        submit("a", store=store)
    settle_all(store, shapes)
    assert redis.hgetall("gm:waiting") == {}
    submit("a", store=store)


def test_of_many_those_within_the_quota_are_stored_and_the_rest_are_told(
    make_settings: SettingsFactory, redis: Redis, shapes: ModelSpec
) -> None:
    store = Store(redis, make_settings(limits={"queued:*": 5}))
    job_input = shapes.parse_input({"prompt": "x"})
    told = store.submit_many([JobRequest(new_job_id(), "a", shapes, job_input) for _ in range(8)])

    assert [one.refusal is None for one in told] == [True] * 5 + [False] * 3
    assert told[-1].refusal is not None
    assert told[-1].refusal[:3] == ("queued:a", 5.0, 5.0)
    assert sum(store.queue_depths().values()) == 5


def test_submissions_a_minute_are_bounded(make_settings: SettingsFactory, redis: Redis, submit: Submit) -> None:
    store = Store(redis, make_settings(limits={"rate:a": 2}))
    submit("a", store=store), submit("a", store=store)
    with pytest.raises(LimitReached, match="rate:a") as caught:
        submit("a", store=store)
    assert 1 <= (caught.value.retry_after_s or 0) <= 60
    redis.delete("gm:rate:a")  # the minute is over
    submit("a", store=store)


def test_a_days_gpu_seconds_are_bounded(
    make_settings: SettingsFactory, redis: Redis, submit: Submit, shapes: ModelSpec
) -> None:
    store = Store(redis, make_settings(limits={"budget:a": 1.5}))
    for _ in range(2):
        submit("a", store=store)
        settle_all(store, shapes, gpu_ms=800)
    with pytest.raises(LimitReached, match=r"budget:a is 1.5, it stands at 1.6") as caught:
        submit("a", store=store)
    assert 1 <= (caught.value.retry_after_s or 0) <= 86400
    submit("b", store=store)
    (used,) = redis.scan_iter("gm:usage:*")
    assert redis.ttl(used) > 86400


def test_a_repeated_submission_counts_once(make_settings: SettingsFactory, redis: Redis, submit: Submit) -> None:
    store = Store(redis, make_settings(limits={"queued:a": 1}))
    assert submit("a", store=store, job_id="j") == submit("a", store=store, job_id="j") == "j"
    first = submit("b", store=store, idempotency_key="k", body_hash="1")
    assert submit("b", store=store, idempotency_key="k", body_hash="1") == first


def test_a_refused_job_leaves_its_idempotency_key_free(
    make_settings: SettingsFactory, redis: Redis, submit: Submit
) -> None:
    store = Store(redis, make_settings(limits={"queued:a": 0}))
    with pytest.raises(LimitReached):
        submit("a", store=store, idempotency_key="k", body_hash="1")
    assert list(redis.scan_iter()) == []


def waiting(store: Store, job_id: str) -> Waiting:
    standing = store.standing(job_id)
    assert standing is not None
    assert standing.record == store.get(job_id)
    assert standing.waiting is not None
    return standing.waiting


def test_a_waiting_job_is_told_what_it_waits_for(
    make_settings: SettingsFactory, redis: Redis, submit: Submit, shapes: ModelSpec
) -> None:
    store = Store(redis, make_settings(limits={"tenant:*": 1}))
    first, second = submit("a", store=store), submit("a", store=store)
    assert waiting(store, second) == Waiting(1, "no_worker")
    redis.sadd("rq:workers:p1", "rq:worker:w")
    assert waiting(store, second) == Waiting(1, "turn")
    (claim,) = store.claim("w", CLASSES, [Want(shapes.batch_key, 8)]).claims
    assert claim.job_id == first
    assert waiting(store, second) == Waiting(0, "limit", "tenant:a", 1, 1)
    redis.hset("gm:lim:set", "tenant:a", 2)
    assert waiting(store, second) == Waiting(0, "turn")
    redis.set("rq:suspended", 1)
    assert waiting(store, second) == Waiting(0, "suspended")
    redis.delete("rq:suspended")
    store.settle([Settlement(first, claim.fence, Outcome.SCHEDULED, delay_ms=60_000)])
    assert waiting(store, first) == Waiting(None, "delay")
