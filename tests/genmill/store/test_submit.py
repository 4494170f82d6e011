"""Many jobs in one round trip: stored in order, each once, in groups that share their fields."""

from __future__ import annotations

import pytest
from redis import Redis

from genmill import keys
from genmill.jobs import JobRequest, JobState, new_job_id
from genmill.keys import JobClass
from genmill.registry import ModelSpec
from genmill.store import Store, Want


def requests(spec: ModelSpec, count: int) -> list[JobRequest]:
    """Of two tenants, two classes and two costs, in turn."""
    return [
        JobRequest(
            new_job_id(),
            "ab"[number % 2],
            spec,
            spec.parse_input({"prompt": f"circle {number}", "steps": 10 + number % 3}),
            job_class=(JobClass.P1, JobClass.P2)[number // 2 % 2],
            metadata={"number": number},
        )
        for number in range(count)
    ]


def test_many_jobs_are_what_each_is_alone(redis: Redis, store: Store, shapes: ModelSpec) -> None:
    asked = requests(shapes, 25)
    submitted = store.submit_many(asked)

    assert [one.job_id for one in submitted] == [request.job_id for request in asked]
    for request, record in zip(asked, store.get_many([one.job_id for one in submitted]), strict=True):
        assert record is not None
        assert (record.state, record.tenant, record.job_class) == (JobState.QUEUED, request.tenant, request.job_class)
        assert record.metadata == request.metadata
        assert record.request["input"]["prompt"] == request.input.prompt
        cost = redis.hget(keys.job(request.job_id), "cost")
        assert float(cost or 0) == shapes.cost_ms(request.input)
    assert store.queue_depths()["p1"] + store.queue_depths()["p2"] == 25


def test_many_jobs_take_one_round_trip(
    redis: Redis, store: Store, shapes: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.submit_many(requests(shapes, 1))
    sent: list[bytes] = []
    send = redis.connection_pool.connection_class.send_packed_command
    monkeypatch.setattr(
        "redis.connection.AbstractConnection.send_packed_command",
        lambda self, command, check_health=True: sent.append(command) or send(self, command, check_health),
    )
    store.submit_many(requests(shapes, 500))

    assert len(sent) == 1


def test_the_same_many_again_are_stored_once(store: Store, shapes: ModelSpec) -> None:
    asked = requests(shapes, 10)
    assert store.submit_many(asked) == store.submit_many(asked)
    assert sum(store.queue_depths().values()) == 10


def test_idempotency_keys_hold_within_and_across_calls(store: Store, shapes: ModelSpec) -> None:
    def request(body: str) -> JobRequest:
        job_input = shapes.parse_input({"prompt": "x", "seed": 1})
        return JobRequest(new_job_id(), "a", shapes, job_input, idempotency_key="k", body_hash=body)

    first, replayed, other = store.submit_many([request("1"), request("1"), request("2")])
    assert (first.is_replay, replayed.is_replay, other.is_mismatch) == (False, True, True)
    assert {replayed.job_id, other.job_id} == {first.job_id}
    assert store.submit_many([request("1")])[0].job_id == first.job_id


def test_nothing_is_asked_for_nothing(store: Store) -> None:
    assert store.submit_many([]) == []


def test_a_full_class_of_many_tenants_is_claimed_fairly(store: Store, shapes: ModelSpec) -> None:
    store.submit_many(requests(shapes, 40))
    claims = store.claim("w", ["p1"], [Want(shapes.batch_key, 10)]).claims
    assert sorted(claim.tenant for claim in claims) == ["a"] * 5 + ["b"] * 5
