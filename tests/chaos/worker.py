"""A worker whose models are quick fakes that misbehave when a job asks for it.

`rq worker -w tests.chaos.worker.ChaosWorker`. A prompt of `die` kills the process, one that begins with `fail` raises;
all else ends well after two steps. What else shall go wrong stands in the environment, see `Orders`.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from genmill.errors import GenerationFailed
from genmill.inputs import ImageInput
from genmill.keys import CALLBACKS
from genmill.registry import Batching, ModelSpec
from genmill.store import Settlement, Store
from genmill.store.messages import Claimed
from worker import floor
from worker.batch_worker import BatchWorker
from worker.engines.base import (
    Curve,
    Device,
    Engine,
    EngineJob,
    Event,
    Failed,
    Finished,
    Left,
    ModelMemory,
    Progress,
    Receipt,
)

STEPS = 2
POINTS = ("claim", "settle")
"""Where a worker can be told to die: between claim and start, between upload and settle."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What the environment asks for. `clock_s`: by how much the wall clock is off; `step_s` of a step; `uploads` that
    may wait for the storage; `rows` that fit in memory, which makes the engine the real one; `death`:
    "point:chance:seed".
    """

    clock_s: float
    step_s: float
    uploads: int
    rows: int
    death: str

    @classmethod
    def read(cls) -> Orders:
        def order(name: str, default: object) -> str:
            return os.environ.get(f"CHAOS_{name}", str(default))

        return cls(
            float(order("CLOCK_S", 0)), float(order("STEP_S", 0.01)),
            int(order("UPLOADS", floor.MAX_PENDING_UPLOADS)), int(order("ROWS", 0)), order("DEATH", ""),
        )  # fmt: skip


ORDERS = Orders.read()


class ChaosEngine:
    """Pictures of one pixel; a step takes 10 ms, or as ordered, whoever is on board."""

    batching = Batching.STEP

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._jobs: dict[str, EngineJob] = {}
        self._batches: dict[str, list[int]] = {}

    def free_slots(self) -> int:
        return self._spec.max_batch - len(self._jobs)

    def urgent_slots(self) -> int:
        return 0

    def admit(self, jobs: Sequence[EngineJob]) -> None:
        for job in jobs:
            self._jobs[job.job_id], self._batches[job.job_id] = job, []

    def step(self) -> list[Event]:
        if self._jobs:
            time.sleep(ORDERS.step_s)
        batch = len(self._jobs)
        return [self._step(job_id, batch) for job_id in list(self._jobs)]

    def evict(self, job_id: str) -> Left | None:
        if self._jobs.pop(job_id, None) is None:
            return None
        return Left(len(self._batches.pop(job_id)), ORDERS.step_s * 1e3)

    def is_idle(self) -> bool:
        return not self._jobs

    def curves(self) -> dict[str, Curve]:
        return {}

    def memory(self) -> ModelMemory:
        return ModelMemory("none", 0)

    def recall(self, memory: ModelMemory) -> None:
        pass

    def parked_bytes(self) -> int:
        return 0

    def park(self) -> None:
        pass

    def unpark(self) -> None:
        pass

    def close(self) -> None:
        self._jobs.clear()

    def _step(self, job_id: str, batch: int) -> Event:
        asked, batches = self._jobs[job_id].input, self._batches[job_id]
        assert isinstance(asked, ImageInput)
        batches.append(batch)
        if asked.prompt == "die":
            os._exit(9)
        if asked.prompt.startswith("fail"):
            self.evict(job_id)
            return Failed(job_id, GenerationFailed(f"asked to: {asked.prompt}"), gpu_ms=ORDERS.step_s * 1e3)
        if len(batches) < STEPS:
            return Progress(job_id, len(batches), STEPS)
        self.evict(job_id)
        receipt = Receipt(
            self._spec.name, "1", "none", "none", asked.seed, STEPS, min(batches), sum(batches) / STEPS, max(batches),
            1.0, 20.0, 10.0,
        )  # fmt: skip
        return Finished(job_id, receipt, images=(Image.new("RGB", (1, 1), "red"),))


class MortalStore(Store):
    """Kills its process at a point of a job's life, by chance: the claim stands and nothing has started, or the
    outputs are stored and nothing is committed."""

    def __init__(self, redis: Any, settings: Any, death: str) -> None:
        super().__init__(redis, settings)
        self._point, chance, seed = death.split(":")
        self._chance, self._random = float(chance), random.Random(int(seed))

    def turn_over(
        self, settlements: Sequence[Settlement], *args: Any, **kwargs: Any
    ) -> tuple[list[bool], Claimed]:  # fmt: skip
        self._reach_settle(settlements)
        verdicts, claimed = super().turn_over(settlements, *args, **kwargs)
        if any(claim.origin != CALLBACKS for claim in claimed.claims):
            self._reach("claim")
        return verdicts, claimed

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        self._reach_settle(settlements)
        return super().settle(settlements)

    def _reach_settle(self, settlements: Sequence[Settlement]) -> None:
        if any(isinstance(one.result, Mapping) and "outputs" in one.result for one in settlements):
            self._reach("settle")

    def _reach(self, point: str) -> None:
        if point == self._point and self._random.random() < self._chance:
            os.kill(os.getpid(), signal.SIGKILL)


class ChaosWorker(BatchWorker):
    """The real worker with these engines."""

    def _open_floor(self) -> floor.Floor:
        opened = super()._open_floor()
        if ORDERS.death:
            opened.store = MortalStore(self.connection, opened.settings, ORDERS.death)
        return opened

    def _load_engine(self, spec: ModelSpec) -> Engine:
        return _short_of_memory(spec, ORDERS.rows) if ORDERS.rows else ChaosEngine(spec)

    def _find_device(self) -> Device:
        """None: finding a real one loads torch, whose seconds the cases would measure."""
        return Device("none")


def _short_of_memory(spec: ModelSpec, most_rows: int) -> Engine:
    """The real engine with the real model, on a device where a forward of more rows does not fit."""
    import torch

    from worker.engines.crew import Crew
    from worker.engines.devices import pick_device
    from worker.engines.diffusion import DiffusionEngine
    from worker.engines.pipelines import load_pipeline

    def refuse(_: object, args: object, arguments: Mapping[str, Any]) -> None:
        if len(arguments["sample"]) > most_rows:
            raise torch.OutOfMemoryError(f"no room for more than {most_rows} rows")

    pipe = load_pipeline(spec, pick_device(None))
    pipe.unet.register_forward_pre_hook(refuse, with_kwargs=True)
    return DiffusionEngine.from_pipeline(spec, pipe, Crew())  # a crew of many would cut the rows before they meet


floor.MAX_PENDING_UPLOADS = ORDERS.uploads
if ORDERS.clock_s:
    _true_time = time.time
    time.time = lambda: _true_time() + ORDERS.clock_s
