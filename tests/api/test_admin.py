"""Keys, tenants, limits and the audit log over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Any

import pytest
from flask import Flask
from redis import Redis

from genmill import api_keys
from tests.api.conftest import IMAGE_JOB, Caller
from tests.api.pictures import data_uri, picture
from tests.api.test_bad_input import assert_problem


@pytest.fixture
def admin(app: Flask, redis: Redis) -> Caller:
    return Caller(app.test_client(), api_keys.create(redis, "ops", "the operator's", scopes=["admin"]))


def with_key(app: Flask, key: str) -> Caller:
    return Caller(app.test_client(), key)


def test_a_key_is_made_used_rotated_and_revoked(app: Flask, admin: Caller) -> None:
    made = admin(
        "POST", "/v1/admin/keys", json={"tenant": "acme", "name": "ci", "scopes": ["read"], "lifetime_s": 3600}
    )
    assert made.status_code == 201
    assert made.headers["Cache-Control"] == "no-store"
    key, key_id = made.json["key"], made.json["key_id"]
    assert (made.json["scopes"], made.json["last_used_at"]) == (["read"], None)
    assert with_key(app, key)("GET", "/v1/jobs").status_code == 200
    assert with_key(app, key)("POST", "/v1/jobs", json=IMAGE_JOB).status_code == 403

    rotated = admin("POST", f"/v1/admin/keys/{key_id}/rotate", json={"grace_s": 60})
    assert rotated.status_code == 201
    assert [with_key(app, one)("GET", "/v1/jobs").status_code for one in (key, rotated.json["key"])] == [200, 200]
    listed = {one["key_id"]: one for one in admin("GET", "/v1/admin/keys").json["data"]}
    assert listed[key_id]["rotated_to"] == rotated.json["key_id"]
    assert listed[key_id]["last_used_at"]
    assert "key" not in listed[key_id]

    gone = admin("DELETE", f"/v1/admin/keys/{key_id}")
    assert (gone.status_code, gone.json["key_id"]) == (200, key_id)
    assert with_key(app, key)("GET", "/v1/jobs").status_code == 401
    assert admin("DELETE", f"/v1/admin/keys/{key_id}").status_code == 404
    assert admin("POST", f"/v1/admin/keys/{rotated.json['key_id']}/rotate").status_code == 201


def test_a_key_is_not_named_by_itself_in_a_path(app: Flask, admin: Caller, alice: Caller) -> None:
    """Paths are logged by proxies."""
    assert admin("DELETE", f"/v1/admin/keys/{alice.key}").status_code == 404
    assert admin("POST", f"/v1/admin/keys/{alice.key}/rotate").status_code == 404
    assert alice("GET", "/v1/jobs").status_code == 200


def test_a_tenant_is_put_whole(admin: Caller, alice: Caller) -> None:
    facts = {"weight": 2, "classes": ["p1", "p2"], "max_queued": 2}
    put = admin("PUT", "/v1/admin/tenants/alice", json=facts)
    assert put.status_code == 200
    assert put.json == {
        "tenant": "alice", "weight": 2, "classes": ["p1", "p2"], "max_running": None, "max_queued": 2,
        "rate_per_minute": None, "gpu_seconds_per_day": None, "max_running_by_class": {},
    }  # fmt: skip
    refused = alice("POST", "/v1/jobs", json={**IMAGE_JOB, "priority": "p0"})
    assert refused.status_code == 403
    assert_problem(refused, "class_not_allowed")
    assert refused.json["errors"] == [
        {
            "pointer": "/priority",
            "detail": "priority p0 is not open to this tenant; it may use p1, p2",
            "limit": "p1, p2",
            "value": "p0",
        }
    ]
    assert [alice("POST", "/v1/jobs", json=IMAGE_JOB).status_code for _ in range(3)] == [202, 202, 429]

    assert admin("PUT", "/v1/admin/tenants/alice", json={}).json["classes"] == ["p0", "p1", "p2", "p3"]
    assert alice("POST", "/v1/jobs", json={**IMAGE_JOB, "priority": "p0"}).status_code == 202
    assert admin("GET", "/v1/admin/tenants/alice").json["max_queued"] is None
    assert [one["tenant"] for one in admin("GET", "/v1/admin/tenants").json["data"]] == ["alice", "ops"]
    assert admin("GET", "/v1/admin/tenants/nobody").status_code == 404


@pytest.mark.parametrize(
    ("classes", "wanted"),
    [(["p0", "p1", "p2"], "p1"), (["p0", "p2", "p3"], "p2"), (["p3"], "p3"), (["p0"], None)],
)
@pytest.mark.parametrize("dialect", ["native", "replicate", "openai"])
def test_a_job_that_names_no_class_is_of_one_that_is_open(
    classes: list[str], wanted: str | None, dialect: str, admin: Caller, alice: Caller, redis: Redis
) -> None:
    admin("PUT", "/v1/admin/tenants/alice", json={"classes": classes})
    path, body = {
        "native": ("/v1/jobs", IMAGE_JOB),
        "replicate": ("/v1/models/genmill/shapes/predictions", {"input": {"prompt": "x"}}),
        "openai": ("/v1/images/generations", {"prompt": "x"}),
    }[dialect]
    answer = alice("POST", path, json=body, headers={"x-stainless-read-timeout": "0.02"})
    assert answer.status_code == (403 if wanted is None else {"native": 202, "replicate": 201, "openai": 504}[dialect])
    jobs = alice("GET", "/v1/jobs").json["data"]
    assert [job["priority"] for job in jobs] == [wanted] * (wanted is not None)


def test_a_rotation_in_chunks_keeps_its_grace(admin: Caller, alice: Caller, redis: Redis) -> None:
    (key_id,) = (key["key_id"] for key in admin("GET", "/v1/admin/keys").json["data"] if key["tenant"] == "alice")
    sent = {
        "input_stream": BytesIO(b'{"grace_s": "long"}'), "content_type": "application/json",
        "environ_overrides": {"wsgi.input_terminated": True, "HTTP_TRANSFER_ENCODING": "chunked"},
    }  # fmt: skip
    answer = admin("POST", f"/v1/admin/keys/{key_id}/rotate", **sent)
    assert (answer.status_code, answer.json["errors"][0]["pointer"]) == (422, "/grace_s")


def test_nothing_of_a_job_of_a_closed_class_is_stored(
    admin: Caller, alice: Caller, stored: Callable[[], set[str]]
) -> None:
    admin("PUT", "/v1/admin/tenants/alice", json={"classes": ["p3"]})
    before = stored()
    body = {**IMAGE_JOB, "priority": "p1", "input": {"prompt": "x", "init_image": data_uri(picture())}}
    assert alice("POST", "/v1/jobs", json=body, headers={"Idempotency-Key": "k"}).status_code == 403
    assert stored() == before


def test_limits_are_put_and_taken_back(admin: Caller) -> None:
    assert admin("PUT", "/v1/admin/limits/tc:acme:p0", json={"value": 3}).json["value"] == 3
    (limit,) = [one for one in admin("GET", "/v1/admin/limits").json["data"] if one["scope"] == "tc:acme:p0"]
    assert limit == {"scope": "tc:acme:p0", "value": 3, "source": "operator", "live": 0}
    assert admin("PUT", "/v1/admin/limits/host:*", json={"value": 2}).status_code == 200
    assert admin("DELETE", "/v1/admin/limits/host:*").json == {"scope": "host:*", "value": 8, "source": "settings"}
    assert admin("DELETE", "/v1/admin/limits/tc:acme:p0").json["value"] is None
    assert admin("DELETE", "/v1/admin/limits/tc:acme:p0").status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "pointer"),
    [
        ("POST", "keys", {}, "/tenant"),
        ("POST", "keys", {"tenant": "A B"}, "/tenant"),
        ("POST", "keys", {"tenant": "a", "scopes": ["root"]}, "/scopes/0"),
        ("POST", "keys", {"tenant": "a", "scopes": []}, "/scopes"),
        ("POST", "keys", {"tenant": "a", "lifetime_s": -1}, "/lifetime_s"),
        ("POST", "keys", {"tenant": "a", "key": "mine"}, "/key"),
        ("POST", "keys/ID/rotate", {"grace_s": -1}, "/grace_s"),
        ("POST", "keys/ID/rotate", {"grace_s": "long"}, "/grace_s"),
        ("PUT", "tenants/a", {"weight": 0}, "/weight"),
        ("PUT", "tenants/a", {"weight": 1e13}, "/weight"),
        ("PUT", "tenants/a", {"max_queued": 10**300}, "/max_queued"),
        ("PUT", "tenants/a", {"gpu_seconds_per_day": 1e300}, "/gpu_seconds_per_day"),
        ("PUT", "limits/all", {"value": 1e300}, "/value"),
        ("PUT", "tenants/a", {"classes": ["p9"]}, "/classes/0"),
        ("PUT", "tenants/a", {"max_queued": 1.5}, "/max_queued"),
        ("PUT", "tenants/A", {"weight": 1}, "/tenant"),
        ("PUT", "tenants/a", {"colour": 1}, "/colour"),
        ("PUT", "limits/everything", {"value": 1}, "/value"),
        ("PUT", "limits/all", {"value": -1}, "/value"),
        ("PUT", "limits/all", {}, "/value"),
        ("PUT", "limits/all", {"value": False}, "/value"),
        ("PUT", "limits/all", {"value": "1"}, "/value"),
        ("PUT", "tenants/a", {"weight": True}, "/weight"),
        ("PUT", "tenants/a", {"max_queued": "1"}, "/max_queued"),
        ("PUT", "tenants/a", {"gpu_seconds_per_day": False}, "/gpu_seconds_per_day"),
        ("GET", "audit?limit=0", None, "/limit"),
        ("GET", "audit?after=x", None, "/after"),
        ("GET", f"audit?after=0-{2**64}", None, "/after"),
        ("GET", "usage?tenant=A", None, "/tenant"),
        ("GET", "usage?tenant=", None, "/tenant"),
    ],
)
def test_bad_input(
    method: str, path: str, body: Any, pointer: str, admin: Caller, stored: Callable[[], set[str]], redis: Redis
) -> None:
    key_id = admin("GET", "/v1/admin/keys").json["data"][0]["key_id"]
    before, log = stored(), redis.xlen("gm:audit")
    answer = admin(method, f"/v1/admin/{path.replace('ID', key_id)}", json=body)
    assert answer.status_code == 422, answer.text
    assert_problem(answer, "invalid_request")
    assert answer.json["errors"][0]["pointer"] == pointer
    assert (stored(), redis.xlen("gm:audit")) == (before, log)


def test_the_log_names_the_key_and_where_it_came_from(admin: Caller) -> None:
    admin("PUT", "/v1/admin/tenants/acme", json={"weight": 2})
    newest, *_ = admin("GET", "/v1/admin/audit").json["data"]
    assert (newest["who"], newest["where"]) == (api_keys.key_id_of(admin.key or ""), "127.0.0.1")
    assert (newest["action"], newest["target"], newest["after"]["weight"]) == ("tenant.change", "acme", 2)
    page = admin("GET", "/v1/admin/audit?limit=1").json
    assert page["has_more"]
    rest = admin("GET", f"/v1/admin/audit?after={page['after']}").json
    assert [entry["action"] for entry in rest["data"]] == ["key.create"]
