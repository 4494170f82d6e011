"""Attempts at a delivery: counted, with the bytes of the first one, and only while the lease is held."""

from __future__ import annotations

import pytest
from redis import Redis

from genmill import keys
from genmill.jobs import Claim
from genmill.registry import ModelSpec
from genmill.store import Outcome, Settlement, Store, Want
from genmill.store.messages import Attempt
from tests.genmill.store.conftest import Submit

HOOK = "https://example.org/h"


def claim_delivery(store: Store) -> Claim:
    (delivery,) = store.claim("w", ["callbacks"], [Want(keys.CALLBACKS, 4, True)]).claims
    return delivery


@pytest.fixture
def delivery(store: Store, submit: Submit, shapes: ModelSpec) -> Claim:
    submit(webhook=HOOK)
    (job,) = store.claim("w", ["p1"], [Want(shapes.batch_key, 1)]).claims
    store.settle([Settlement(job.job_id, job.fence, Outcome.FINISHED, {})])
    return claim_delivery(store)


def test_all_attempts_send_the_body_of_the_first(store: Store, delivery: Claim) -> None:
    assert store.attempt(delivery, b"") == Attempt(1, HOOK, "a", b"")
    assert store.attempt(delivery, b"one") == Attempt(2, HOOK, "a", b"one")
    store.settle([Settlement(delivery.job_id, delivery.fence, Outcome.RETURNED)])
    assert store.attempt(claim_delivery(store), b"two") == Attempt(3, HOOK, "a", b"one")


def test_a_lost_lease_allows_no_attempt(store: Store, delivery: Claim) -> None:
    store.settle([Settlement(delivery.job_id, delivery.fence, Outcome.RETURNED)])
    assert store.attempt(delivery, b"one") is None
    claim_delivery(store)
    assert store.attempt(delivery, b"one") is None


def test_a_delivery_that_is_gone_stays_gone(store: Store, redis: Redis, delivery: Claim) -> None:
    redis.delete(keys.job(delivery.job_id))
    assert store.attempt(delivery, b"one") is None
    assert not redis.exists(keys.job(delivery.job_id))
