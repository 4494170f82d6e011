"""A fleet of real processes over a Valkey of its own, for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from genmill.connections import connect
from genmill.jobs import JobRequest, new_job_id
from genmill.keys import JobClass
from genmill.registry import load_registry
from genmill.settings import Settings, load_settings
from genmill.store import Store
from tests.fleet import SECRET, Fleet, Valkey

Submit = Callable[..., str]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Valkey]:
    server = Valkey(tmp_path / "valkey")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def fleet(tmp_path: Path, server: Valkey) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, server.url)
    yield fleet
    fleet.stop()


@pytest.fixture
def settings(tmp_path: Path, server: Valkey) -> Settings:
    return load_settings(
        redis_url=server.url, secret_key=SECRET, storage_url=f"file://{tmp_path}/outputs", allow_private_urls=True
    )


@pytest.fixture
def redis(settings: Settings) -> Iterator[Redis]:
    client = connect(settings)
    yield client
    client.close()


@pytest.fixture
def store(redis: Redis, settings: Settings) -> Store:
    return Store(redis, settings)


@pytest.fixture
def submit(store: Store) -> Submit:
    """Store a job of a shipped model; keyword arguments `tenant`, `job_class`, `webhook`, the rest is input."""
    registry = load_registry()

    def make(model: str = "shapes", **raw: Any) -> str:
        options = {name: raw.pop(name) for name in ("webhook", "ttl_s") if name in raw}
        tenant, job_class = raw.pop("tenant", "a"), JobClass(raw.pop("job_class", "p1"))
        spec = registry.get(model)
        raw.setdefault("prompt", "a red circle on a blue background")
        request = JobRequest(new_job_id(), tenant, spec, spec.parse_input(raw), job_class, **options)
        return store.submit(request)[0]

    return make
