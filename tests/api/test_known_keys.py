"""A key that the process knows from before is worth no more than what Redis says of it as the job is stored."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask
from redis import Redis

from api import known_keys
from api.known_keys import FRESH_S, KnownKeys
from genmill import api_keys, keys
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


@pytest.mark.parametrize("more", READING.values(), ids=READING)
def test_nothing_is_read_for_a_key_that_was_not_looked_up(
    more: dict[str, Any], caller: Caller, looked_up: list[str]
) -> None:
    caller("POST", "/v1/jobs", json={**IMAGE_JOB, **more})
    assert looked_up


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
