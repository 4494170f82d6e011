"""One tenant can neither see, cancel nor guess what is another's: every route, from the app's own table."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO
from typing import Any
from urllib.parse import urlsplit

import pytest
from flask import Flask
from redis import Redis

from api.services import Services
from genmill.registry import load_registry
from genmill.store import Store
from tests.api.conftest import IMAGE_JOB, Caller, finish_one
from tests.api.pictures import picture
from tests.api.routes import Route, routes

SHAPES = load_registry().get("shapes").batch_key

Make = Callable[[Caller], str]


def make_job(caller: Caller) -> str:
    return str(caller("POST", "/v1/jobs", json=IMAGE_JOB).json["id"])


def make_file(caller: Caller) -> str:
    return str(caller("POST", "/v1/files", data={"content": (BytesIO(picture()), "x.png")}).json["id"])


def make_batch(caller: Caller) -> str:
    row = json.dumps({"custom_id": "a", **IMAGE_JOB}).encode()
    headers = {"content-type": "application/x-ndjson"}
    return str(caller("POST", "/v1/batches?rerun=true", data=row, headers=headers).json["id"])


OWNED: dict[str, tuple[Make, str]] = {
    "job_id": (make_job, "0" * 26),
    "batch_id": (make_batch, f"batch_{'0' * 26}"),
    "prediction_id": (make_job, "0" * 26),
    "file_id": (make_file, f"file_{'0' * 26}"),
}
"""Parameter of a route: how a tenant makes such a thing, and an id that nothing has. A route whose parameters stand
neither here nor below fails the test."""

SHARED = {
    "/v1/models/<name>": "models are the fleet's, not a tenant's",
    "/v1/models/<owner>/<name>": "as above",
    "/v1/models/<owner>/<name>/predictions": "as above",
    "/v1/models/<owner>/<name>/versions": "as above",
    "/v1/models/<owner>/<name>/versions/<version>": "as above",
    "/v1/outputs/<path:key>": "the signature is the right to it; tests of its own below",
    "/v1/admin/keys/<key_id>": "needs the scope admin, which is over all tenants: test_scopes",
    "/v1/admin/keys/<key_id>/rotate": "as above",
    "/v1/admin/tenants/<tenant>": "as above",
    "/v1/admin/limits/<scope>": "as above",
}

NOT_YET = {
    "/v1/jobs/<job_id>/preview", "/v1/jobs/<job_id>/redeliver", "/v1/batches/<batch_id>/redeliver",
}  # fmt: skip
"""Parts that the thing does not have so far, so that the owner too is refused."""

NO_BODY: dict[str, Any] = {}


def test_the_table_knows_every_route_with_a_parameter(app: Flask) -> None:
    unknown = {
        route.rule
        for route in routes(app)
        if route.parameters and route.rule not in SHARED and not set(route.parameters) <= set(OWNED)
    }
    assert unknown == set()
    assert set(SHARED) <= {route.rule for route in routes(app)}


def owned_routes(app: Flask) -> list[Route]:
    return [route for route in routes(app) if route.parameters and set(route.parameters) <= set(OWNED)]


def test_another_tenants_thing_is_as_absent_as_one_that_never_was(app: Flask, alice: Caller, bob: Caller) -> None:
    tried = 0
    for route in owned_routes(app):
        real = {name: OWNED[name][0](alice) for name in route.parameters}
        nothing = {name: OWNED[name][1] for name in route.parameters}
        theirs, nobodys = bob(route.method, route.path(real)), bob(route.method, route.path(nothing))
        assert theirs.status_code == nobodys.status_code == 404, route
        assert neutral(theirs, real) == neutral(nobodys, nothing), route
        with alice(route.method, route.path(real)) as owns:  # which ends an endless one
            assert owns.status_code < 400 or route.rule in NOT_YET, (route, owns.text)
        tried += 1
    assert tried >= 5


def neutral(answer: Any, ids: dict[str, str]) -> tuple[str, dict[str, str]]:
    """Body and headers without the id that was asked for and the request's own."""
    text, headers = answer.text, {**answer.headers, "x-request-id": ""}
    headers.pop("X-Request-Id", None)
    for value in ids.values():
        text = text.replace(value, "ID")
        headers = {name: told.replace(value, "ID") for name, told in headers.items()}
    headers["Content-Length"] = ""
    return text, headers


