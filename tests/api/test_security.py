"""Headers of every answer, quotas as clients read them, and secrets that stay where they are."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from redis import Redis
from redis.exceptions import ConnectionError as RedisAway

from api.app import create_app
from genmill import api_keys
from genmill.store import Store
from genmill.store.limits import LimitBook
from tests.api.conftest import IMAGE_JOB, Caller
from tests.api.pictures import data_uri, picture
from tests.api.routes import routes
from tests.conftest import SettingsFactory


def assert_guarded(answer: Any) -> None:
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
    assert "default-src" in answer.headers["Content-Security-Policy"]
    assert answer.headers["Cache-Control"]
    assert answer.headers["x-request-id"]


def test_every_answer_has_the_headers(app: Flask, alice: Caller, stranger: Caller) -> None:
    for route in routes(app):
        for caller in (alice, stranger):
            assert_guarded(caller(route.method, route.path({})))


def test_so_do_answers_that_no_route_gives(alice: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_guarded(alice("GET", "/nowhere"))
    assert_guarded(alice("PUT", "/v1/jobs"))
    assert_guarded(alice("POST", "/v1/jobs", data=b"[" * 12_000_001, content_type="application/json"))

    def fail(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(Store, "get", fail)
    assert_guarded(alice("GET", "/v1/jobs/x"))


@pytest.mark.parametrize(
    ("url", "is_told"), [("https://gen.example", True), ("http://gen.example", False), (None, False)]
)
def test_only_https_is_made_to_stay(
    url: str | None, is_told: bool, make_settings: SettingsFactory, redis: Redis
) -> None:
    answer = create_app(make_settings(public_url=url)).test_client().get("/healthz")
    assert ("Strict-Transport-Security" in answer.headers) == is_told


Limited = Callable[..., Caller]


@pytest.fixture
def limited(make_settings: SettingsFactory, redis: Redis) -> Limited:
    """A caller whose tenant has these limits."""

    def make(**limits: float) -> Caller:
        app = create_app(make_settings(limits={f"{name}:alice": most for name, most in limits.items()}))
        return Caller(app.test_client(), api_keys.create(redis, "alice", ""))

    return make


def quota(answer: Any) -> tuple[str, str, int, int]:
    """Policy, name, what is left, seconds until it is there again."""
    found = re.fullmatch(r'"(\w+)";r=(\d+);t=(\d+)', answer.headers["RateLimit"])
    assert found
    return answer.headers["RateLimit-Policy"], found[1], int(found[2]), int(found[3])


def test_a_rate_is_counted_down_and_its_end_is_told(limited: Limited) -> None:
    alice = limited(rate=2)
    policy, name, left, reset_s = quota(alice("POST", "/v1/jobs", json=IMAGE_JOB))
    assert (policy, name, left) == ('"rate";q=2;w=60', "rate", 1)
    assert 1 <= reset_s <= 60
    assert quota(alice("POST", "/v1/jobs", json=IMAGE_JOB))[2] == 0
    refused = alice("POST", "/v1/jobs", json=IMAGE_JOB)
    assert refused.status_code == 429
    policy, name, left, reset_s = quota(refused)
    assert (policy, name, left) == ('"rate";q=2;w=60', "rate", 0)
    assert refused.headers["Retry-After"] == f"{reset_s}"
    assert refused.json["type"] == "https://iana.org/assignments/http-problem-types#quota-exceeded"
    assert refused.json["violated-policies"] == ["rate"]
    assert refused.json["error"]["code"] == "limit_reached"


@pytest.mark.parametrize(
    ("limits", "policy"),
    [
        ({"queued": 0}, '"queued";q=0;qu="concurrent-requests"'),
        ({"budget": 0}, '"budget";q=0;qu="gpu-seconds";w=86400'),
    ],
)
def test_other_quotas_are_told_in_their_units(limits: dict[str, float], policy: str, limited: Limited) -> None:
    refused = limited(**limits)("POST", "/v1/jobs", json=IMAGE_JOB)
    assert refused.status_code == 429
    told, name, left, reset_s = quota(refused)
    assert (told, left, refused.json["violated-policies"]) == (policy, 0, [name])
    assert refused.headers["Retry-After"] == f"{reset_s}"


def test_without_a_limit_or_without_redis_there_are_no_such_headers(
    alice: Caller, limited: Limited, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "RateLimit" not in alice("POST", "/v1/jobs", json=IMAGE_JOB).headers

    def away(*_: object) -> None:
        raise RedisAway

    monkeypatch.setattr(LimitBook, "rate", away)
    line = b'{"custom_id": "a", "model": "captions", "input": {"prompt": "a red"}}'
    answer = limited(rate=5)("POST", "/v1/batches", data=line, content_type="application/x-ndjson")
    assert answer.status_code == 202
    assert "RateLimit" not in answer.headers


def client_calls(client: FlaskClient, key: str, webhook: str) -> list[Any]:
    """Good and bad calls of every kind with a key."""
    auth = {"authorization": f"Bearer {key}"}
    made = client.post("/v1/jobs", json={**IMAGE_JOB, "webhook": webhook}, headers=auth)
    calls = [
        ("GET", "/v1/jobs", {}), ("GET", "/v1/status", {}), ("GET", "/v1/usage", {}), ("GET", "/v1/admin/keys", {}),
        ("GET", "/v1/admin/audit", {}), ("GET", "/v1/admin/tenants", {}), ("GET", f"/v1/jobs/{made.json['id']}", {}),
        ("POST", f"/v1/jobs/{made.json['id']}/cancel", {}), ("GET", "/nowhere", {}), ("PUT", "/v1/jobs", {}),
        ("POST", "/v1/jobs", {"data": b"{", "content_type": "application/json"}),
        ("POST", "/v1/jobs", {"json": {**IMAGE_JOB, "webhook": "https://127.0.0.1/"}}),
        ("POST", "/v1/jobs", {"json": {**IMAGE_JOB, "input": {"prompt": "x", "init_image": data_uri(picture())}}}),
        ("POST", "/v1/admin/keys", {"json": {"tenant": "A"}}), ("GET", "/v1/outputs/x?expires=1&signature=x", {}),
        ("DELETE", "/v1/admin/keys/nope", {}), ("PUT", "/v1/admin/limits/all", {"json": {"value": -1}}),
    ]  # fmt: skip
    return [made, *(client.open(path, method=method, headers=auth, **options) for method, path, options in calls)]


def test_no_secret_is_logged_or_echoed(
    make_settings: SettingsFactory, redis: Redis, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole run of the API with secrets that are easily found again: keys good, wrong and rotated, the signing key,
    a webhook's path and query."""
    caplog.set_level(logging.DEBUG)
    signing, hook, cause = (f"canary-{secrets.token_hex(12)}" for _ in range(3))
    client = create_app(make_settings(secret_key=signing, allow_private_urls=True)).test_client()
    key = api_keys.create(redis, "alice", "", scopes=["submit", "read", "admin"])
    new = api_keys.rotate(redis, key)
    wrong = f"gm_canary{secrets.token_hex(16)}"
    answers = client_calls(client, key, f"https://127.0.0.1/{hook}?token={hook}")
    for scheme in ("Bearer ", "Basic ", ""):
        answers.append(client.get("/v1/jobs", headers={"authorization": f"{scheme}{wrong}"}))
    answers.append(client.get("/v1/jobs", headers={"x-api-key": wrong}))
    answers.append(client.post("/v1/jobs", json={**IMAGE_JOB, "webhook": f"ftp://a:{hook}@x/"}, headers=_bearer(new)))

    def fail(*_: object) -> None:
        raise RuntimeError(cause)

    monkeypatch.setattr(Store, "standing", fail)
    answers.append(client.get("/v1/jobs/x", headers=_bearer(key)))
    assert answers[-1].status_code == 500

    told = "\n".join(f"{answer.status} {answer.headers} {answer.text}" for answer in answers)
    digests = [api_keys.digest_of(one) for one in (key, new)]
    for secret in (key, new, wrong, signing, hook, *digests):
        assert secret not in told
        assert secret not in caplog.text
    assert cause not in told
    assert cause in caplog.text  # so the log is really looked at


def test_settings_show_no_secret(make_settings: SettingsFactory) -> None:
    assert "canary-of-the-key" not in repr(make_settings(secret_key="canary-of-the-key"))


def _bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}
