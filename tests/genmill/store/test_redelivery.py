"""Deliveries of webhooks: what is told of them, and sending one once more."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from redis import Redis
from rq.job import Job
from rq.serializers import JSONSerializer

from genmill import keys
from genmill.errors import JobFailure, LimitReached
from genmill.jobs import Claim
from genmill.registry import ModelSpec
from genmill.store import Outcome, Settlement, Store, Want
from genmill.store.callbacks import DeliveryState, Subject
from tests.genmill.store.conftest import Submit

HOOK = "https://example.org/h"
End = Callable[..., Subject]


@pytest.fixture
def end(store: Store, submit: Submit, shapes: ModelSpec) -> End:
    """A job that has ended with a webhook."""

    def make(**options: str) -> Subject:
        job_id = submit(**({"webhook": HOOK} | options))
        (job,) = store.claim("w", ["p1"], [Want(shapes.batch_key, 1)]).claims
        store.settle([Settlement(job.job_id, job.fence, Outcome.FINISHED, {})])
        return Subject(job_id, keys.job(job_id))

    return make


def due(store: Store) -> list[Claim]:
    return list(store.claim("w", ["callbacks"], [Want(keys.CALLBACKS, 8)]).claims)


def send(store: Store, outcome: Outcome = Outcome.FINISHED, status: int = 204) -> Claim:
    """One attempt at the delivery that is due, as a worker makes it."""
    (claim,) = due(store)
    attempt = store.attempt(claim, b"the body")
    assert attempt is not None
    entry = {"id": claim.job_id, "attempt": attempt.number, "status": status, "detail": "answered", "at": 1.5}
    store.redis.rpush(keys.deliveries(claim.parent or ""), json.dumps(entry))
    store.redis.expire(keys.deliveries(claim.parent or ""), 60)
    error = None if outcome is Outcome.FINISHED else JobFailure()
    store.settle([Settlement(claim.job_id, claim.fence, outcome, {}, error, delay_ms=60_000)])
    return claim


def again(store: Store, subject: Subject, delivery_id: str | None = None, key: str | None = None) -> tuple[str, str]:
    return tuple(store.callbacks.redeliver(subject, delivery_id, key, "hash", 60))


def states(store: Store, subject: Subject) -> list[tuple[str, DeliveryState, list[int]]]:
    found = store.callbacks.deliveries(subject)
    return [(one.event, one.state, [attempt.number for attempt in one.attempts]) for one in found]


def test_a_delivery_is_told_of_from_the_moment_that_it_is_due(store: Store, end: End) -> None:
    subject = end()
    assert states(store, subject) == [("succeeded", DeliveryState.WAITING, [])]
    (claim,) = due(store)
    assert states(store, subject) == [("succeeded", DeliveryState.SENDING, [])]
    store.settle([Settlement(claim.job_id, claim.fence, Outcome.RETURNED)])
    send(store, Outcome.SCHEDULED, 503)
    (put_off,) = store.callbacks.deliveries(subject)
    assert (put_off.state, put_off.attempts[0].status, put_off.attempts[0].is_success) == (
        DeliveryState.WAITING, 503, False,
    )  # fmt: skip
    assert put_off.next_at is not None


@pytest.mark.parametrize("outcome", [Outcome.FINISHED, Outcome.FAILED, Outcome.CANCELED, Outcome.SCHEDULED])
def test_the_same_message_is_sent_again_and_its_schedule_begins_anew(
    outcome: Outcome, store: Store, end: End, redis: Redis
) -> None:
    subject = end()
    first = send(store, outcome, 204 if outcome is Outcome.FINISHED else 500)
    assert due(store) == []

    assert again(store, subject) == ("queued", first.job_id)

    assert redis.ttl(keys.job(first.job_id)) == -1
    (claim,) = due(store)
    assert claim.job_id == first.job_id
    assert claim.postponed == 0
    attempt = store.attempt(claim, b"another body")
    assert attempt is not None
    assert (attempt.number, attempt.before, attempt.body) == (2, 1, b"the body")
    store.settle([Settlement(claim.job_id, claim.fence, Outcome.FINISHED, {})])
    assert redis.ttl(keys.job(first.job_id)) > 0
    for registry in ("scheduled", "failed", "canceled"):
        assert redis.zcard(f"rq:{registry}:callbacks") == 0


def test_what_waits_or_is_sent_stays_as_it_is(store: Store, end: End) -> None:
    subject = end()
    assert again(store, subject)[0] == "pending"
    (claim,) = due(store)
    assert again(store, subject) == ("pending", claim.job_id)
    store.settle([Settlement(claim.job_id, claim.fence, Outcome.FINISHED, {})])
    assert [again(store, subject)[0] for _ in range(3)] == ["queued", "pending", "pending"]
    assert len(due(store)) == 1


def test_pending_keeps_the_key(store: Store, end: End) -> None:
    subject = end()
    assert again(store, subject, key="k")[0] == "pending"
    sent = send(store)
    assert again(store, subject, key="k") == ("replayed", sent.job_id)


@pytest.mark.parametrize("is_deleted", [False, True])
def test_what_rq_ended_in_its_lane_is_counted_once(is_deleted: bool, store: Store, end: End, redis: Redis) -> None:
    subject = end()
    end_by_rq(redis, store.callbacks.deliveries(subject)[0].delivery_id, is_deleted=is_deleted)
    assert again(store, subject)[0] == "queued"
    assert redis.hgetall(keys.PREFIXES["waiting"]) == {b"host:example.org": b"1"}
    send(store)
    assert redis.hgetall(keys.PREFIXES["waiting"]) == {}
    assert redis.zcard("rq:canceled:callbacks") == 0


@pytest.mark.parametrize("is_deleted", [False, True])
def test_an_attempt_that_runs_though_rq_ended_it_is_waited_for(
    is_deleted: bool, store: Store, end: End, redis: Redis
) -> None:
    subject = end()
    (claim,) = due(store)
    end_by_rq(redis, claim.job_id, is_deleted=is_deleted)
    assert again(store, subject) == ("pending", claim.job_id)
    assert states(store, subject) == [("succeeded", DeliveryState.SENDING, [])]
    assert due(store) == []

    assert store.settle([Settlement(claim.job_id, claim.fence, Outcome.FINISHED, {})]) == [False]
    redis.zadd(keys.run_scope("global"), {claim.job_id: 1}, xx=True)  # the lease of a deleted one runs out
    store.reap()

    assert again(store, subject) == ("queued", claim.job_id)
    send(store)
    assert list(redis.scan_iter("rq:execution:*")) == []
    assert redis.zcard(keys.PREFIXES["wip"] + keys.CALLBACKS) == redis.scard("rq:worker:w:executions") == 0
    assert (redis.hgetall(keys.PREFIXES["waiting"]), redis.hgetall(keys.PREFIXES["leases"])) == ({}, {})


def end_by_rq(redis: Redis, delivery_id: str, *, is_deleted: bool) -> None:
    job = Job.fetch(delivery_id, redis, serializer=JSONSerializer)
    job.delete() if is_deleted else job.cancel()


def test_a_known_key_changes_nothing(store: Store, end: End) -> None:
    subject = end()
    send(store)
    assert again(store, subject, key="k")[0] == "queued"
    first = send(store)
    assert again(store, subject, key="k") == ("replayed", first.job_id)
    assert due(store) == []
    assert store.callbacks.redeliver(subject, None, "k", "another", 60).verdict == "mismatch"
    assert again(store, subject, key="k2")[0] == "queued"


def test_what_is_sent_once_more_counts_in_the_tenants_rate(store: Store, end: End, redis: Redis) -> None:
    subject = end()
    send(store)
    tenant, limits = (redis.hget(subject.key, "tenant") or b"").decode(), store.limits
    limits.set({f"rate:{tenant}": 3})  # the submission was the first
    assert again(store, subject, key="k")[0] == "queued"
    assert again(store, subject)[0] == "pending", "which sends nothing"
    send(store)
    assert again(store, subject, key="k")[0] == "replayed"
    assert again(store, subject)[0] == "queued"
    send(store)
    rate = limits.rate(tenant)
    assert rate is not None
    assert rate.left == 0
    with pytest.raises(LimitReached) as caught:
        again(store, subject, key="late")
    assert (caught.value.scope, caught.value.limit) == (f"rate:{tenant}", 3)
    assert 1 <= (caught.value.retry_after_s or 0) <= keys.RATE_WINDOW_S
    assert due(store) == []
    redis.delete(keys.rate(tenant))  # its minute is over
    assert again(store, subject, key="late")[0] == "queued", "the key of what was refused is free"


def test_a_delivery_that_redis_has_forgotten_is_written_anew(store: Store, end: End, redis: Redis) -> None:
    subject = end(start_webhook="https://other.example/s")
    started, ended = sorted(due(store), key=lambda claim: claim.job_id.endswith("succeeded"))
    for claim in (started, ended):
        assert store.attempt(claim, b"x") is not None
        redis.rpush(keys.deliveries(subject.id), json.dumps(
            {"id": claim.job_id, "attempt": 7, "status": 204, "detail": "", "at": 1.0}))  # fmt: skip
        store.settle([Settlement(claim.job_id, claim.fence, Outcome.FINISHED, {})])
        redis.delete(keys.job(claim.job_id))
    redis.expire(keys.deliveries(subject.id), 60)
    assert states(store, subject) == [
        ("succeeded", DeliveryState.DELIVERED, [7]), ("started", DeliveryState.DELIVERED, [7]),
    ]  # fmt: skip

    assert again(store, subject) == ("queued", ended.job_id)
    assert again(store, subject, started.job_id) == ("queued", started.job_id)

    urls = {}
    for claim in due(store):
        assert (claim.parent, claim.call) == (subject.id, (keys.DELIVER, [subject.id, claim.call[1][1]], {}))
        attempt = store.attempt(claim, b"new")
        assert attempt is not None
        assert (attempt.number, attempt.before, attempt.body, attempt.tenant) == (8, 7, b"new", "a")
        urls[claim.job_id] = attempt.url
    assert urls == {ended.job_id: HOOK, started.job_id: "https://other.example/s"}
    assert redis.ttl(keys.job(ended.job_id)) == -1


def test_what_was_not_due_is_not_sent(store: Store, submit: Submit, end: End) -> None:
    quiet, early = submit(), submit(webhook=HOOK)
    assert again(store, Subject(quiet, keys.job(quiet)))[0] == "none"
    assert again(store, Subject(early, keys.job(early)))[0] == "early"
    store.cancel(quiet)
    assert store.cancel(early) == "dequeued"
    assert again(store, Subject(quiet, keys.job(quiet)))[0] == "none"
    assert states(store, Subject(quiet, keys.job(quiet))) == []
    assert again(store, Subject(early, keys.job(early)), "cb_of_another") == ("unknown", "cb_of_another")


def test_jobs_that_do_not_remember_theirs_have_those_of_the_log(store: Store, end: End, redis: Redis) -> None:
    """As those that ended under an earlier version."""
    subject = end()
    first = send(store)
    redis.hdel(subject.key, "told")
    assert states(store, subject) == [("succeeded", DeliveryState.DELIVERED, [1])]
    assert again(store, subject) == ("queued", first.job_id)


def test_of_many_runs_the_latest_are_remembered(store: Store, end: End, redis: Redis) -> None:
    subject = end()
    for _ in range(7):
        redis.hset(subject.key, mapping={"status": "queued"})
        redis.rpush("rq:queue:p1", subject.id)
        (job,) = store.claim("w", ["p1"], [Want("shapes@1/auto", 1)]).claims
        store.settle([Settlement(job.job_id, job.fence, Outcome.FINISHED, {})])
    told = redis.hget(subject.key, "told").split()
    assert [int(one.split(b"_")[2]) for one in told] == [8, 7, 6, 5, 4]
    assert again(store, subject)[1] == told[0].decode()
