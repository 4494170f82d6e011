"""The app over the session's Valkey, with auth on and a key for each of two tenants."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from redis import Redis

from api.app import create_app
from genmill import api_keys
from genmill.settings import Settings
from genmill.store import Outcome, Settlement, Store, Want
from tests.conftest import SettingsFactory

IMAGE_JOB: dict[str, Any] = {"model": "shapes", "input": {"prompt": "a red circle on a blue background"}}
TEXT_JOB: dict[str, Any] = {"model": "captions", "input": {"prompt": "a red"}}


class Caller:
    """A Flask test client that sends one tenant's key."""

    def __init__(self, client: FlaskClient, key: str | None) -> None:
        self.client = client
        self.key = key

    def __call__(self, method: str, path: str, headers: dict[str, str] | None = None, **options: Any) -> Any:
        auth = {"authorization": f"Bearer {self.key}"} if self.key else {}
        return self.client.open(path, method=method, headers={**auth, **(headers or {})}, **options)


@pytest.fixture
def settings(make_settings: SettingsFactory) -> Settings:
    return make_settings(max_image_bytes=200_000, max_image_pixels=512 * 512)


@pytest.fixture
def app(settings: Settings, redis: Redis) -> Flask:
    return create_app(settings)


@pytest.fixture
def alice(app: Flask, redis: Redis) -> Caller:
    return Caller(app.test_client(), api_keys.create(redis, "alice", "test"))


@pytest.fixture
def bob(app: Flask, redis: Redis) -> Caller:
    return Caller(app.test_client(), api_keys.create(redis, "bob", "test"))


@pytest.fixture
def stranger(app: Flask) -> Caller:
    return Caller(app.test_client(), None)


@pytest.fixture
def stored(redis: Redis, tmp_path: Path) -> Callable[[], set[str]]:
    """Names of all Redis keys, but for when API keys were last used, and of all stored files: equal before and after
    means that nothing was stored."""

    def look() -> set[str]:
        files = {str(path) for path in (tmp_path / "outputs").rglob("*") if path.is_file()}
        return {str(key) for key in redis.keys("*") if not key.startswith(b"gm:keyuse:")} | files

    return look


def finish_one(store: Store, batch_key: str, result: dict[str, Any]) -> str:
    """Claim one job as a worker does and settle it. Returns its id."""
    claim = store.claim("w1", ["p0", "p1", "p2", "p3"], [Want(batch_key, 1)]).claims[0]
    assert store.settle([Settlement(claim.job_id, claim.fence, Outcome.FINISHED, result=result)]) == [True]
    return claim.job_id
