"""Every route asks for a key with its scope: from the app's own table, held against the OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from flask import Flask
from redis import Redis

from api.app import create_app
from api.openapi import ALL_OPERATIONS
from genmill import api_keys
from genmill.api_keys import Scope
from tests.api.conftest import IMAGE_JOB, Caller
from tests.api.routes import PUBLIC, routes
from tests.conftest import SettingsFactory

OTHERS = {scope: [other.value for other in Scope if other is not scope] for scope in Scope}


@pytest.fixture
def caller_with(app: Flask, redis: Redis) -> Callable[..., Caller]:
    return lambda *scopes: Caller(app.test_client(), api_keys.create(redis, "alice", "", scopes=scopes))


def needed(app: Flask) -> dict[tuple[str, str], Scope]:
    """(method, path) -> scope, as the document says."""
    return {
        (operation.method.upper(), operation.path): operation.needed_scope
        for operation in ALL_OPERATIONS
        if not operation.is_open
    }


def test_without_a_key_only_the_public_routes_answer(app: Flask, stranger: Caller) -> None:
    for route in routes(app):
        answer = stranger(route.method, route.path({}))
        if route.rule in PUBLIC:
            assert answer.status_code != 401, route
        else:
            assert answer.status_code == 401, route
            assert answer.headers["WWW-Authenticate"].startswith("Bearer"), route


def test_a_key_without_the_scope_is_told_which_one_it_needs(app: Flask, caller_with: Callable[..., Caller]) -> None:
    without = {scope: caller_with(*OTHERS[scope]) for scope in Scope}
    for (method, path), scope in needed(app).items():
        answer = without[scope](method, path.replace("{", "").replace("}", ""))
        assert answer.status_code == 403, (method, path)
        assert answer.json["error"]["code"] == "scope_missing"
        assert answer.json["errors"][0]["limit"] == scope, (method, path)
        assert answer.json["errors"][0]["value"] == ", ".join(OTHERS[scope])
        assert f"scope {scope}" in answer.json["detail"]


def test_a_key_with_the_scope_alone_is_let_in(app: Flask, caller_with: Callable[..., Caller]) -> None:
    only = {scope: caller_with(scope.value) for scope in Scope}
    for (method, path), scope in needed(app).items():
        answer = only[scope](method, path.replace("{", "").replace("}", ""))
        assert answer.status_code not in (401, 403), (method, path, answer.text)


def test_the_document_names_the_scope(app: Flask, stranger: Caller) -> None:
    paths = stranger("GET", "/openapi.json").json["paths"]
    assert paths["/v1/jobs"]["post"]["security"][0] == {"bearer": ["submit"]}
    assert paths["/v1/jobs"]["get"]["security"][0] == {"bearer": ["read"]}
    assert paths["/v1/admin/keys"]["get"]["security"][0] == {"bearer": ["admin"]}
    assert paths["/v1/webhooks/default/secret"]["get"]["security"][0] == {"bearer": ["submit"]}
    assert paths["/healthz"]["get"]["security"] == []


def test_an_expired_key_is_refused(app: Flask, redis: Redis) -> None:
    key = api_keys.create(redis, "alice", "", lifetime_s=10, now_s=1_000_000_000)
    assert Caller(app.test_client(), key)("GET", "/v1/jobs").status_code == 401


def test_with_auth_off_there_is_no_admin_without_a_key(make_settings: SettingsFactory, redis: Redis) -> None:
    client = create_app(make_settings(auth=False)).test_client()
    assert client.get("/v1/usage").status_code == 200
    assert client.get("/v1/admin/keys").status_code == 401
    assert client.get("/v1/usage?tenant=*").status_code == 401
    key = api_keys.create(redis, "ops", "", scopes=["admin"])
    assert client.get("/v1/admin/keys", headers={"x-api-key": key}).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 202),
        ({"host": "127.0.0.1:8080"}, 202),
        ({"host": "[::1]:8080"}, 202),
        ({"host": "genmill.example"}, 202),
        ({"host": "evil.example:8080"}, 401),
        ({"host": "127.0.0.1.evil.example"}, 401),
        ({"host": "[evil"}, 401),
        ({"sec-fetch-site": "cross-site"}, 401),
        ({"sec-fetch-site": "same-origin"}, 202),
    ],
)
def test_with_auth_off_a_web_page_cannot_use_the_browser_of_someone_here(
    headers: dict[str, str], status: int, make_settings: SettingsFactory, redis: Redis
) -> None:
    """DNS rebinding and forged posts."""
    client = create_app(make_settings(auth=False, public_url="https://genmill.example")).test_client()
    assert client.post("/v1/jobs", json=IMAGE_JOB, headers=headers).status_code == status
    key = api_keys.create(redis, "bob", "")
    assert client.post("/v1/jobs", json=IMAGE_JOB, headers={**headers, "x-api-key": key}).status_code == 202
