"""A worker whose models do nothing: what is left is the queue. `rq worker -w bench.noop.NoopWorker`."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image

from genmill.inputs import ImageInput
from genmill.registry import Batching, ModelSpec
from worker.batch_worker import BatchWorker
from worker.engines.base import (
    Curve,
    Device,
    Engine,
    EngineJob,
    Event,
    Finished,
    Left,
    ModelMemory,
    Receipt,
    TextOutput,
)


class NoopEngine:
    """Finishes whoever is on board at its next step, with a black picture or with no text."""

    batching = Batching.CONTINUOUS

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._on_board: dict[str, EngineJob] = {}

    def free_slots(self) -> int:
        return self._spec.max_batch - len(self._on_board)

    def urgent_slots(self) -> int:
        return 0

    def admit(self, jobs: Sequence[EngineJob]) -> None:
        self._on_board.update((job.job_id, job) for job in jobs)

    def step(self) -> list[Event]:
        batch, self._on_board = self._on_board, {}
        return [self._finished(job, len(batch)) for job in batch.values()]

    def evict(self, job_id: str) -> Left | None:
        return None if self._on_board.pop(job_id, None) is None else Left(0)

    def is_idle(self) -> bool:
        return not self._on_board

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
        self._on_board.clear()

    def _finished(self, job: EngineJob, batch: int) -> Event:
        spec = self._spec
        receipt = Receipt(
            spec.name, spec.revision, "none", "none", 0, 1, batch, float(batch), batch, 1 / batch, 0.0, 0.0
        )
        if isinstance(job.input, ImageInput):
            black = Image.new("RGB", (job.input.width, job.input.height))
            return Finished(job.job_id, receipt, images=(black,) * job.input.num_images)
        return Finished(job.job_id, receipt, text=TextOutput("", "stop", 1, 0))


class NoopWorker(BatchWorker):
    """The real worker with engines that do nothing, on a device that is none: torch is not loaded."""

    def _load_engine(self, spec: ModelSpec) -> Engine:
        return NoopEngine(spec)

    def _find_device(self) -> Device:
        return Device("none")
