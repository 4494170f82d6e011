"""Many jobs in one round trip: stored in order, each once, in groups that share their fields."""

from __future__ import annotations

from dataclasses import replace

import pytest
from redis import Redis

from genmill import keys
from genmill.jobs import JobRequest, JobState, new_job_id
from genmill.keys import JobClass
from genmill.registry import ModelSpec
from genmill.store import Outcome, Settlement, Store, Waiting, Want
from tests.conftest import SettingsFactory


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


def test_what_is_told_of_a_submitted_job_is_how_it_stands(
    redis: Redis, make_settings: SettingsFactory, shapes: ModelSpec
) -> None:
    store = Store(redis, make_settings(limits={"rate:a": 5}))
    (request,) = requests(shapes, 1)
    told = store.submit_told(request)
    assert (told.job_id, told.is_replay) == (request.job_id, False)
    assert told.standing == store.standing(request.job_id)
    assert told.standing is not None
    assert told.standing.record == store.get(request.job_id)
    assert told.standing.waiting == Waiting(0, "no_worker")
    assert told.standing.rate is not None
    assert (told.standing.rate.limit, told.standing.rate.left) == (5, 4)


def test_a_job_that_runs_or_has_ended_waits_for_nothing(store: Store, shapes: ModelSpec) -> None:
    (request,) = requests(shapes, 1)
    job_id = store.submit_told(request).job_id
    (claim,) = store.claim("w", ["p1"], [Want(shapes.batch_key, 1)]).claims
    running = store.standing(job_id)
    assert running is not None
    assert (running.record.state, running.waiting) == (JobState.RUNNING, None)
    store.settle([Settlement(job_id, claim.fence, Outcome.FINISHED, {"outputs": [1]})])
    ended = store.standing(job_id)
    assert ended is not None
    assert ended.record == store.get(job_id)
    assert (ended.record.result, ended.waiting, ended.rate) == ({"outputs": [1]}, None, None)


def test_a_replay_is_told_of_the_first_job(store: Store, shapes: ModelSpec) -> None:
    first, again = (replace(one, tenant="a", idempotency_key="k", body_hash="b") for one in requests(shapes, 2))
    store.submit_told(first)
    told = store.submit_told(again)
    assert (told.job_id, told.is_replay) == (first.job_id, True)
    assert told.standing == store.standing(first.job_id)


def test_a_job_that_never_was_stands_nowhere(store: Store) -> None:
    assert store.standing("absent") is None
