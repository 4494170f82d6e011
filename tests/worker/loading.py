"""A floor whose models are doubles of any size, and whose clock only loading moves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from redis import Redis

from genmill import keys
from genmill.jobs import JobRequest, JobState, new_job_id
from genmill.keys import JobClass
from genmill.registry import ModelSpec, Registry, load_registry
from genmill.settings import Settings
from genmill.store import Store
from tests.fleet import eventually
from tests.worker.doubles import FakeEngine
from worker.engines.base import Device, ModelMemory
from worker.floor import Floor
from worker.sizes import circumstances

CLASSES = ["p0", "p1", "p2", "p3"]
GIB = 2**30


def registry_of(folder: Path, names: str, **fields: object) -> Registry:
    """A model of four images at once for each letter."""
    more = "".join(f"{name} = {value}\n" for name, value in fields.items())
    text = "\n".join(
        f'[[models]]\nname = "{name}"\nkind = "image"\nsource = "none"\nmax_batch = 4\n{more}' for name in names
    )
    path = folder / "models.toml"
    path.write_text(text)
    return load_registry(path)


def measured_on(
    device: Device, spec: ModelSpec, gib: float, peaks: Mapping[str, Mapping[int, int]] = MappingProxyType({})
) -> ModelMemory:
    """What a worker with such a device would have stored of it."""
    return ModelMemory(device.name, int(gib * GIB), dict(peaks), circumstances(spec, device))


class Loader:
    """Hands out fake engines, counts them, and lets loading take time on a clock of its own. `gib` of a model by its
    name; `device` is where they go."""

    def __init__(self, load_s: float = 0.0, gib: dict[str, float] | None = None, device: Device | None = None) -> None:
        self.now_s, self.load_s = 0.0, load_s
        self.gib, self.device = gib or {}, device or Device("cpu")
        self.loaded: list[str] = []
        self.engines: dict[str, FakeEngine] = {}

    def __call__(self, spec: ModelSpec) -> FakeEngine:
        self.loaded.append(spec.name)
        self.now_s += self.load_s
        engine = FakeEngine(spec.max_batch, int(self.gib.get(spec.name, 0) * GIB))
        self.engines[spec.name] = engine
        return engine

    def floor(self, store: Store, registry: Registry, settings: Settings) -> Floor:
        floor = Floor(store, registry, settings, load=self, find_device=lambda: self.device)
        floor.residents._clock = lambda: self.now_s
        return floor


def submit_to(
    store: Store, registry: Registry, model: str, job_class: JobClass = JobClass.P1, steps: int = 2
) -> str:  # fmt: skip
    spec = registry.get(model)
    job_input = spec.parse_input({"prompt": "x", "width": 64, "height": 64, "steps": steps})
    return store.submit(JobRequest(new_job_id(), "t", spec, job_input, job_class))[0]


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


def run_one(floor: Floor, store: Store, registry: Registry, model: str) -> None:
    """One job of this model, to its success."""
    job_id = submit_to(store, registry, model)
    run_until(floor, lambda: all_done(store, [job_id]))


def resident(floor: Floor) -> str:
    """The letters of the loaded models, least recently used first."""
    return "".join(station.batch_key[0] for station in floor.residents.stations())


def all_done(store: Store, ids: list[str]) -> bool:
    return all(record and record.state is JobState.SUCCEEDED for record in store.get_many(ids))
