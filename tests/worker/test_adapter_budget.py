"""Models with adapters among others, within a budget: their sets are overdue for them, their bytes count."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from genmill.jobs import JobRequest, new_job_id
from genmill.registry import ModelSpec, Registry, load_registry
from genmill.store import Store
from tests.conftest import SettingsFactory
from tests.worker.doubles import DressableEngine
from tests.worker.loading import GIB, Loader, all_done, overdue, resident, run_until, submit_to, turn
from worker.engines.base import Device
from worker.floor import Floor
from worker.switches import Cause

GPU = Device("a GPU", memory_bytes=16 * GIB, host_bytes=16 * GIB, dtype="float16")
"""12 GiB of it are for models."""
MODELS = "\n".join(
    f'[[models]]\nname = "{name}"\nkind = "image"\nsource = "none"\nmax_batch = 4\n'
    '[models.adapters.ink]\nsource = "ink"\n[models.adapters.neon]\nsource = "neon"'
    for name in "abc"
)


class DressingLoader(Loader):
    """Of models of 4 GiB and adapters of 1 GiB."""

    def __call__(self, spec: ModelSpec) -> DressableEngine:
        self.loaded.append(spec.name)
        self.now_s += self.load_s
        engine = DressableEngine(spec.max_batch, 4 * GIB, GIB)
        self.engines[spec.name] = engine
        return engine


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    path = tmp_path / "models.toml"
    path.write_text(MODELS)
    return load_registry(path)


@pytest.fixture
def loader() -> DressingLoader:
    return DressingLoader(device=GPU)


@pytest.fixture
def most() -> int:
    """Models that may be loaded."""
    return 3


@pytest.fixture
def floor(
    store: Store, registry: Registry, loader: DressingLoader, make_settings: SettingsFactory, most: int
) -> Iterator[Floor]:
    floor = loader.floor(store, registry, make_settings(min_switch_interval_s=0, max_resident=most))
    yield floor
    floor.close()


def submit_with(store: Store, registry: Registry, model: str, **loras: float) -> str:
    spec = registry.get(model)
    asked = [{"name": name, "weight": weight} for name, weight in loras.items()]
    job_input = spec.parse_input({"prompt": "x", "width": 64, "height": 64, "steps": 2, "loras": asked})
    return store.submit(JobRequest(new_job_id(), "t", spec, job_input))[0]


def test_adapters_that_were_read_count_to_their_model(
    floor: Floor, store: Store, registry: Registry, loader: DressingLoader
) -> None:
    done = [submit_with(store, registry, "a", ink=1.0)]
    run_until(floor, lambda: all_done(store, done))
    done += [submit_with(store, registry, "b", ink=0.5, neon=0.5)]
    run_until(floor, lambda: all_done(store, done))
    assert resident(floor) == "ab", "5 and 6 of 12 GiB"
    done += [submit_to(store, registry, "c")]
    run_until(floor, lambda: all_done(store, done))
    assert resident(floor) == "bc"
    assert floor.residents.switches.counts[Cause.BUDGET] == 1
    done += [submit_with(store, registry, "a", ink=0.3)]
    run_until(floor, lambda: all_done(store, done))
    assert loader.loaded == ["a", "b", "c"], "it came back from the host"
    assert loader.engines["a"].adapters == ["ink"]


@pytest.mark.parametrize("most", [1])
def test_an_overdue_set_of_a_model_that_is_not_loaded_makes_others_go(
    floor: Floor, store: Store, registry: Registry, loader: DressingLoader, redis: Redis
) -> None:
    first = [submit_with(store, registry, "a", ink=1.0) for _ in range(12)]
    turn(floor)
    late = submit_with(store, registry, "b", neon=0.5)
    overdue(redis, store, late)
    run_until(floor, lambda: all_done(store, [late]))
    assert not all_done(store, first)
    assert loader.loaded == ["a", "b"]
    assert floor.residents.switches.counts[Cause.OVERDUE] == 1
    run_until(floor, lambda: all_done(store, first))
