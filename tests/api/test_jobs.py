"""Submit, read, wait, list, cancel."""

from __future__ import annotations

import threading
import time
from datetime import datetime
from typing import Any

import pytest
from redis import Redis
from redis.connection import Connection

from api import waiting
from api.seats import Seats
from genmill.jobs import JobState
from genmill.registry import Batching, load_registry
from genmill.settings import Settings
from genmill.store import Outcome, Settlement, Store, Want
from tests.api.conftest import IMAGE_JOB, TEXT_JOB, Caller, finish_one

SHAPES = load_registry().get("shapes").batch_key
CAPTIONS = load_registry().get("captions").batch_key
TEXT_RESULT = {
    "text": {"text": "circle", "finish_reason": "stop", "prompt_tokens": 2, "completion_tokens": 1},
    "receipt": {},
}


def test_submit_and_read(alice: Caller, settings: Settings) -> None:
    answer = alice("POST", "/v1/jobs", json={**IMAGE_JOB, "metadata": {"a": [1]}})
    assert answer.status_code == 202
    assert answer.headers["Location"] == f"{settings.base_url}/v1/jobs/{answer.json['id']}"
    assert answer.headers["Retry-After"] == "1"
    read = alice("GET", f"/v1/jobs/{answer.json['id']}")
    assert read.status_code == 200
    assert read.json == answer.json
    job = read.json
    assert job["state"] == "queued"
    assert job["priority"] == "p1"
    assert job["position"] == 0
    assert job["metadata"] == {"a": [1]}
    assert job["input"]["steps"] == 20
    assert job["urls"]["cancel"] == f"{settings.base_url}/v1/jobs/{job['id']}/cancel"


def test_a_deadline_shows_and_one_that_cannot_be_kept_is_refused(alice: Caller, store: Store, redis: Redis) -> None:
    before = time.time()
    job = alice("POST", "/v1/jobs", json={**IMAGE_JOB, "deadline_s": 90}).json
    deadline = datetime.fromisoformat(job["deadline_at"]).timestamp()
    assert before + 89 < deadline < time.time() + 91

    (claim,) = store.claim("w", ["p1"], [Want(SHAPES, 1)]).claims
    store.settle([Settlement(claim.job_id, claim.fence, Outcome.FINISHED, {}, gpu_ms=1000, run_ms=60_000)])
    redis.sadd("rq:workers:p1", "rq:worker:w")
    refused = alice("POST", "/v1/jobs", json={**IMAGE_JOB, "deadline_s": 5})
    assert (refused.status_code, refused.json["error"]["code"]) == (422, "deadline_unmeetable")
    (fault,) = refused.json["errors"]
    assert (fault["pointer"], fault["value"]) == ("/deadline_s", "5")
    assert alice("POST", "/v1/jobs", json={**IMAGE_JOB, "deadline_s": 5, "best_effort": True}).status_code == 202


def test_reproducible_is_shown_and_told_to_the_worker(alice: Caller, store: Store) -> None:
    plain = alice("POST", "/v1/jobs", json=IMAGE_JOB).json
    exact = alice("POST", "/v1/jobs", json={**IMAGE_JOB, "reproducible": True}).json
    assert (plain["reproducible"], exact["reproducible"]) == (False, True)
    claims = store.claim("w", ["p1"], [Want(SHAPES, 2)]).claims
    assert [claim.call[1][0].get("reproducible", False) for claim in claims] == [False, True]


def test_position_counts_jobs_of_the_same_class_and_model(alice: Caller) -> None:
    for expected in range(3):
        assert alice("POST", "/v1/jobs", json={**IMAGE_JOB, "priority": "p3"}).json["position"] == expected
    assert alice("POST", "/v1/jobs", json={**IMAGE_JOB, "priority": "p0"}).json["position"] == 0


def test_an_alias_names_the_model(alice: Caller) -> None:
    assert alice("POST", "/v1/jobs", json={**IMAGE_JOB, "model": "shapes-64"}).json["model"] == "shapes"


def test_a_bare_get_does_not_wait(alice: Caller) -> None:
    job_id = alice("POST", "/v1/jobs", json=IMAGE_JOB).json["id"]
    started = time.monotonic()
    alice("GET", f"/v1/jobs/{job_id}")
    assert time.monotonic() - started < 0.5


def test_prefer_wait_returns_at_the_end(alice: Caller, store: Store) -> None:
    threading.Timer(0.4, finish_one, (store, CAPTIONS, TEXT_RESULT)).start()
    started = time.monotonic()
    answer = alice("POST", "/v1/jobs", json=TEXT_JOB, headers={"Prefer": "respond-async, wait=20"})
    assert answer.status_code == 200
    assert answer.json["state"] == "succeeded"
    assert answer.json["text"]["text"] == "circle"
    assert answer.headers["Preference-Applied"] == "wait=20"
    assert 0.3 < time.monotonic() - started < 5


