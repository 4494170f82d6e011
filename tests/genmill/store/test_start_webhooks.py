"""Webhooks that are called when a worker first takes a job."""

from __future__ import annotations

from redis import Redis

from genmill import keys
from genmill.registry import ModelSpec
from genmill.store import Outcome, Settlement, Store, Want
from tests.genmill.store.conftest import Submit


def test_the_first_claim_tells_the_start_webhook_and_no_other_does(
    submit: Submit, store: Store, shapes: ModelSpec, redis: Redis
) -> None:
    job_id = submit(start_webhook="https://hooks.example/start")
    quiet = submit()
    claims = store.claim("w1", ["p1"], [Want(shapes.batch_key, 2)]).claims
    assert {claim.job_id for claim in claims} == {job_id, quiet}
    (delivery,) = store.claim("w1", ["callbacks"], [Want(keys.CALLBACKS, 8)]).claims
    assert delivery.call[1] == [job_id, "started"]
    assert (delivery.job_id, delivery.parent, delivery.tenant) == (
        f"cb_{job_id}_1_started", job_id, "host:hooks.example",
    )  # fmt: skip
    assert redis.hget(f"rq:job:{delivery.job_id}", "url") == b"https://hooks.example/start"
    store.settle([Settlement(claim.job_id, claim.fence, Outcome.RETURNED) for claim in claims])
    again = store.claim("w2", ["p1"], [Want(shapes.batch_key, 2)]).claims
    assert {claim.fence for claim in again} == {2}
    store.settle([Settlement(claim.job_id, claim.fence, Outcome.FINISHED, {}) for claim in again])
    assert not store.claim("w1", ["callbacks"], [Want(keys.CALLBACKS, 8)]).claims, (
        "no webhook was asked for at the end"
    )
