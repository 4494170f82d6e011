"""Webhooks over HTTP: what became of them, and sending one once more, to a real receiver."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flask import Flask
from redis import Redis
from standardwebhooks import Webhook

from api.schemas import SCHEMAS
from api.services import Services
from genmill import api_keys, keys
from genmill.links import Links
from genmill.registry import load_registry
from genmill.settings import Settings
from genmill.store import Outcome, Settlement, Store, Want
from scheduler.batch_round import BatchRound
from tests.api.conftest import IMAGE_JOB, TEXT_JOB, Caller, finish_one
from tests.conftest import SettingsFactory
from tests.fleet import eventually
from tests.receiver import Receiver, receiving
from worker.deliveries import OUR_FAULT, DeliveryStation
from worker.engines.base import Postponed, Returned

CAPTIONS = load_registry().get("captions").batch_key
NDJSON = {"content-type": "application/x-ndjson"}
LINE = json.dumps({"custom_id": "a", **TEXT_JOB}).encode()


@pytest.fixture
def settings(make_settings: SettingsFactory) -> Settings:
    return make_settings(allow_private_urls=True, allow_http_webhooks=True, callback_delays_s=[0, 5])


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as one:
        yield one


@pytest.fixture
def deliver(store: Store, settings: Settings) -> Iterator[Callable[[], int]]:
    """Makes one attempt at each delivery that is due, and settles it as a worker does. Returns how many they were."""
    station = DeliveryStation(store, settings, Links(settings))

    def run() -> int:
        claims = store.claim("w1", [keys.CALLBACKS], [Want(keys.CALLBACKS, 8)]).claims
        station.admit(claims)
        fences = {claim.job_id: claim.fence for claim in claims}
        events: list[Any] = []
        eventually(lambda: events.extend(station.step()) or len(events) == len(claims))
        for event in events:
            if isinstance(event, Returned):
                end = Settlement(event.job_id, fences[event.job_id], Outcome.FINISHED, event.value)
            else:
                is_late = isinstance(event, Postponed)
                outcome = Outcome.SCHEDULED if is_late else Outcome.FAILED
                end = Settlement(event.job_id, fences[event.job_id], outcome, None, event.error, delay_ms=60_000)
            assert store.settle([end]) == [True]
        return len(claims)

    yield run
    station.close()


def ended_job(caller: Caller, store: Store, url: str) -> str:
    job_id = str(caller("POST", "/v1/jobs", json={**TEXT_JOB, "webhook": url}).json["id"])
    finish_one(store, CAPTIONS, {"outputs": [], "text": {"text": "a red circle"}})
    return job_id


def test_a_fault_of_ours_is_an_attempt_that_tells_nothing_of_us(
    alice: Caller, store: Store, receiver: Receiver, deliver: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("/srv/secrets at 10.0.0.7")

    monkeypatch.setattr("worker.deliveries.signed_headers", broken)
    job_id = ended_job(alice, store, receiver.url)
    assert deliver() == 1
    (delivery,) = alice("GET", f"/v1/jobs/{job_id}/deliveries").json["data"]
    assert (delivery["state"], [one["status"] for one in delivery["attempts"]]) == ("waiting", [0])
    assert delivery["attempts"][0]["detail"] == OUR_FAULT


def test_what_is_sent_once_more_counts_as_a_submission(
    alice: Caller, store: Store, receiver: Receiver, deliver: Callable[[], int]
) -> None:
    job_id = ended_job(alice, store, receiver.url)
    assert deliver() == 1
    store.limits.set({"rate:alice": 2})
    told = alice("POST", f"/v1/jobs/{job_id}/redeliver")
    assert (told.status_code, told.headers["RateLimit"].split(";")[1]) == (202, "r=0")
    assert deliver() == 1
    refused = alice("POST", f"/v1/jobs/{job_id}/redeliver")
    assert (refused.status_code, refused.json["error"]["code"]) == (429, "limit_reached")
    assert 1 <= int(refused.headers["Retry-After"]) <= keys.RATE_WINDOW_S
    assert deliver() == 0


@pytest.fixture
def ended_batch(app: Flask, alice: Caller, store: Store, receiver: Receiver) -> str:
    services: Services = app.extensions["genmill"]
    answer = alice("POST", f"/v1/batches?webhook={receiver.url}", data=LINE, headers=NDJSON)
    assert answer.status_code == 202, answer.text
    turn = BatchRound(
        store, services.storage, services.registry, services.settings, leads=lambda: True, collect_every_s=0
    ).turn
    turn()
    finish_one(store, CAPTIONS, {"outputs": [], "text": {"text": "a red circle"}})
    turn()
    return str(answer.json["id"])


def test_a_webhook_is_sent_once_more_as_it_was(
    alice: Caller, store: Store, receiver: Receiver, deliver: Callable[[], int], settings: Settings
) -> None:
    job_id = ended_job(alice, store, receiver.url)
    (log,) = alice("GET", f"/v1/jobs/{job_id}/deliveries").json["data"]
    assert log["state"] == "waiting"
    assert set(log) == set(SCHEMAS["Delivery"]["required"])
    assert deliver() == 1
    (log,) = alice("GET", f"/v1/jobs/{job_id}/deliveries").json["data"]
    assert (log["event"], log["state"], log["next_attempt_at"]) == ("succeeded", "delivered", None)
    assert [(one["attempt"], one["status"], one["detail"]) for one in log["attempts"]] == [(1, 204, "answered 204")]

    answer = alice("POST", f"/v1/jobs/{job_id}/redeliver")

    assert set(answer.json) == set(SCHEMAS["Redelivery"]["required"])
    assert (answer.status_code, answer.json["redelivery"], answer.json["state"]) == (202, "queued", "waiting")
    assert deliver() == 1
    first, second = receiver.deliveries
    assert first.message_id == second.message_id == log["id"] == answer.json["id"]
    assert first.body == second.body
    for one in (first, second):
        Webhook(Links(settings).webhook_secret("alice")).verify(one.body, one.headers)
    (log,) = alice("GET", f"/v1/jobs/{job_id}/deliveries").json["data"]
    assert [one["attempt"] for one in log["attempts"]] == [1, 2]


def test_a_receiver_that_has_come_back_need_not_wait_for_the_schedule(
    alice: Caller, store: Store, receiver: Receiver, deliver: Callable[[], int]
) -> None:
    job_id = ended_job(alice, store, receiver.url)
    receiver.answers[:] = [503]
    deliver()
    (log,) = alice("GET", f"/v1/jobs/{job_id}/deliveries").json["data"]
    assert log["state"] == "waiting"
    assert log["next_attempt_at"] is not None
    assert deliver() == 0
    assert alice("POST", f"/v1/jobs/{job_id}/redeliver").json["redelivery"] == "queued"
    assert alice("POST", f"/v1/jobs/{job_id}/redeliver").json["redelivery"] == "pending"
    assert deliver() == 1
    assert len(receiver.deliveries) == 2


def test_what_was_given_up_gets_its_whole_schedule_again(
    alice: Caller, store: Store, receiver: Receiver, deliver: Callable[[], int]
) -> None:
    job_id = ended_job(alice, store, receiver.url)

    def attempt(*answers: int) -> str:
        receiver.answers[:] = answers
        assert deliver() == 1
        (log,) = alice("GET", f"/v1/jobs/{job_id}/deliveries").json["data"]
        return str(log["state"])

    assert attempt(410) == "failed"
    assert alice("POST", f"/v1/jobs/{job_id}/redeliver").json["redelivery"] == "queued"
    assert attempt(503) == "waiting"
    (log,) = alice("GET", f"/v1/jobs/{job_id}/deliveries").json["data"]
    assert [(one["attempt"], one["status"]) for one in log["attempts"]] == [(1, 410), (2, 503)]


def test_the_same_key_sends_once(
    alice: Caller, store: Store, receiver: Receiver, deliver: Callable[[], int], redis: Redis
) -> None:
    job_id = ended_job(alice, store, receiver.url)
    deliver()
    headers = {"Idempotency-Key": "k1"}
    assert alice("POST", f"/v1/jobs/{job_id}/redeliver", headers=headers).json["redelivery"] == "queued"
    deliver()
    again = alice("POST", f"/v1/jobs/{job_id}/redeliver", headers=headers)
    assert (again.status_code, again.json["redelivery"]) == (202, "replayed")
    assert again.headers["Idempotency-Replayed"] == "true"
    assert deliver() == 0
    other = ended_job(alice, store, receiver.url)
    deliver()
    refused = alice("POST", f"/v1/jobs/{other}/redeliver", headers=headers)
    assert (refused.status_code, refused.json["error"]["code"]) == (422, "idempotency_mismatch")
    assert redis.ttl("gm:idem:alice:k1") > 0


def test_what_cannot_be_sent_again_says_why(alice: Caller, store: Store, receiver: Receiver) -> None:
    quiet = alice("POST", "/v1/jobs", json=IMAGE_JOB).json["id"]
    early = alice("POST", "/v1/jobs", json={**IMAGE_JOB, "webhook": receiver.url}).json["id"]
    ended = ended_job(alice, store, receiver.url)
    cases: list[tuple[str, Any, str, str | None]] = [
        (quiet, None, "/webhook", "none"), (early, None, "/state", "queued"),
        (ended, {"delivery_id": "cb_other"}, "/delivery_id", "cb_other"),
        (ended, {"delivery_id": "a b"}, "/delivery_id", None), (ended, {"id": "x"}, "/id", None),
    ]  # fmt: skip
    for job_id, body, pointer, value in cases:
        answer = alice("POST", f"/v1/jobs/{job_id}/redeliver", **({} if body is None else {"json": body}))
        assert answer.status_code == 422, answer.text
        (fault,) = answer.json["errors"]
        assert fault["pointer"] == pointer
        assert value is None or fault["value"] == value
    assert alice("POST", f"/v1/jobs/{ended}/redeliver", data=b"[]", headers={"content-type": "application/json"}
                 ).status_code == 400  # fmt: skip


def test_the_end_of_a_batch_is_told_signed_and_told_again(
    alice: Caller, bob: Caller, receiver: Receiver, deliver: Callable[[], int], settings: Settings, ended_batch: str
) -> None:
    assert deliver() == 1
    (told,) = receiver.deliveries
    message = Webhook(Links(settings).webhook_secret("alice")).verify(told.body, told.headers)
    view = alice("GET", f"/v1/batches/{ended_batch}").json
    assert (message["type"], message["data"]["id"]) == ("batch.completed", ended_batch)
    assert message["data"] == view
    assert "." not in told.message_id
    (log,) = alice("GET", f"/v1/batches/{ended_batch}/deliveries").json["data"]
    assert (log["id"], log["event"], log["state"]) == (told.message_id, "completed", "delivered")
    assert alice("POST", f"/v1/batches/{ended_batch}/redeliver").json["redelivery"] == "queued"
    assert deliver() == 1
    assert receiver.deliveries[1].message_id == told.message_id
    assert receiver.deliveries[1].body == told.body
    assert bob("GET", f"/v1/batches/{ended_batch}/deliveries").status_code == 404
    assert bob("POST", f"/v1/batches/{ended_batch}/redeliver").status_code == 404


def test_a_batch_that_runs_has_nothing_to_redeliver(alice: Caller, receiver: Receiver) -> None:
    batch_id = alice("POST", f"/v1/batches?webhook={receiver.url}", data=LINE, headers=NDJSON).json["id"]
    answer = alice("POST", f"/v1/batches/{batch_id}/redeliver")
    assert (answer.status_code, answer.json["errors"][0]["value"]) == (422, "in_progress")
    assert alice("GET", f"/v1/batches/{batch_id}/deliveries").json["data"] == []
    quiet = alice("POST", "/v1/batches?rerun=true", data=LINE, headers=NDJSON).json["id"]
    alice("POST", f"/v1/batches/{quiet}/cancel")
    assert alice("POST", f"/v1/batches/{quiet}/redeliver").json["errors"][0]["pointer"] == "/webhook"


def test_the_same_lines_keep_their_webhook(alice: Caller, receiver: Receiver, stored: Callable[[], set[str]]) -> None:
    first = alice("POST", f"/v1/batches?webhook={receiver.url}", data=LINE, headers=NDJSON)
    before = stored()
    for query in ("", f"?webhook={receiver.url}"):
        again = alice("POST", f"/v1/batches{query}", data=LINE, headers=NDJSON)
        assert (again.status_code, again.json["id"]) == (200, first.json["id"])
    other = alice("POST", f"/v1/batches?webhook={receiver.url}2", data=LINE, headers=NDJSON)
    assert (other.status_code, other.json["error"]["code"]) == (422, "invalid_request")
    assert other.json["errors"][0]["pointer"] == "/webhook"
    assert stored() == before


def test_the_webhook_of_a_batch_is_guarded_as_that_of_a_job(
    make_settings: SettingsFactory, redis: Redis, stored: Callable[[], set[str]]
) -> None:
    from api.app import create_app

    caller = Caller(create_app(make_settings()).test_client(), api_keys.create(redis, "alice", "test"))
    before = stored()
    for url in ("https://127.0.0.1/h", "http://example.org/h", "ftp://example.org/h", "https://[::1]/h"):
        for options in (
            {"path": f"/v1/batches?webhook={url}", "data": LINE, "headers": NDJSON},
            {"path": "/v1/batches", "json": {"resume_of": "batch_" + "0" * 26, "webhook": url}},
        ):
            answer = caller("POST", **options)
            assert answer.status_code in (404, 422), answer.text
            if "data" in options:
                assert answer.json["errors"][0]["pointer"] == "/webhook"
    assert stored() == before
