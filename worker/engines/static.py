"""The fallback engine: static batches of plain pipeline calls, for pipelines that cannot be parked at a denoiser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch

from genmill.errors import InvalidJob
from genmill.extras import set_of
from genmill.registry import Batching, ModelSpec
from worker.engines.base import Curve, EngineJob, Event, Finished, Left, ModelMemory, Progress
from worker.engines.call_queue import CallQueue
from worker.engines.curve import ServiceCurve, published
from worker.engines.devices import deterministic, keep_freed_memory, name_of_device
from worker.engines.meter import Meter, Stopwatch
from worker.engines.pictures import undeveloped
from worker.engines.prototypes import Prototypes
from worker.engines.receipts import Place, failed, make_receipt
from worker.engines.shared_calls import Entry, SharedCall, key_of
from worker.engines.shelf import Weights, modules_of

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline


@dataclass(slots=True, eq=False)
class _Berth:
    """A job on board, an entry for each of its images. `told` is the progress that its client knows of."""

    job: EngineJob
    entries: list[Entry]
    told: int = 0

    @property
    def meter(self) -> Meter:
        return Meter.merged([entry.meter for entry in self.entries])

    @property
    def step(self) -> int:
        return min(entry.step for entry in self.entries)


class StaticEngine:
    """Any diffusers pipeline: from text, from an image, with a mask. It takes no adapters and no ControlNets.

    Jobs that differ in nothing but prompts and seeds share one plain call of the pipeline, with lists of both; others
    run one after another, the earliest virtual deadline first. A call that has begun takes nobody in. An urgent job
    goes before a call of yielding ones, which rests at its next step, once.

    A job's image is the one that the plain call makes for it alone, as far as the pipeline treats a list as so many
    calls. An error in a shared call is found by halving it: the halves begin anew.
    """

    batching = Batching.STATIC

    @classmethod
    def from_pipeline(cls, spec: ModelSpec, pipe: DiffusionPipeline) -> Self:
        """An engine of a loaded pipeline, on the device where it is. Raises ModelUnavailable where it does not take
        what the model's entry names."""
        return cls(spec, pipe)

    def __init__(self, spec: ModelSpec, pipe: DiffusionPipeline) -> None:
        self._prototypes = Prototypes(spec, pipe)
        keep_freed_memory(pipe.device)
        pipe.set_progress_bar_config(disable=True)
        self._spec, self._place = spec, Place.of(pipe)
        self._weights = Weights(modules_of(pipe), pipe.device)
        self.model_bytes = self._weights.bytes
        self._queue = CallQueue(spec, pipe, self._prototypes)
        self._curves: dict[str, ServiceCurve] = {}
        self._seen: tuple[str, int, Stopwatch] | None = None
        self._berths: dict[str, _Berth] = {}
        self._refused: list[Event] = []

    def free_slots(self) -> int:
        return self._queue.free_slots()

    def urgent_slots(self) -> int:
        return self._queue.urgent_slots()

    def admit(self, jobs: Sequence[EngineJob]) -> None:
        for job in jobs:
            try:
                berth = _Berth(job, self._entries(job))
            except Exception as error:  # noqa: BLE001  # an engine never fails a batch for one job
                self._refused.append(failed(job.job_id, error))
            else:
                self._berths[job.job_id] = berth
                self._queue.add(berth.entries)

    def step(self) -> list[Event]:
        events, self._refused = self._refused, []
        if (call := self._queue.next()) is not None:
            self._go_on(call)
            if call.is_over and self._queue.ended(call):
                self._take_in(call)
            for job_id in dict.fromkeys(entry.job.job_id for entry in call.staying):
                events.extend(self._news(self._berths[job_id]))
        return events

    def evict(self, job_id: str) -> Left | None:
        berth = self._berths.get(job_id)
        if berth is None:
            return None
        self._leave(berth)
        return Left(berth.step, berth.meter.gpu_ms)

    def is_idle(self) -> bool:
        return not self._berths and not self._refused

    def curves(self) -> Mapping[str, Curve]:
        """Of a step, by the size of a picture."""
        return published(self._place.device, self._curves)

    def memory(self) -> ModelMemory:
        """Of the model alone: what a call takes shows only when it runs out."""
        return ModelMemory(name_of_device(self._weights.device), self.model_bytes)

    def recall(self, memory: ModelMemory) -> None:
        """Nothing that this engine goes by."""

    def parked_bytes(self) -> int:
        return self._weights.parked_bytes()

    def park(self) -> None:
        self._weights.park()

    def unpark(self) -> None:
        self._weights.unpark()

    def close(self) -> None:
        for job_id in list(self._berths):
            self.evict(job_id)
        self._prototypes.clear()
        self._seen = None
        self._weights.drop()

    def _entries(self, job: EngineJob) -> list[Entry]:
        """Raises InvalidJob for what the pipeline cannot do."""
        asked = self._prototypes.asked_of(job)
        if set_of(asked.loras) or asked.control is not None:
            field = "control" if asked.control is not None else "loras"
            raise InvalidJob(f"model {self._spec.name} runs in static batches, which take no {field}")
        key = None if job.is_reproducible or job.init_image is not None else key_of(asked)
        entries = [Entry(job, asked, index, key or object()) for index in range(asked.num_images)]
        self._queue.scheduler_of(entries[0])  # refused now, not when its turn has come
        return entries

    def _go_on(self, call: SharedCall) -> None:
        self._learn()
        with deterministic() if call.entries[0].job.is_reproducible else nullcontext():
            watch = call.go_on()
        if call.is_amid_steps:
            self._seen = call.entries[0].shape, len(call.entries), watch

    def _learn(self) -> None:
        """What the step before has taken; asked now, when the device has computed it in any case."""
        if self._seen is not None:
            shape, size, watch = self._seen
            self._curves.setdefault(shape, ServiceCurve()).saw(size, watch.ms())
        self._seen = None

    def _take_in(self, call: SharedCall) -> None:
        """What a call that is over has brought."""
        for entry, output in zip(call.entries, call.outputs, strict=True):
            try:
                entry.output = undeveloped(output, entry.input.fps)
            except torch.AcceleratorError:
                raise
            except Exception as fault:  # noqa: BLE001  # one output must not end the worker
                entry.error = fault

    def _news(self, berth: _Berth) -> list[Event]:
        """At most one event: how the job ended, or its progress since the last one."""
        job_id = berth.job.job_id
        error = next((entry.error for entry in berth.entries if entry.error is not None), None)
        if error is not None:
            self._leave(berth)
            return [failed(job_id, error, berth.meter.gpu_ms)]
        if all(entry.is_over for entry in berth.entries):
            self._leave(berth)
            receipt = make_receipt(self._spec, self._place, berth.entries[0].input.seed, berth.meter)
            return [Finished(job_id, receipt, images=tuple(entry.output for entry in berth.entries if entry.output))]
        if berth.step <= berth.told:
            return []
        berth.told = berth.step
        return [Progress(job_id, berth.step, berth.entries[0].steps)]

    def _leave(self, berth: _Berth) -> None:
        """Off board, out of its calls."""
        del self._berths[berth.job.job_id]
        self._queue.leave(berth.entries)
