"""What a worker publishes: only what is new, and nothing lost while Redis is away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import ConnectionError  # noqa: A004 - redis's own

from genmill import keys
from genmill.registry import Registry
from genmill.store import MemoryBook, Store
from tests.conftest import SettingsFactory
from tests.worker.loading import GIB, Loader, all_done, registry_of, run_until, submit_to
from worker.engines.base import read_memory
from worker.floor import Floor


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return registry_of(tmp_path, "ab")


@pytest.fixture
def floor(store: Store, registry: Registry, make_settings: SettingsFactory) -> Iterator[Floor]:
    """One model, then another in its place, which took two seconds."""
    loader = Loader(load_s=2.0, gib={"a": 1, "b": 3})
    floor = loader.floor(store, registry, make_settings(max_resident=1))
    for name in "ab":
        job_id = submit_to(store, registry, name)
        run_until(floor, lambda job_id=job_id: all_done(store, [job_id]))
    yield floor
    floor.close()


def report(floor: Floor) -> None:
    floor._reports._due_s = 0.0
    floor.report()


def test_the_memory_of_models_is_there_for_the_next_worker(floor: Floor, store: Store, registry: Registry) -> None:
    report(floor)
    key = registry.get("b").batch_key
    known = store.memory.on("cpu")
    memory = read_memory(known[key])
    assert memory is not None
    assert (memory.model_bytes, memory.peaks) == (3 * GIB, {"unet 4x8x8": {2: 100, 4: 200}})
    assert store.memory.on("another") == {}
    assert 0 < store.redis.ttl(keys.PREFIXES["memory"]) <= keys.MEMORY_TTL_S


def test_switches_add_up_and_are_told_once(
    floor: Floor, store: Store, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(*_: object) -> None:
        raise ConnectionError("away")

    with monkeypatch.context() as broken:
        broken.setattr(MemoryBook, "count_switches", down)
        with pytest.raises(ConnectionError):
            report(floor)
    for _ in range(2):
        report(floor)
    assert store.memory.switches()["idle count"] == 1
    assert store.memory.switches()["idle seconds"] == 2
    assert redis.ttl(keys.PREFIXES["switches"]) > 0


def test_it_is_told_now_and_then_only(floor: Floor, store: Store, redis: Redis) -> None:
    report(floor)
    redis.delete(keys.PREFIXES["memory"])
    floor.report()
    report(floor)
    assert store.memory.on("cpu") == {}  # not yet due; then nothing new
