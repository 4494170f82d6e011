"""Test doubles behind the worker's ports."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image

from genmill.errors import GenerationFailed, StorageUnavailable
from genmill.inputs import ImageInput
from genmill.registry import Batching
from genmill.storage import StoredObject
from worker.engines.base import Curve, EngineJob, Event, Failed, Finished, Left, ModelMemory, Progress, Receipt


def receipt(gpu_ms: float = 5.0) -> Receipt:
    return Receipt("shapes", "1", "float32", "cpu", 0, 1, 1, 1.0, 1, 1.0, gpu_ms, 1.0)


class FakeEngine:
    """Finishes a job after its `steps`; fails one whose prompt is "bad" at its first step. It takes `model_bytes`, is
    parked only if it `may_move`, and does not work then."""

    batching = Batching.STEP

    def __init__(self, slots: int = 4, model_bytes: int = 0) -> None:
        self._slots, self.model_bytes = slots, model_bytes
        self.recalled: list[ModelMemory] = []
        self.moves: list[str] = []
        self.may_move = True
        self.bad_prompts = {"bad"}
        self.on_board: dict[str, int] = {}
        self.jobs: dict[str, EngineJob] = {}
        self.is_closed = False

    def free_slots(self) -> int:
        return self._slots - len(self.on_board)

    def urgent_slots(self) -> int:
        return 0

    def admit(self, jobs: Sequence[EngineJob]) -> None:
        for job in jobs:
            self.jobs[job.job_id], self.on_board[job.job_id] = job, 0

    def step(self) -> list[Event]:
        assert self.moves[-1:] != ["park"], "its weights are away"
        return [self._step(job_id) for job_id in list(self.on_board)]

    def evict(self, job_id: str) -> Left | None:
        step = self.on_board.pop(job_id, None)
        return None if step is None else Left(step, 1.5 * step)

    def is_idle(self) -> bool:
        return not self.on_board

    def curves(self) -> dict[str, Curve]:
        return {}

    def memory(self) -> ModelMemory:
        return ModelMemory("cpu", self.model_bytes, {"unet 4x8x8": {2: 100, 4: 200}})

    def recall(self, memory: ModelMemory) -> None:
        self.recalled.append(memory)

    def parked_bytes(self) -> int:
        return self.model_bytes

    def park(self) -> None:
        self._move("park")

    def unpark(self) -> None:
        self._move("unpark")

    def _move(self, where: str) -> None:
        assert self.is_idle()
        if not self.may_move:
            raise RuntimeError("no room")
        self.moves.append(where)

    def close(self) -> None:
        self.is_closed = True

    def _step(self, job_id: str) -> Event:
        job = self.jobs[job_id].input
        assert isinstance(job, ImageInput)
        self.on_board[job_id] += 1
        if job.prompt in self.bad_prompts:
            del self.on_board[job_id]
            return Failed(job_id, GenerationFailed("bad prompt"))
        if self.on_board[job_id] < job.steps:
            return Progress(job_id, self.on_board[job_id], job.steps)
        del self.on_board[job_id]
        return Finished(job_id, receipt(), images=(Image.new("RGB", (8, 8), "red"),))


class DressableEngine(FakeEngine):
    """One that takes adapters of `adapter_bytes` each."""

    def __init__(self, slots: int = 4, model_bytes: int = 0, adapter_bytes: int = 0) -> None:
        super().__init__(slots, model_bytes)
        self._adapter_bytes = adapter_bytes
        self.adapters: list[str] = []

    def load_adapter(self, name: str) -> int:
        if name in self.adapters:
            return 0
        self.adapters.append(name)
        return self._adapter_bytes


class FlakyStorage:
    """Keeps objects in memory; raises StorageUnavailable for the first `failures` puts."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.objects: dict[str, StoredObject] = {}

    def put(self, key: str, body: bytes, content_type: str) -> None:
        if self.failures > 0:
            self.failures -= 1
            raise StorageUnavailable("down for the test")
        self.objects[key] = StoredObject(body, content_type)

    def get(self, key: str) -> StoredObject:
        return self.objects[key]

    def delete_prefix(self, prefix: str) -> None:
        folder = prefix.rstrip("/") + "/"
        self.objects = {key: found for key, found in self.objects.items() if not f"{key}/".startswith(folder)}

    def check(self) -> None:
        pass