def test_what_another_tenant_tries_changes_nothing(app: Flask, alice: Caller, bob: Caller, redis: Redis) -> None:
    job_id = make_job(alice)
    before = redis.hgetall(f"rq:job:{job_id}")
    for route in owned_routes(app):
        bob(route.method, route.path({"job_id": job_id, "prediction_id": job_id}))
    assert redis.hgetall(f"rq:job:{job_id}") == before


def test_lists_and_cursors_hold_only_ones_own(alice: Caller, bob: Caller) -> None:
    job_id = make_job(alice)
    own = make_job(bob)
    assert [job["id"] for job in bob("GET", "/v1/jobs").json["data"]] == [own]
    assert bob("GET", f"/v1/jobs?after={job_id}").json == bob("GET", f"/v1/jobs?after={'0' * 26}").json


def test_another_tenants_file_is_no_init_image(alice: Caller, bob: Caller) -> None:
    answers = [
        bob("POST", "/v1/jobs", json={**IMAGE_JOB, "input": {"prompt": "x", "init_image": f"file:{file_id}"}})
        for file_id in (make_file(alice), OWNED["file_id"][1])
    ]
    assert [answer.status_code for answer in answers] == [422, 422]
    assert answers[0].json["errors"][0]["detail"] == answers[1].json["errors"][0]["detail"]


def test_idempotency_keys_are_each_tenants_own(alice: Caller, bob: Caller) -> None:
    headers = {"Idempotency-Key": "same"}
    one = alice("POST", "/v1/jobs", json=IMAGE_JOB, headers=headers)
    other = bob("POST", "/v1/jobs", json={**IMAGE_JOB, "priority": "p2"}, headers=headers)
    assert (one.status_code, other.status_code) == (202, 202)
    assert one.json["id"] != other.json["id"]


def test_usage_is_ones_own(alice: Caller, bob: Caller, store: Store) -> None:
    make_job(alice)
    finish_one(store, SHAPES, {})
    assert [row["tenant"] for row in alice("GET", "/v1/usage").json["data"]] == ["alice"]
    assert bob("GET", "/v1/usage").json["data"] == []
    assert bob("GET", "/v1/usage?tenant=alice").status_code == bob("GET", "/v1/usage?tenant=nobody").status_code == 403


@pytest.fixture
def links(app: Flask, alice: Caller, bob: Caller, store: Store) -> list[str]:
    """Links to an output of alice and to one of bob."""
    services: Services = app.extensions["genmill"]
    urls = []
    for caller, colour in ((alice, "red"), (bob, "blue")):
        job_id = make_job(caller)
        key = f"{job_id}/1/0.png"
        services.storage.put(key, picture(colour=colour), "image/png")
        finish_one(store, SHAPES, {"outputs": [{"key": key, "content_type": "image/png", "bytes": 1}]})
        parts = urlsplit(caller("GET", f"/v1/jobs/{job_id}").json["outputs"][0]["url"])
        urls.append(f"{parts.path}?{parts.query}")
    return urls


def test_a_link_opens_one_output_and_no_other(links: list[str], stranger: Caller, bob: Caller) -> None:
    own, other = (stranger("GET", link) for link in links)
    assert (own.status_code, other.status_code) == (200, 200)
    assert own.data != other.data
    (path, query), (other_path, other_query) = (link.split("?") for link in links)
    for forged in (f"{other_path}?{query}", f"{path}?{other_query}", path, f"{path}?expires=99999999999"):
        for caller in (stranger, bob):
            answer = caller("GET", forged)
            assert answer.status_code == 403
            assert answer.json["error"]["code"] == "forbidden"
