"""Models whose size is not what was thought: stale records, caches that no file tells, devices that refuse."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from genmill.errors import ModelUnavailable
from genmill.jobs import JobRequest, new_job_id
from genmill.registry import ModelSpec, Registry
from genmill.store import Store
from tests.conftest import SettingsFactory
from tests.worker.doubles import FakeEngine
from tests.worker.loading import GIB, Loader, measured_on, registry_of, resident, run_one, run_until, submit_to
from worker import sizes
from worker.engines.base import Device, ModelMemory, write_memory
from worker.engines.faults import lacks_memory
from worker.floor import Floor
from worker.residency import LOAD_RETRY_S

GPU = Device("a GPU", memory_bytes=16 * GIB, host_bytes=8 * GIB, dtype="float16")
"""12 GiB of it are for models."""
measured = partial(measured_on, GPU)
Serve = Callable[..., Floor]


class OutOfMemoryError(RuntimeError):
    """As torch names it."""


class FullDevice(Loader):
    """One that holds `room_gib` and refuses more; what is closed or parked takes nothing."""

    def __init__(self, room_gib: float, gib: dict[str, float]) -> None:
        super().__init__(gib=gib, device=GPU)
        self.room_gib = room_gib

    def __call__(self, spec: ModelSpec) -> FakeEngine:
        there = [one for one in self.engines.values() if not one.is_closed and one.moves[-1:] != ["park"]]
        if sum(one.model_bytes for one in there) / GIB + self.gib[spec.name] > self.room_gib:
            self.loaded.append(f"no {spec.name}")
            raise ModelUnavailable(f"model {spec.name}: no room") from OutOfMemoryError("2 GiB")
        return super().__call__(spec)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return registry_of(tmp_path, "abc")


@pytest.fixture
def serve(store: Store, registry: Registry, make_settings: SettingsFactory) -> Iterator[Serve]:
    floors: list[Floor] = []

    def start(loader: Loader, models: str, **settings: Any) -> Floor:
        floors.append(loader.floor(store, registry, make_settings(min_switch_interval_s=0, **settings)))
        for name in models:
            run_one(floors[-1], store, registry, name)
        return floors[-1]

    yield start
    for floor in floors:
        floor.close()


def why_not(floor: Floor, store: Store, registry: Registry, model: str) -> str:
    """The reason for which a job of this model is put off."""
    job_id = submit_to(store, registry, model)

    def error() -> Any:
        record = store.get(job_id)
        return record and record.error

    run_until(floor, error)
    message = str(error()["message"])
    store.cancel(job_id)
    return message


def note(store: Store, registry: Registry, model: str, memory: ModelMemory) -> None:
    store.memory.note("a GPU", {registry.get(model).batch_key: write_memory(memory)})


def test_a_record_that_says_it_never_fits_is_tried_once_and_proved_wrong(
    serve: Serve, store: Store, registry: Registry
) -> None:
    note(store, registry, "b", measured(registry.get("b"), 13))
    loader = Loader(gib={"a": 1, "b": 1}, device=GPU)
    floor = serve(loader, "ab")
    assert loader.loaded == ["a", "b"]
    assert resident(floor) == "b", "it was tried by itself"
    run_one(floor, store, registry, "a")
    assert resident(floor) == "ba", "and is known by then"


def test_a_record_that_proves_right_is_tried_once_and_refused_with_the_figures(
    serve: Serve, store: Store, registry: Registry
) -> None:
    note(store, registry, "b", measured(registry.get("b"), 14))
    loader = Loader(gib={"a": 1, "b": 13}, device=GPU)
    floor = serve(loader, "a")
    message = why_not(floor, store, registry, "b")
    for words in ("model b takes 13.00 GiB, as measured here", "12.00 GiB for models (GENMILL_MEMORY_GIB)"):
        assert words in message
    assert loader.engines["b"].is_closed
    run_one(floor, store, registry, "a")
    loader.now_s += LOAD_RETRY_S + 1
    assert "as measured here" in why_not(floor, store, registry, "b")
    assert loader.loaded == ["a", "b"], "a came back from the host, b was not loaded again"


@pytest.mark.parametrize(
    "other",
    [
        {"dtype": "bfloat16"}, {"torch": "0.1"}, {"max_batch": "64"}, {"optimizations": "compiled"},
        {"controlnets": "canny"}, {"attention": "flash"},
    ],
)  # fmt: skip
def test_what_was_measured_in_other_circumstances_tells_nothing(
    serve: Serve, store: Store, registry: Registry, other: dict[str, str]
) -> None:
    record = measured(registry.get("b"), 13, peaks={"unet 4x8x8": {1: 100}})
    note(store, registry, "b", replace(record, measured_with={**record.measured_with, **other}))
    loader = Loader(gib={"a": 1, "b": 1}, device=GPU)
    assert resident(serve(loader, "ab")) == "ab"
    assert loader.engines["b"].recalled == []


@pytest.mark.parametrize("changes", [{"measured_with": {}}, {"device": "another GPU"}])
def test_so_does_a_record_of_nobody_knows_what(
    serve: Serve, store: Store, registry: Registry, changes: dict[str, Any]
) -> None:
    note(store, registry, "b", replace(measured(registry.get("b"), 13), **changes))
    loader = Loader(gib={"a": 1, "b": 1}, device=GPU)
    assert resident(serve(loader, "ab")) == "ab"


def test_a_device_that_refuses_a_model_is_asked_again_once_the_idle_ones_are_gone(
    serve: Serve, store: Store, registry: Registry
) -> None:
    loader = FullDevice(10, {"a": 2, "b": 3, "c": 6})  # what c takes is not known before
    floor = serve(loader, "abc")
    assert loader.loaded == ["a", "b", "no c", "c"]
    assert resident(floor) == "c"
    assert floor.residents.switches.total == 2


def test_who_is_refused_alone_makes_nobody_go_again(serve: Serve, store: Store, registry: Registry) -> None:
    loader = FullDevice(10, {"a": 2, "b": 3, "c": 11})
    floor = serve(loader, "ab")
    assert "no room" in why_not(floor, store, registry, "c")
    assert loader.loaded == ["a", "b", "no c", "no c"]
    for name in "ab":
        run_one(floor, store, registry, name)
    loader.now_s += LOAD_RETRY_S + 1
    assert "no room" in why_not(floor, store, registry, "c")
    assert resident(floor) == "ab"
    loader.room_gib = 20  # another process has gone
    loader.now_s += LOAD_RETRY_S + 1
    run_one(floor, store, registry, "c")
    assert loader.loaded[-1] == "c"


def test_only_a_lack_of_memory_makes_others_go(serve: Serve, store: Store, registry: Registry) -> None:
    class Broken(Loader):
        def __call__(self, spec: ModelSpec) -> FakeEngine:
            if spec.name == "b":
                raise ModelUnavailable("no such file") from OSError("gone")
            return super().__call__(spec)

    floor = serve(Broken(gib={"a": 1}, device=GPU), "a")
    assert "could not be loaded" in why_not(floor, store, registry, "b")
    assert resident(floor) == "a"


def test_a_lack_of_memory_is_told_by_name_by_words_and_by_its_cause() -> None:
    assert lacks_memory(OutOfMemoryError())
    assert lacks_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"))
    assert not lacks_memory(RuntimeError("memory"))
    assert not lacks_memory(None)
    wrapped = ModelUnavailable("x")
    wrapped.__cause__ = OutOfMemoryError()
    assert lacks_memory(wrapped)


def test_what_is_asked_for_in_each_turn_is_worked_out_once(
    serve: Serve, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    floor, asked = serve(Loader(gib={"a": 1}, device=GPU), "a"), list[str]()
    weigh = sizes.weights_bytes
    monkeypatch.setattr(sizes, "weights_bytes", lambda spec, dtype: (asked.append(spec.name), weigh(spec, dtype))[1])
    floor.residents._sizes.recall()
    for _ in range(3):
        floor.residents.wants()
    assert sorted(asked) == ["b", "c"]


def test_a_language_models_cache_has_room_before_it_is_loaded(
    store: Store, make_settings: SettingsFactory, tmp_path: Path
) -> None:
    """Of 16 sequences of 4096 tokens, each of 2 MiB: 8 GiB of cache, beside weights that nobody can tell."""
    config = {"num_hidden_layers": 64, "num_attention_heads": 128, "head_dim": 64, "max_position_embeddings": 4096}
    (tmp_path / "config.json").write_text(json.dumps(config))
    images = registry_of(tmp_path, "a")
    writer = ModelSpec(name="t", kind="text", source=str(tmp_path), max_batch=16)
    registry = images.model_copy(update={"models": (*images.models, writer)})
    there: list[str] = []

    class Watching(Loader):
        def __call__(self, spec: ModelSpec) -> FakeEngine:
            there.append(resident(floor))
            if spec is writer:
                raise ModelUnavailable("that was all there is to see")
            return super().__call__(spec)

    floor = Watching(gib={"a": 4}, device=GPU).floor(store, registry, make_settings(min_switch_interval_s=0))
    run_one(floor, store, registry, "a")
    store.submit(JobRequest(new_job_id(), "t", writer, writer.parse_input({"prompt": "x"})))
    run_until(floor, lambda: len(there) == 2)
    assert there == ["", ""], "the other had gone by then"
    floor.close()
