"""Which job a repeated request finds, how long an answer is held, and who may hold one."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest
from flask import Flask
from redis import Redis

from api import waiting
from api.openai.holding import MOST_HELD_S, _hold_s
from api.openai.operations import OPENAI_OPERATIONS
from api.openai.retries import Connection, HeldJobs, is_retry
from api.seats import Seats
from genmill import keys
from genmill.errors import GenerationFailed, JobCanceled, JobFailure, StillRunning, TooBusy, TooManyWaiting
from genmill.jobs import JobRecord
from genmill.store import Outcome, Settlement, Store, Want
from tests.api.conftest import IMAGE_JOB, Caller, finish_one
from tests.api.test_jobs import CAPTIONS, SHAPES, TEXT_RESULT

COMPLETION = {"model": "captions", "prompt": "a red"}


@pytest.fixture
def held(redis: Redis) -> HeldJobs:
    return HeldJobs(redis, "alice", "hash")


def submitted(alice: Caller) -> str:
    return str(alice("POST", "/v1/jobs", json=IMAGE_JOB).json["id"])


def test_two_retries_find_one_job_each_again_and_again(alice: Caller, held: HeldJobs, store: Store) -> None:
    ids = [submitted(alice) for _ in range(2)]
    for job_id in ids:
        held.add(job_id)
        held.leave(job_id)
    for _ in range(2):
        assert [held.take(store) for _ in range(2)] == ids
        for job_id in ids:
            held.leave(job_id)
    held.remove(ids[0])
    assert held.take(store) == ids[1]


def test_a_retry_gets_no_job_whose_client_is_there(alice: Caller, held: HeldJobs, redis: Redis, store: Store) -> None:
    job_id = submitted(alice)
    held.add(job_id)
    retry = HeldJobs(redis, "alice", "hash", sleep=lambda _: held.renew(job_id))
    assert retry.take(store) is None
    assert retry.take(store) is None, "not even the next time"
    retry.leave(job_id)
    assert redis.exists(keys.attended(job_id)), "it is not the retry's to give away"
    held.leave(job_id)
    assert retry.take(store) == job_id


def test_a_retry_waits_until_a_mark_that_nobody_renews_is_gone(
    alice: Caller, held: HeldJobs, redis: Redis, store: Store
) -> None:
    job_id = submitted(alice)
    held.add(job_id)
    assert 0 < int(redis.ttl(keys.attended(job_id))) <= keys.ATTENDED_TTL_S  # type: ignore[arg-type]
    retry = HeldJobs(redis, "alice", "hash", sleep=lambda _: redis.delete(keys.attended(job_id)) and None)
    assert retry.take(store) == job_id
    held.renew(job_id)
    held.leave(job_id)
    mark: Any = redis.get(keys.attended(job_id))
    assert mark.startswith(retry._holder.encode()), "it is the retry's now"


def test_a_job_whose_answer_is_given_while_a_retry_looks_is_not_the_retrys(
    alice: Caller, held: HeldJobs, redis: Redis, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, other = (submitted(alice) for _ in range(2))
    for job_id in (answered, other):
        held.add(job_id)
    held.leave(other)
    get = store.get

    def get_while_the_answer_is_given(job_id: str) -> JobRecord | None:
        if job_id == answered:
            held.remove(answered)
            held.leave(answered)
        return get(job_id)

    monkeypatch.setattr(store, "get", get_while_the_answer_is_given)
    assert HeldJobs(redis, "alice", "hash").take(store) == other
    assert not redis.exists(keys.attended(answered))


def test_a_job_that_did_not_succeed_is_not_found(alice: Caller, held: HeldJobs, store: Store) -> None:
    failed, canceled, well = (submitted(alice) for _ in range(3))
    for job_id in (failed, canceled, well, "gone"):
        held.add(job_id)
        held.leave(job_id)
    (claim,) = store.claim("w", ["p1"], [Want(SHAPES, 1)]).claims
    assert claim.job_id == failed
    store.settle([Settlement(failed, claim.fence, Outcome.FAILED)])
    store.cancel(canceled)
    assert held.take(store) == well
    assert HeldJobs(held._redis, "bob", "hash").take(store) is None


def test_the_list_ends(alice: Caller, held: HeldJobs, redis: Redis) -> None:
    held.add(submitted(alice))
    assert 0 < int(redis.ttl(keys.held("alice", "hash"))) <= keys.HELD_TTL_S  # type: ignore[arg-type]
    assert keys.HELD_TTL_S > MOST_HELD_S


@pytest.mark.parametrize(("count", "wanted"), [("0", False), ("1", True), ("x", False), ("²", False), ("", False)])
def test_what_a_retry_is(count: str, wanted: bool, app: Flask) -> None:
    with app.test_request_context(headers={"x-stainless-retry-count": count}):
        assert is_retry() is wanted


@pytest.mark.parametrize(
    ("reads_s", "holds_s"), [("600", 599), ("2", 1), ("1", 0.5), ("9e9", 600), ("nan", 599), ("-1", 599), ("x", 599)]
)
def test_held_for_less_than_the_client_reads(reads_s: str, holds_s: float, app: Flask) -> None:
    with app.test_request_context(headers={"x-stainless-read-timeout": reads_s}):
        assert _hold_s() == holds_s


def test_a_closed_connection_is_seen(app: Flask) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, app.test_request_context(environ_overrides={"gunicorn.socket": ours}):
        client = Connection.of_request()
        ours.settimeout(60)  # as that of an event stream is
        assert client.is_told
        theirs.send(b"x")  # more of the same connection is no end of it
        assert not client.is_gone()
        ours.recv(1)
        theirs.close()
        assert client.is_gone()
        assert not client.is_told
    with app.test_request_context():
        assert not Connection.of_request().is_gone()
        assert not Connection.of_request().is_told


def test_no_seat_is_503_and_nothing_is_stored(alice: Caller, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_seats", Seats(1))
    with waiting.seat("bob"):
        answer = alice("POST", "/v1/completions", json=COMPLETION)
    assert (answer.status_code, answer.json["error"]["code"]) == (503, "too_many_waiting")
    assert answer.headers["Retry-After"] == "2"
    assert not redis.keys("rq:job:*")
    assert waiting._seats.take("bob") is None, "the seat is free again"


def test_a_job_that_outlasts_the_client_is_504_and_found_again(alice: Caller, store: Store) -> None:
    short = {"x-stainless-read-timeout": "0.2"}
    answer = alice("POST", "/v1/completions", json=COMPLETION, headers=short)
    assert (answer.status_code, answer.json["error"]["code"]) == (504, "still_running")
    assert answer.headers["Retry-After"] == "2"
    done = finish_one(store, CAPTIONS, TEXT_RESULT)
    again = alice("POST", "/v1/completions", json=COMPLETION, headers=short | {"x-stainless-retry-count": "1"})
    assert (again.status_code, again.json["job_id"]) == (200, done)


@pytest.mark.parametrize(
    ("outcome", "status"), [(Outcome.CANCELED, 409), (Outcome.FAILED, 500)], ids=["canceled", "failed"]
)
def test_only_what_may_help_is_tried_again(outcome: Outcome, status: int, alice: Caller, store: Store) -> None:
    error = JobCanceled() if outcome is Outcome.CANCELED else GenerationFailed("it broke")
    threading.Timer(0.2, _end_one, (store, outcome, error)).start()
    answer = alice("POST", "/v1/completions", json=COMPLETION)
    assert answer.status_code == status
    assert answer.headers.get("x-should-retry") == ("false" if outcome is Outcome.CANCELED else None)
    assert ("Retry-After" in answer.headers) is (outcome is Outcome.FAILED)


def test_a_job_whose_dependency_is_canceled_is_424(alice: Caller, store: Store) -> None:
    parent = submitted(alice)
    threading.Timer(0.2, store.cancel, (parent,)).start()
    body = {"model": "shapes", "prompt": "x", "depends_on": [parent]}
    answer = alice("POST", "/v1/images/generations", json=body)
    assert (answer.status_code, answer.json["error"]["code"]) == (424, "dependency_failed")


@pytest.mark.parametrize("path", [one.path for one in OPENAI_OPERATIONS])
def test_all_that_an_answer_that_was_held_may_be_is_documented(path: str, alice: Caller) -> None:
    told = alice("GET", "/openapi.json").json["paths"][path]["post"]["responses"]
    ends = (JobFailure, *JobFailure.__subclasses__(), StillRunning, TooManyWaiting, TooBusy)
    assert {str(kind.status) for kind in ends} <= told.keys()


def _end_one(store: Store, outcome: Outcome, error: Any) -> None:
    claim = store.claim("w1", ["p1"], [Want(CAPTIONS, 1)]).claims[0]
    store.settle([Settlement(claim.job_id, claim.fence, outcome, error=error)])
