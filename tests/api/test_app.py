"""Keys, health, request ids, unexpected errors, and the OpenAPI document."""

from __future__ import annotations

import re

import pytest
from flask import Flask
from openapi_spec_validator import OpenAPIV31SpecValidator
from redis import Redis
from standardwebhooks import Webhook

from api.app import create_app
from genmill import api_keys
from genmill.errors import SettingsInvalid
from genmill.store import Store
from tests.api.conftest import IMAGE_JOB, Caller
from tests.conftest import SettingsFactory


def test_key_in_either_header(alice: Caller, stranger: Caller) -> None:
    assert alice("GET", "/v1/jobs").status_code == 200
    assert stranger("GET", "/v1/jobs", headers={"x-api-key": alice.key or ""}).status_code == 200
    assert stranger("GET", "/v1/jobs").status_code == 401


def test_a_revoked_key_is_refused(alice: Caller, redis: Redis) -> None:
    api_keys.revoke(redis, alice.key or "")
    assert alice("GET", "/v1/jobs").status_code == 401


def test_auth_off_makes_the_default_tenant(make_settings: SettingsFactory, redis: Redis, store: Store) -> None:
    client = create_app(make_settings(auth=False)).test_client()
    job_id = client.post("/v1/jobs", json=IMAGE_JOB).get_json()["id"]
    record = store.get(job_id)
    assert record is not None
    assert record.tenant == "default"
    assert client.get("/v1/jobs", headers={"authorization": "Bearer wrong"}).status_code == 401
    key = api_keys.create(redis, "bob", "test")
    assert client.get(f"/v1/jobs/{job_id}", headers={"x-api-key": key}).status_code == 404


def test_no_signing_key_stops_the_start(make_settings: SettingsFactory) -> None:
    with pytest.raises(SettingsInvalid, match="GENMILL_SECRET_KEY"):
        create_app(make_settings(secret_key="short"))


def test_health(stranger: Caller) -> None:
    assert stranger("GET", "/healthz").json == {"status": "ok"}
    assert stranger("GET", "/readyz").json["redis"] == "ok"


def test_a_redis_that_takes_no_writes_is_not_ready_and_said_so(stranger: Caller, alice: Caller, redis: Redis) -> None:
    redis.config_set("maxmemory", "1024")
    try:
        assert stranger("GET", "/readyz").status_code == 503
        refused = alice("POST", "/v1/jobs", json={"model": "captions", "input": {"prompt": "x"}})
    finally:
        redis.config_set("maxmemory", "0")
    assert (refused.status_code, refused.json["error"]["code"]) == (503, "store_unavailable")
    assert "takes no writes" in refused.json["detail"]
    assert stranger("GET", "/readyz").status_code == 200


def test_request_id_is_kept_or_made(stranger: Caller) -> None:
    assert stranger("GET", "/healthz", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    assert len(stranger("GET", "/healthz", headers={"x-request-id": "bad id"}).headers["x-request-id"]) == 32


def test_the_unexpected_is_a_problem_without_its_cause(alice: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a secret detail")

    monkeypatch.setattr(Store, "standing", fail)
    answer = alice("GET", "/v1/jobs/x")
    assert answer.status_code == 500
    assert answer.content_type == "application/problem+json"
    assert "secret detail" not in answer.text
    assert answer.headers["x-request-id"] in answer.json["detail"]


def test_webhook_secret_is_the_tenants_own_and_usable(alice: Caller, bob: Caller) -> None:
    secret = alice("GET", "/v1/webhooks/default/secret").json["key"]
    assert secret != bob("GET", "/v1/webhooks/default/secret").json["key"]
    Webhook(secret)


def test_openapi_is_valid_and_holds_every_route(app: Flask, stranger: Caller) -> None:
    document = stranger("GET", "/openapi.json").json
    OpenAPIV31SpecValidator(document).validate()
    described = {(method, path) for path, item in document["paths"].items() for method in item}
    routed = {
        (method.lower(), re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule))
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }
    assert described == routed
    names = [operation["operationId"] for item in document["paths"].values() for operation in item.values()]
    assert len(set(names)) == len(names)
