"""The fallback engine: static batches of plain pipeline calls, for pipelines that cannot be parked at a denoiser."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import torch

from genmill.errors import InvalidJob
from genmill.extras import set_of
from genmill.inputs import ImageInput, SchedulerName
from genmill.registry import Batching, ModelSpec
from worker.engines.base import Curve, EngineJob, Event, Finished, Left, ModelMemory, Progress
from worker.engines.caps import RowCaps
from worker.engines.curve import ServiceCurve
from worker.engines.devices import (
    deterministic,
    give_back_memory,
    is_out_of_memory,
    keep_freed_memory,
    name_of_device,
)
from worker.engines.memory import bytes_of
from worker.engines.meter import Meter, Stopwatch
from worker.engines.pictures import as_output
from worker.engines.pipelines import (
    Kind,
    build_prototypes,
    call_arguments,
    check_arguments,
    inner_pipelines,
    kind_of,
    parameters_of,
)
from worker.engines.receipts import Place, failed, make_receipt
from worker.engines.schedulers import make_scheduler
from worker.engines.shared_calls import Entry, Miscounted, SharedCall, joined, key_of
from worker.engines.shelf import fetch, modules_of, shelve

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
        check_arguments(pipe, spec)
        keep_freed_memory(pipe.device)
        pipe.set_progress_bar_config(disable=True)
        self._spec, self._place, self._modules = spec, Place.of(pipe), modules_of(pipe)
        self._device = pipe.device
        self.model_bytes = bytes_of(*self._modules)
        self._prototypes = build_prototypes(pipe, {})
        self._has_inner = bool(inner_pipelines(pipe))
        self._takes_lists = {"prompt", "generator"} <= parameters_of(pipe)
        self._caps = RowCaps(spec.max_batch)
        self._curves: dict[Hashable, ServiceCurve] = {}
        self._seen: tuple[str, int, Stopwatch] | None = None
        self._berths: dict[str, _Berth] = {}
        self._waiting: list[Entry] = []
        self._calls: list[SharedCall] = []  # the last one runs, one before it rests
        self._refused: list[Event] = []

    def free_slots(self) -> int:
        """None while a call runs: what it cannot take in is better off in the queue, for whoever is free first."""
        return 0 if self._calls else max(0, self._spec.max_batch - len(self._waiting))

    def urgent_slots(self) -> int:
        if not self._calls or not self._may_rest(self._calls[-1]):
            return 0
        return max(0, self._spec.max_batch - sum(entry.job.is_urgent for entry in self._waiting))

    def admit(self, jobs: Sequence[EngineJob]) -> None:
        for job in jobs:
            try:
                berth = _Berth(job, self._entries(job))
            except Exception as error:  # noqa: BLE001  # an engine never fails a batch for one job
                self._refused.append(failed(job.job_id, error))
            else:
                self._berths[job.job_id] = berth
                self._waiting += berth.entries

    def step(self) -> list[Event]:
        events, self._refused = self._refused, []
        if (call := self._whose_turn()) is not None:
            self._go_on(call)
            if call.is_over:
                self._calls.remove(call)
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

    def curves(self) -> dict[str, Curve]:
        """Of a step, by the size of a picture."""
        known = {shape: curve for shape, curve in self._curves.items() if curve.is_known}
        return {f"{self._place.device} {shape}": curve.as_json() for shape, curve in known.items()}

    def memory(self) -> ModelMemory:
        """Of the model alone: what a call takes shows only when it runs out."""
        return ModelMemory(name_of_device(self._device), self.model_bytes)

    def recall(self, memory: ModelMemory) -> None:
        """Nothing that this engine goes by."""

    def park(self) -> None:
        shelve(self._modules, self._device)
        give_back_memory()

    def unpark(self) -> None:
        fetch(self._modules, self._device)

    def close(self) -> None:
        for job_id in list(self._berths):
            self.evict(job_id)
        self._prototypes.clear()
        self._modules.clear()
        self._seen = None
        give_back_memory()

    def _entries(self, job: EngineJob) -> list[Entry]:
        """Raises InvalidJob for what the pipeline cannot do."""
        asked = job.input
        if not isinstance(asked, ImageInput):
            raise InvalidJob(f"model {self._spec.name} makes images, the job asks for text")
        if set_of(asked.loras) or asked.control is not None:
            field = "control" if asked.control is not None else "loras"
            raise InvalidJob(f"model {self._spec.name} runs in static batches, which take no {field}")
        if (kind_of(job), "") not in self._prototypes:
            raise InvalidJob(f"model {self._spec.name} makes no images {kind_of(job)}")
        self._scheduler(asked.scheduler, kind_of(job))
        key = None if job.is_reproducible or job.init_image is not None else key_of(asked)
        return [Entry(job, asked, index, key or object()) for index in range(asked.num_images)]

    def _scheduler(self, name: SchedulerName, kind: Kind) -> Any:
        """A new one, None for that of the pipeline. Raises InvalidJob where it can have no other."""
        if name is SchedulerName.DEFAULT:
            return None
        own = getattr(self._prototypes[kind, ""], "scheduler", None)
        if own is None or self._has_inner:
            raise InvalidJob(f"model {self._spec.name} has its own scheduler alone, the job asks for {name}")
        return make_scheduler(own, name, from_image=kind is not Kind.TEXT)

    def _may_rest(self, call: SharedCall) -> bool:
        """Whether an urgent call may go before it. Pipelines that hold others share their schedulers between calls."""
        is_yielding = all(entry.job.is_yielding for entry in call.staying)
        return is_yielding and not call.has_rested and not self._has_inner

    def _whose_turn(self) -> SharedCall | None:
        running = self._calls[-1] if self._calls else None
        if running is None:
            if self._waiting:
                self._start(self._waiting)
        elif self._may_rest(running) and (urgent := [entry for entry in self._waiting if entry.job.is_urgent]):
            running.has_rested = True
            self._start(urgent)
        return self._calls[-1] if self._calls else None

    def _start(self, able: Sequence[Entry]) -> None:
        """A call for the first of these by urgency and virtual deadline, and for those that may share it."""
        queue = sorted(able, key=lambda entry: (not entry.job.is_urgent, entry.job.vd_ms))
        first = queue[0]
        alike = [entry for entry in queue if entry.key == first.key]
        if first.job.is_urgent:  # bulk would only prolong its steps
            alike = [entry for entry in alike if not entry.job.is_yielding]
        taken = alike[: self._caps.of(first.shape) if self._takes_lists else 1]
        self._waiting = [entry for entry in self._waiting if entry not in taken]
        self._calls.append(self._call(taken))

    def _call(self, entries: Sequence[Entry]) -> SharedCall:
        first, kind = entries[0], kind_of(entries[0].job)
        pipe, further = self._prototypes[kind, ""], self._spec.arguments
        arguments = [
            call_arguments(
                parameters_of(pipe), e.input, e.index, e.job.init_image, further, mask_image=e.job.mask_image
            )
            for e in entries
        ]
        return SharedCall(pipe, joined(arguments), entries, self._scheduler(first.input.scheduler, kind))

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
        error = call.error
        if error is not None:
            self._divide(call, error)
            return
        self._caps.ran_clean(call.entries[0].shape, len(call.entries))
        for entry, output in zip(call.entries, call.outputs, strict=True):
            try:
                entry.output = as_output(output, entry.input.fps)
            except torch.AcceleratorError:
                raise
            except Exception as fault:  # noqa: BLE001  # one output must not end the worker
                entry.error = fault

    def _divide(self, call: SharedCall, error: Exception) -> None:
        """Who was alone in a call fails with its error; of others each half begins anew, by itself. A pipeline that
        cannot count prompts gets one at a time from now on."""
        self._takes_lists &= not isinstance(error, Miscounted)
        if is_out_of_memory(error):
            self._caps.ran_out(call.entries[0].shape, len(call.entries))
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        staying, middle = call.staying, len(call.staying) // 2
        if len(call.entries) == 1:
            staying[0].error = error
            return
        for half in (staying[:middle], staying[middle:]):
            own_key = object()
            for entry in half:
                entry.key, entry.step = own_key, 0
            self._waiting += half

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
        """Off board. A call goes on for those who stay in it, and ends with the last of them."""
        del self._berths[berth.job.job_id]
        self._waiting = [entry for entry in self._waiting if entry not in berth.entries]
        for call in list(self._calls):
            call.left.update(entry for entry in berth.entries if entry in call.entries)
            if not call.staying:
                call.end()
                self._calls.remove(call)
