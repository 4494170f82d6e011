"""Which models are loaded: few swaps where models alternate, and nobody left to wait for ever."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from genmill import keys
from genmill.jobs import JobRequest, JobState, new_job_id
from genmill.links import Links
from genmill.registry import ModelSpec, Registry
from genmill.store import Store
from genmill.views import job_view
from tests.conftest import SettingsFactory
from tests.worker.doubles import FakeEngine
from tests.worker.loading import CLASSES, Loader, all_done, overdue, registry_of, run_until, submit_to, turn
from worker.floor import Floor


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """Two models."""
    return registry_of(tmp_path, "ab")


@pytest.fixture
def loader() -> Loader:
    return Loader()


@pytest.fixture
def floor(store: Store, registry: Registry, loader: Loader, make_settings: SettingsFactory) -> Floor:
    return loader.floor(store, registry, make_settings(max_resident=1, min_switch_interval_s=0))


@pytest.fixture
def submit(store: Store, registry: Registry) -> Callable[..., str]:
    return partial(submit_to, store, registry)


def test_models_that_alternate_in_the_queue_swap_a_fifth_as_often_as_first_come_would(
    floor: Floor, store: Store, submit: Callable[..., str], loader: Loader
) -> None:
    ids = [submit("ab"[number % 2]) for number in range(60)]
    run_until(floor, lambda: all_done(store, ids))
    assert loader.loaded == ["a", "b"]
    assert floor.residents.switches.total * 5 <= 59
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
    assert floor.residents._leaving
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


def test_who_asks_for_a_job_hears_that_its_model_is_loading(
    store: Store, make_settings: SettingsFactory, registry: Registry, submit: Callable[..., str]
) -> None:
    settings, loader, ids, seen = make_settings(), Loader(), list[str](), list[tuple[Any, Any, Any]]()

    def look() -> None:
        record, snapshot = store.get(ids[-1]), store.events.look(ids[-1:], {})[ids[-1]]
        assert record is not None
        view = job_view(record, Links(settings))
        assert snapshot is not None
        seen.append((view["state"], view["waiting_for"], snapshot.progress or view["progress"]))

    def load(spec: ModelSpec) -> FakeEngine:
        look()
        return loader(spec)

    floor = Floor(store, registry, settings, load=load)
    for _ in range(2):
        ids.append(submit("a"))
        floor.turn_over("w", CLASSES, None, new_job_id())
        look()
        run_until(floor, lambda: all_done(store, ids))
        look()
    floor.close()

    running, done = ("running", None, None), ("succeeded", None, None)
    assert seen == [("running", {"reason": "loading"}, None), running, done, running, done]
