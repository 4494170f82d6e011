"""Which models are loaded: few swaps where models alternate, and nobody left to wait for ever."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis

from genmill import keys
from genmill.jobs import JobRequest, JobState, new_job_id
from genmill.keys import JobClass
from genmill.registry import ModelSpec, Registry, load_registry
from genmill.store import Store
from tests.conftest import SettingsFactory
from tests.fleet import eventually
from tests.worker.doubles import FakeEngine
from worker.floor import Floor

CLASSES = ["p0", "p1", "p2", "p3"]


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """Two models."""
    text = "\n".join(f'[[models]]\nname = "{name}"\nkind = "image"\nsource = "none"\nmax_batch = 4\n' for name in "ab")
    path = tmp_path / "models.toml"
    path.write_text(text)
    return load_registry(path)


class Loader:
    """Hands out fake engines, counts them, and lets loading take time on a clock of its own."""

    def __init__(self, load_s: float = 0.0) -> None:
        self.now_s, self.load_s = 0.0, load_s
        self.loaded: list[str] = []

    def __call__(self, spec: ModelSpec) -> FakeEngine:
        self.loaded.append(spec.name)
        self.now_s += self.load_s
        return FakeEngine(spec.max_batch)


@pytest.fixture
def loader() -> Loader:
    return Loader()


@pytest.fixture
def floor(store: Store, registry: Registry, loader: Loader, make_settings: SettingsFactory) -> Floor:
    floor = Floor(store, registry, make_settings(max_resident=1), load=loader)
    floor.residents._clock = lambda: loader.now_s
    return floor


@pytest.fixture
def submit(store: Store, registry: Registry) -> Callable[..., str]:
    def make(model: str, job_class: JobClass = JobClass.P1, steps: int = 2) -> str:
        spec = registry.get(model)
        job_input = spec.parse_input({"prompt": "x", "width": 64, "height": 64, "steps": steps})
        return store.submit(JobRequest(new_job_id(), "t", spec, job_input, job_class))[0]

    return make


def turn(floor: Floor) -> None:
    floor.turn_over("w", CLASSES, None, new_job_id())
    floor.step()
    floor.settle()


def overdue(redis: Redis, store: Store, job_id: str) -> None:
    """As if the job had been waiting for an hour."""
    record = store.get(job_id)
    assert record is not None
    for key in (keys.ready(record.job_class, record.batch_key), f"gm:lane:{record.job_class}:{record.batch_key}:t"):
        redis.zadd(key, {job_id: 1})
    redis.zadd(keys.batch_key_heads(record.job_class), {record.batch_key: 1})
    redis.hset(keys.job(job_id), "vd", 1)


def run_until(floor: Floor, is_done: Callable[[], bool]) -> None:
    def turned() -> bool:
        turn(floor)
        return is_done()

    eventually(turned, every_s=0.001)


def all_done(store: Store, ids: list[str]) -> bool:
    return all(record and record.state is JobState.SUCCEEDED for record in store.get_many(ids))


def test_models_that_alternate_in_the_queue_swap_a_fifth_as_often_as_first_come_would(
    floor: Floor, store: Store, submit: Callable[..., str], loader: Loader
) -> None:
    ids = [submit("ab"[number % 2]) for number in range(60)]
    run_until(floor, lambda: all_done(store, ids))
    assert loader.loaded == ["a", "b"]
    assert floor.residents.swaps * 5 <= 59
    floor.close()


def test_a_model_whose_jobs_are_overdue_does_not_wait_for_the_other_to_run_dry(
    floor: Floor, store: Store, submit: Callable[..., str], loader: Loader, redis: Redis
) -> None:
    first = [submit("a", steps=3) for _ in range(12)]
    turn(floor)
    late = submit("b")
    for _ in range(4):
        turn(floor)
    assert loader.loaded == ["a"], "not overdue yet"
    overdue(redis, store, late)
    run_until(floor, lambda: all_done(store, [late]))
    assert not all_done(store, first)
    assert loader.loaded[:2] == ["a", "b"]
    run_until(floor, lambda: all_done(store, first))
    floor.close()


def test_a_model_serves_as_long_as_it_took_to_load_before_it_goes(
    floor: Floor, store: Store, submit: Callable[..., str], loader: Loader, redis: Redis
) -> None:
    loader.load_s = 10.0
    for _ in range(40):
        submit("a", steps=3)
    turn(floor)
    late = submit("b")
    overdue(redis, store, late)
    loader.now_s += 9.9
    for _ in range(5):
        turn(floor)
    assert loader.loaded == ["a"]
    loader.now_s += 0.2
    run_until(floor, lambda: all_done(store, [late]))
    floor.close()


def test_a_model_that_made_way_for_nobody_takes_jobs_again(
    floor: Floor, store: Store, submit: Callable[..., str], loader: Loader, redis: Redis
) -> None:
    ids = [submit("a") for _ in range(12)]
    turn(floor)
    late = submit("b")
    overdue(redis, store, late)
    turn(floor)
    assert floor.residents._leaving is not None
    store.cancel(late)
    run_until(floor, lambda: all_done(store, ids))
    assert loader.loaded == ["a"]
    floor.close()


def test_a_residents_own_overdue_jobs_go_before_a_later_one_of_another(
    floor: Floor, store: Store, submit: Callable[..., str], loader: Loader, redis: Redis
) -> None:
    ids = [submit("a", steps=3) for _ in range(12)]
    for job_id in ids:
        overdue(redis, store, job_id)
    turn(floor)
    late = submit("b")
    overdue(redis, store, late)
    redis.zadd("gm:bkhead:p1", {floor.residents._registry.get("b").batch_key: 2})
    while "b" not in loader.loaded:
        turn(floor)
    assert [record.state for record in store.get_many(ids) if record and record.state is JobState.QUEUED] == []
    floor.close()


def test_a_long_backlog_of_one_tenant_does_not_keep_anothers_model_out(
    floor: Floor, store: Store, submit: Callable[..., str], loader: Loader, redis: Redis
) -> None:
    backlog = [submit("a", steps=3) for _ in range(40)]
    for job_id in backlog:
        overdue(redis, store, job_id)
    turn(floor)
    spec = floor.residents._registry.get("b")
    late = store.submit(
        JobRequest(new_job_id(), "other", spec, spec.parse_input({"prompt": "x", "width": 64, "height": 64}))
    )[0]
    redis.zadd(keys.ready("p1", spec.batch_key), {late: 1000})
    redis.zadd(keys.batch_key_heads("p1"), {spec.batch_key: 1000})  # overdue, but later than the whole backlog
    for _ in range(4):
        turn(floor)
    assert loader.loaded == ["a"]
    redis.hset("gm:vt", mapping={"t": 50_000, "other": 0})
    run_until(floor, lambda: all_done(store, [late]))
    assert not all_done(store, backlog)
    floor.close()