@pytest.mark.parametrize("headers", [{"Prefer": "wait=1"}, {"Prefer": 'wait="1"'}])
def test_prefer_wait_gives_up_in_time(headers: dict[str, str], alice: Caller) -> None:
    started = time.monotonic()
    answer = alice("POST", "/v1/jobs", json=TEXT_JOB, headers=headers)
    assert answer.status_code == 202
    assert 0.9 < time.monotonic() - started < 1.4


def test_too_many_waiters_are_answered_at_once(alice: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_seats", Seats(1))
    with waiting.seat("bob"):
        started = time.monotonic()
        assert alice("POST", "/v1/jobs", json=TEXT_JOB, headers={"Prefer": "wait=30"}).status_code == 202
        assert time.monotonic() - started < 1


def test_an_end_just_before_the_wait_is_seen(alice: Caller, store: Store) -> None:
    job_id = alice("POST", "/v1/jobs", json=TEXT_JOB).json["id"]
    before = store.standing(job_id)
    assert before is not None
    finish_one(store, CAPTIONS, TEXT_RESULT)
    started = time.monotonic()
    assert waiting.wait_for_job(store, before, 5).record.state is JobState.SUCCEEDED
    assert time.monotonic() - started < 0.5


@pytest.mark.parametrize(("first", "again"), [('"k-1"', "k-1"), ("k-1", '"k-1"')])
def test_idempotency_key_replays(first: str, again: str, alice: Caller, bob: Caller, redis: Redis) -> None:
    one = alice("POST", "/v1/jobs", json=IMAGE_JOB, headers={"Idempotency-Key": first})
    body = dict(reversed(IMAGE_JOB.items()))
    two = alice("POST", "/v1/jobs", json=body, headers={"Idempotency-Key": again})
    assert two.json == one.json
    assert two.headers["Idempotency-Replayed"] == "true"
    other = bob("POST", "/v1/jobs", json=IMAGE_JOB, headers={"Idempotency-Key": first})
    assert other.json["id"] != one.json["id"]
    assert len(redis.keys("rq:job:*")) == 2


def test_idempotency_key_with_another_body_is_refused(alice: Caller, redis: Redis) -> None:
    alice("POST", "/v1/jobs", json=IMAGE_JOB, headers={"Idempotency-Key": "k"})
    answer = alice("POST", "/v1/jobs", json=TEXT_JOB, headers={"Idempotency-Key": "k"})
    assert answer.status_code == 422
    assert answer.json["error"]["code"] == "idempotency_mismatch"
    assert len(redis.keys("rq:job:*")) == 1


def test_list_pages_newest_first(alice: Caller, bob: Caller) -> None:
    ids = [alice("POST", "/v1/jobs", json=IMAGE_JOB).json["id"] for _ in range(5)]
    bob("POST", "/v1/jobs", json=IMAGE_JOB)
    seen: list[str] = []
    query = "limit=2"
    while True:
        page = alice("GET", f"/v1/jobs?{query}").json
        assert page["results"] == page["data"]
        seen += [job["id"] for job in page["data"]]
        if not page["has_more"]:
            break
        query = f"limit=2&after={page['after']}"
    assert sorted(seen) == sorted(ids)
    assert len(seen) == 5


def test_list_filters(alice: Caller, store: Store) -> None:
    alice("POST", "/v1/jobs", json=IMAGE_JOB)
    alice("POST", "/v1/jobs", json=TEXT_JOB)
    done = finish_one(store, CAPTIONS, TEXT_RESULT)

    def ids(query: str) -> list[str]:
        return [job["id"] for job in alice("GET", f"/v1/jobs?{query}").json["data"]]

    assert ids("state=succeeded") == [done]
    assert len(ids("state=queued")) == 1
    assert ids("model=captions") == [done]
    assert ids("state=failed") == []


def test_cancel_queued_and_again(alice: Caller) -> None:
    job_id = alice("POST", "/v1/jobs", json=IMAGE_JOB).json["id"]
    answer = alice("POST", f"/v1/jobs/{job_id}/cancel")
    assert answer.status_code == 200
    assert (answer.json["cancel"], answer.json["state"]) == ("dequeued", "canceled")
    assert answer.json["error"]["code"] == "canceled"
    assert alice("POST", f"/v1/jobs/{job_id}/cancel").json["cancel"] == "too_late"


def test_cancel_running_asks_the_worker(alice: Caller, store: Store) -> None:
    job_id = alice("POST", "/v1/jobs", json=IMAGE_JOB).json["id"]
    store.claim("w1", ["p1"], [Want(SHAPES, 1)])
    answer = alice("POST", f"/v1/jobs/{job_id}/cancel")
    assert (answer.json["cancel"], answer.json["state"]) == ("interrupting", "running")
    record = store.get(job_id)
    assert record is not None
    assert record.has_cancel_request


def test_models_tell_their_input(alice: Caller) -> None:
    models: dict[str, Any] = {model["id"]: model for model in alice("GET", "/v1/models").json["data"]}
    assert set(models) == {"shapes", "captions"}
    shapes = models["shapes"]
    assert shapes["input_schema"]["properties"]["width"]["default"] == 64
    assert shapes["limits"]["max_steps"] == 100
    assert "source" not in shapes
    assert "num_frames" not in shapes["input_schema"]["properties"]
    assert alice("GET", "/v1/models/shapes-64").json == shapes


def test_models_tell_how_they_batch_once_a_worker_has_loaded_them(alice: Caller, store: Store) -> None:
    def told() -> list[str | None]:
        return [model["batching"] for model in alice("GET", "/v1/models").json["data"]]

    assert told() == [None, None]
    store.forwards.publish_batching({"shapes@1/auto": Batching.STEP})
    store.forwards.publish_batching({"captions@1/auto": Batching.CONTINUOUS})
    assert told() == ["step", "continuous"]
    assert alice("GET", "/v1/models/shapes").json["batching"] == "step"


@pytest.mark.parametrize(("field", "value"), [("num_frames", 9), ("fps", 24)])
def test_a_model_of_single_images_makes_no_video(alice: Caller, field: str, value: int) -> None:
    answer = alice("POST", "/v1/jobs", json={"model": "shapes", "input": {"prompt": "x", field: value}})
    assert answer.status_code == 422
    assert f"/input/{field}" in [fault["pointer"] for fault in answer.json["errors"]]


def test_the_input_of_a_job_can_be_sent_again_as_it_is_shown(alice: Caller) -> None:
    shown = alice("POST", "/v1/jobs", json=IMAGE_JOB).json["input"]
    del shown["kind"]
    again = alice("POST", "/v1/jobs", json={"model": "shapes", "input": shown})
    assert again.status_code == 202


def test_status_counts(alice: Caller, store: Store) -> None:
    alice("POST", "/v1/jobs", json=IMAGE_JOB)
    alice("POST", "/v1/jobs", json=IMAGE_JOB)
    store.claim("w1", ["p1"], [Want(SHAPES, 1)])
    status = alice("GET", "/v1/status").json
    assert status["queues"]["p1"] == 1
    assert status["running"] == 1
    assert status["workers"] == []


def count_trips(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is sent to Redis from now on, an entry for each round trip."""
    send, trips = Connection.send_packed_command, []

    def counted(self: Connection, command: Any, check_health: bool = True) -> None:
        trips.append(command)
        send(self, command, check_health)

    monkeypatch.setattr(Connection, "send_packed_command", counted)
    return trips


def test_a_submission_asks_redis_once_and_a_look_twice(alice: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look asks for the key and for the job; a submission has its key held against what Redis knows as it stores."""
    job_id = alice("POST", "/v1/jobs", json=IMAGE_JOB).json["id"]
    trips = count_trips(monkeypatch)
    assert alice("GET", f"/v1/jobs/{job_id}").status_code == 200
    assert len(trips) == 2
    assert alice("POST", "/v1/jobs", json=IMAGE_JOB).status_code == 202
    assert len(trips) == 3


@pytest.mark.parametrize("name", ["stream", "preview", "reproducible", "best_effort"])
@pytest.mark.parametrize("value", [0, 1, "true", "no"])
def test_a_flag_is_true_or_false(name: str, value: object, alice: Caller) -> None:
    answer = alice("POST", "/v1/jobs", json={**TEXT_JOB, name: value})
    assert answer.status_code == 422
    assert answer.json["errors"][0]["pointer"] == f"/{name}"


def test_a_page_of_waiting_jobs_is_read_in_few_trips(
    alice: Caller, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [alice("POST", "/v1/jobs", json=TEXT_JOB).json["id"] for _ in range(3)]
    finish_one(store, CAPTIONS, TEXT_RESULT)
    trips = count_trips(monkeypatch)
    page = alice("GET", "/v1/jobs").json["data"]
    assert [(job["id"], job["position"]) for job in page] == [(ids[2], 1), (ids[1], 0), (ids[0], None)]
    assert len(trips) == 4  # the key, the ids, the jobs, what they wait for
