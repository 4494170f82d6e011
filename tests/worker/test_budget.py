"""Models within a budget of memory: who goes, where to, why, and what never fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from genmill import keys
from genmill.jobs import JobState
from genmill.registry import Registry
from genmill.store import Store
from tests.conftest import SettingsFactory
from tests.worker.loading import (
    GIB,
    Loader,
    all_done,
    measured_on,
    overdue,
    registry_of,
    resident,
    run_one,
    run_until,
    submit_to,
    turn,
)
from worker.engines.base import Device, write_memory
from worker.floor import Floor
from worker.switches import Cause

GPU = Device("a GPU", memory_bytes=16 * GIB, host_bytes=8 * GIB, dtype="float16")
"""12 GiB of it are for models."""

measured = partial(measured_on, GPU)
Serve = Callable[..., Floor]


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return registry_of(tmp_path, "abc")


@pytest.fixture
def serve(store: Store, registry: Registry, make_settings: SettingsFactory) -> Iterator[Serve]:
    """A floor that has served one job of each of the models, in this order."""
    floors: list[Floor] = []

    def start(loader: Loader, models: str, **settings: Any) -> Floor:
        floor = loader.floor(store, registry, make_settings(min_switch_interval_s=0, **settings))
        floors.append(floor)
        for name in models:
            run_one(floor, store, registry, name)
        return floor

    yield start
    for floor in floors:
        floor.close()


def test_the_least_recently_used_go_until_the_next_fits(serve: Serve, store: Store, registry: Registry) -> None:
    loader = Loader(gib={"a": 4, "b": 5, "c": 6}, device=GPU)
    floor = serve(loader, "aba")
    assert resident(floor) == "ba"
    run_one(floor, store, registry, "c")  # its size was not known before it was loaded
    assert resident(floor) == "ac"
    assert floor.residents.switches.counts == {Cause.OVERDUE: 0, Cause.IDLE: 0, Cause.BUDGET: 1}
    run_one(floor, store, registry, "b")
    assert resident(floor) == "cb"
    assert loader.loaded == ["a", "b", "c"]  # b came back from the host
    assert (loader.engines["b"].moves, loader.engines["a"].moves) == (["park", "unpark"], ["park"])


def test_a_budget_of_the_settings_goes_before_that_of_the_device(serve: Serve) -> None:
    sizes = {"a": 4.0, "b": 5.0}
    assert resident(serve(Loader(gib=sizes, device=GPU), "ab", memory_gib=8)) == "b"
    assert resident(serve(Loader(gib=sizes), "ab", memory_gib=8)) == "b"
    assert resident(serve(Loader(gib=sizes), "ab")) == "ab"


def test_what_never_fits_is_unavailable_with_the_figures(serve: Serve, store: Store, registry: Registry) -> None:
    loader = Loader(gib={"a": 1, "b": 13}, device=GPU)
    floor = serve(loader, "a")
    job_id = submit_to(store, registry, "b")

    def record() -> Any:
        return store.get(job_id)

    run_until(floor, lambda: record().error)
    assert record().state is JobState.QUEUED  # for another worker
    assert record().error["code"] == "model_unavailable"
    assert "13.00 GiB" in record().error["message"]
    assert "12.00 GiB" in record().error["message"]
    assert "GENMILL_MEMORY_GIB" in record().error["message"]
    assert loader.engines["b"].is_closed
    assert resident(floor) == "a"


def test_an_engine_starts_with_what_others_have_measured(serve: Serve, store: Store, registry: Registry) -> None:
    known = measured(registry.get("a"), 1, peaks={"unet 4x8x8": {2: 100, 4: 200}})
    store.memory.note("a GPU", {registry.get("a").batch_key: write_memory(known)})
    store.memory.note("another", {registry.get("b").batch_key: write_memory(known)})
    loader = Loader(device=GPU)
    serve(loader, "ab")
    assert (loader.engines["a"].recalled, loader.engines["b"].recalled) == ([known], [])


@pytest.mark.parametrize(
    "raw", ["", "{", "[]", "null", '{"device": "a GPU", "model_bytes": -1}', '{"model_bytes": 1}', "\udcff",
            '{"device": "a GPU", "model_bytes": 1, "peaks": {"unet": {"0": 5}}}',
            '{"device": "a GPU", "model_bytes": 1, "peaks": {"unet": {"1": 1e999}}}'],
)  # fmt: skip
def test_what_is_stored_and_broken_hurts_nobody(
    serve: Serve, store: Store, registry: Registry, redis: Redis, raw: str
) -> None:
    field = f"{registry.get('a').batch_key} a GPU"
    redis.hset(keys.PREFIXES["memory"], mapping={field: raw.encode("utf-8", "surrogateescape"), b"\xff": b"1"})
    loader = Loader(device=GPU)
    assert resident(serve(loader, "a")) == "a"
    assert loader.engines["a"].recalled == []


def test_the_host_keeps_the_last_that_were_used(serve: Serve, store: Store, registry: Registry) -> None:
    loader = Loader(gib={"a": 5, "b": 5, "c": 5}, device=GPU)
    floor = serve(loader, "abc", max_resident=1)
    assert loader.engines["a"].is_closed  # 8 GiB hold one of them
    assert loader.engines["b"].moves == ["park"]
    run_one(floor, store, registry, "b")
    assert loader.loaded == ["a", "b", "c"]
    run_one(floor, store, registry, "a")
    assert loader.loaded == ["a", "b", "c", "a"]
    floor.close()
    assert all(engine.is_closed for engine in loader.engines.values())


@pytest.mark.parametrize("host_gib", [0, 4.5])
def test_a_model_that_is_larger_than_the_host_budget_is_dropped(serve: Serve, host_gib: float) -> None:
    loader = Loader(gib={"a": 5, "b": 5}, device=GPU)
    serve(loader, "ab", max_resident=1, host_memory_gib=host_gib)
    assert (loader.engines["a"].is_closed, loader.engines["a"].moves) == (True, [])


def test_where_models_lie_in_the_hosts_memory_nothing_is_parked(serve: Serve) -> None:
    loader = Loader(gib={"a": 1, "b": 1})
    serve(loader, "ab", max_resident=1, host_memory_gib=8)
    assert (loader.engines["a"].is_closed, loader.engines["a"].moves) == (True, [])


def test_a_host_that_refuses_and_a_device_that_refuses_cost_a_loading(
    serve: Serve, store: Store, registry: Registry
) -> None:
    loader = Loader(gib={"a": 3, "b": 3}, device=GPU)
    floor = serve(loader, "a", max_resident=1)
    first = loader.engines["a"]
    first.may_move = False
    run_one(floor, store, registry, "b")
    assert first.is_closed
    run_one(floor, store, registry, "a")
    second = loader.engines["b"]
    assert second.moves == ["park"]
    second.may_move = False
    run_one(floor, store, registry, "b")
    assert second.is_closed
    assert loader.loaded == ["a", "b", "a", "b"]


def test_switches_are_counted_by_cause_with_their_cost(
    serve: Serve, store: Store, registry: Registry, redis: Redis
) -> None:
    loader = Loader(load_s=2.0)
    floor = serve(loader, "a", max_resident=1)
    loader.now_s += 2
    run_one(floor, store, registry, "b")  # a was idle
    loader.now_s += 2
    backlog = [submit_to(store, registry, "b", steps=3) for _ in range(12)]
    turn(floor)
    late = submit_to(store, registry, "c")
    overdue(redis, store, late)
    run_until(floor, lambda: all_done(store, [late]))
    loader.now_s += 2
    run_until(floor, lambda: all_done(store, backlog))
    switches = floor.residents.switches
    assert switches.counts == {Cause.OVERDUE: 1, Cause.IDLE: 2, Cause.BUDGET: 0}
    assert switches.seconds == {Cause.OVERDUE: 2.0, Cause.IDLE: 4.0, Cause.BUDGET: 0.0}


def test_models_do_not_make_room_more_often_than_the_settings_say(
    store: Store, registry: Registry, make_settings: SettingsFactory
) -> None:
    loader = Loader()
    floor = loader.floor(store, registry, make_settings(min_switch_interval_s=30, max_resident=1))
    for name in "ab":
        run_one(floor, store, registry, name)
    job_id = submit_to(store, registry, "a")
    for _ in range(5):
        turn(floor)
    assert resident(floor) == "b"
    loader.now_s = 30.0
    run_until(floor, lambda: all_done(store, [job_id]))
    assert resident(floor) == "a"
    floor.close()


def test_several_make_way_for_a_large_one_that_is_overdue(
    serve: Serve, store: Store, registry: Registry, redis: Redis
) -> None:
    key = registry.get("c").batch_key
    store.memory.note("a GPU", {key: write_memory(measured(registry.get("c"), 10))})
    loader = Loader(gib={"a": 5, "b": 5, "c": 10}, device=GPU)
    floor = serve(loader, "ab")
    backlog = [submit_to(store, registry, name, steps=3) for name in "ab" * 12]
    turn(floor)
    turn(floor)
    late = submit_to(store, registry, "c")
    overdue(redis, store, late)
    run_until(floor, lambda: all_done(store, [late]))
    assert not all_done(store, backlog)
    assert floor.residents.switches.counts[Cause.OVERDUE] == 2
    run_until(floor, lambda: all_done(store, backlog))
