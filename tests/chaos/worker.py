"""A worker whose models are quick fakes that misbehave when a job asks for it.

`rq worker -w tests.chaos.worker.ChaosWorker`. A prompt of `die` kills the process, `fail` raises; all else ends well
after two steps.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from PIL import Image

from genmill.errors import GenerationFailed
from genmill.inputs import ImageInput
from genmill.registry import ModelSpec
from worker.batch_worker import BatchWorker
from worker.engines.base import Engine, EngineJob, Event, Failed, Finished, Left, Progress, Receipt

STEPS = 2
STEP_S = 0.01


class ChaosEngine:
    """Pictures of one pixel; a step takes 10 ms, whoever is on board."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._jobs: dict[str, EngineJob] = {}
        self._done: dict[str, int] = {}

    def free_slots(self) -> int:
        return self._spec.max_batch - len(self._jobs)

    def admit(self, jobs: Sequence[EngineJob]) -> None:
        for job in jobs:
            self._jobs[job.job_id], self._done[job.job_id] = job, 0

    def step(self) -> list[Event]:
        if self._jobs:
            time.sleep(STEP_S)
        return [self._step(job_id) for job_id in list(self._jobs)]

    def evict(self, job_id: str) -> Left | None:
        if self._jobs.pop(job_id, None) is None:
            return None
        return Left(self._done.pop(job_id), STEP_S * 1e3)

    def is_idle(self) -> bool:
        return not self._jobs

    def close(self) -> None:
        self._jobs.clear()

    def _step(self, job_id: str) -> Event:
        asked = self._jobs[job_id].input
        assert isinstance(asked, ImageInput)
        self._done[job_id] += 1
        if asked.prompt == "die":
            os._exit(9)
        if asked.prompt == "fail":
            self.evict(job_id)
            return Failed(job_id, GenerationFailed("asked to fail"), gpu_ms=STEP_S * 1e3)
        if self._done[job_id] < STEPS:
            return Progress(job_id, self._done[job_id], STEPS)
        self.evict(job_id)
        batch = len(self._jobs) + 1
        receipt = Receipt(
            self._spec.name, "1", "none", "none", asked.seed, STEPS, 1, float(batch), batch, 1.0, 20.0, 10.0
        )
        return Finished(job_id, receipt, images=(Image.new("RGB", (1, 1), "red"),))


class ChaosWorker(BatchWorker):
    """The real worker with these engines. `CHAOS_CLOCK_S` sets its wall clock off by so much."""

    def _load_engine(self, spec: ModelSpec) -> Engine:
        return ChaosEngine(spec)


if off_s := float(os.environ.get("CHAOS_CLOCK_S", "0")):
    _true_time = time.time
    time.time = lambda: _true_time() + off_s
