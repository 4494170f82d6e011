"""A key that the process knows from before is worth no more than what Redis says of it as the job is stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask
from redis import Redis

from api import known_keys, submission
from api.known_keys import FRESH_S, KnownKeys
from genmill import api_keys, keys, net
from genmill.inputs import Control, ImageInput
from genmill.store import Store
from tests.api.conftest import IMAGE_JOB, Caller

READING: dict[str, dict[str, Any]] = {
    "webhook": {"webhook": "http://localhost:1/"},
    "depends_on": {"depends_on": ["nobody"]},
    "image": {"input": {"prompt": "x", "init_image": "file:nobody"}},
    "reference": {"input": {"prompt": {"from": "job:nobody", "path": "text"}}},
}


@pytest.fixture
def key(redis: Redis) -> str:
    return api_keys.create(redis, "alice", "")


@pytest.fixture
def caller(app: Flask, key: str) -> Caller:
    """Of a key that is known."""
    caller = Caller(app.test_client(), key)
    assert caller("POST", "/v1/jobs", json=IMAGE_JOB).status_code == 202
    return caller


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Hashes of the keys that are looked up from now on."""
    found: list[str] = []
    look_up = known_keys.look_up
    monkeypatch.setattr(
        known_keys, "look_up", lambda redis, digest, now_s: (found.append(digest), look_up(redis, digest, now_s))[1]
    )
    return found


def test_a_key_that_was_revoked_submits_nothing(caller: Caller, key: str, redis: Redis, store: Store) -> None:
    store.limits.set({"rate:alice": 100})
    api_keys.revoke(redis, key)
    for body in (IMAGE_JOB, {}, *({**IMAGE_JOB, **more} for more in READING.values())):
        assert caller("POST", "/v1/jobs", json=body).status_code == 401, body
    answer = caller("POST", "/v1/jobs", data=b"{", content_type="application/json")
    assert (answer.status_code, "RateLimit" in answer.headers) == (401, False), "nothing of the tenant is told"
    assert len(store.list_ids("alice", None, 10)) == 1


def test_a_key_whose_facts_changed_counts_as_it_is_now(
    caller: Caller, key: str, redis: Redis, looked_up: list[str]
) -> None:
    api_keys.rotate(redis, key)  # it ends tomorrow, and is good until then
    for trips in (1, 1):
        assert caller("POST", "/v1/jobs", json=IMAGE_JOB).status_code == 202
        assert len(looked_up) == trips, "looked up once, then known again"


def test_a_key_that_may_no_more_submit_is_told_so(caller: Caller, key: str, redis: Redis) -> None:
    digest = api_keys.digest_of(key)
    raw: Any = redis.hget(keys.PREFIXES["apikeys"], digest)
    redis.hset(keys.PREFIXES["apikeys"], digest, raw.replace(b'"submit", ', b""))
    assert caller("POST", "/v1/jobs", json=IMAGE_JOB).status_code == 403


READERS = {"webhook": (net, "check_webhook"), "depends_on": (submission, "check_sources"),
           "image": (submission, "read_input_images"), "reference": (submission, "check_sources")}  # fmt: skip


@pytest.mark.parametrize("name", READING)
def test_nothing_is_read_for_a_key_that_was_not_looked_up(
    name: str, caller: Caller, looked_up: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    room, reader = READERS[name]
    seen_before = []
    read = getattr(room, reader)
    monkeypatch.setattr(
        room, reader, lambda *args, **more: (seen_before.append(bool(looked_up)), read(*args, **more))[1]
    )
    caller("POST", "/v1/jobs", json={**IMAGE_JOB, **READING[name]})
    assert seen_before == [True]


def test_every_image_of_an_input_counts_as_reading() -> None:
    roles = ImageInput(prompt="x", init_image="a", mask_image="b", control=Control(name="c", image="d")).images()
    for role in roles:
        given = {"control": {"name": "c", "image": "d"}} if role == "control" else {f"{role}_image": "file:x"}
        assert not submission.reads_nothing({"model": "m", "input": {"prompt": "x", **given}}), role


def test_a_body_that_is_too_large_tells_a_revoked_key_nothing(caller: Caller, key: str, redis: Redis) -> None:
    api_keys.revoke(redis, key)
    answer = caller("POST", "/v1/jobs", data=b"[" * 12_000_001, content_type="application/json")
    assert (answer.status_code, "RateLimit" in answer.headers) == (401, False)


def test_a_refusal_tells_a_known_key_its_rate(caller: Caller, store: Store) -> None:
    store.limits.set({"rate:alice": 100})
    answer = caller("POST", "/v1/jobs", json={})
    assert (answer.status_code, "RateLimit" in answer.headers) == (422, True)


@pytest.mark.parametrize("change", [api_keys.rotate, api_keys.revoke])
def test_a_submission_that_is_repeated_after_a_lost_answer_is_stored_once_whatever_became_of_its_key(
    change: Callable[[Redis, str], object], caller: Caller, key: str, redis: Redis, store: Store,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    send = Store._send_submits

    def lose_the_answer(self: Store, calls: Any) -> Any:
        send(self, calls)
        change(redis, key)
        return send(self, calls)

    monkeypatch.setattr(Store, "_send_submits", lose_the_answer)
    before = store.list_ids("alice", None, 10)
    answer = caller("POST", "/v1/jobs", json=IMAGE_JOB)
    assert answer.status_code == 202
    assert store.list_ids("alice", None, 10) == [answer.json["id"], *before]


def test_a_replayed_request_finds_its_job(caller: Caller, looked_up: list[str]) -> None:
    headers = {"Idempotency-Key": "one"}
    first, again = (caller("POST", "/v1/jobs", json=IMAGE_JOB, headers=headers).json["id"] for _ in range(2))
    assert first == again
    assert not looked_up


def test_a_key_is_known_for_a_while_and_not_past_its_end(redis: Redis) -> None:
    now_s = 1_800_000_000.0
    known = KnownKeys(redis, clock=lambda: now_s)
    short, long = (api_keys.create(redis, "alice", "", lifetime_s=life_s, now_s=now_s) for life_s in (30, 3600))
    assert known.recall(short) is None
    found = known.look_up(short)
    assert found is not None
    assert known.recall(short) == found
    assert known.look_up(long) == known.recall(long)
    now_s += 30
    assert known.recall(short) is None
    assert known.recall(long) is not None
    now_s += FRESH_S - 30
    assert known.recall(long) is None
    known.look_up(long)
    api_keys.revoke(redis, long)
    assert known.look_up(long) is None
    assert known.recall(long) is None, "what is gone is forgotten"


def test_only_so_many_are_remembered(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_keys, "MOST_KNOWN", 2)
    known = KnownKeys(redis)
    made = [api_keys.create(redis, "alice", "") for _ in range(3)]
    for one in (made[0], made[1], made[0], made[2]):
        known.look_up(one)
    assert [known.recall(one) is not None for one in made] == [True, False, True]
