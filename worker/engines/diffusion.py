"""The image engine: diffusers pipelines at the denoiser rendezvous, one greenlet for each image."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import nn

from genmill.errors import InvalidJob
from genmill.extras import set_of
from genmill.inputs import ImageInput, SchedulerName
from genmill.registry import Batching, ModelSpec, Optimization
from worker.engines.base import Curve, EngineJob, Event, Finished, Left, ModelMemory, Progress, Receipt, Sketch
from worker.engines.batches import Phase
from worker.engines.berths import Berth, Picture, Steps
from worker.engines.components import Components
from worker.engines.crew import Crew
from worker.engines.devices import give_back_memory, keep_freed_memory, name_of_device
from worker.engines.memory import MemoryModel, bytes_of, meter_of, name_of
from worker.engines.overlap import HostCopy
from worker.engines.pictures import as_floats, as_output, outputs_of
from worker.engines.pipelines import (
    build_prototypes,
    call_arguments,
    check_arguments,
    denoiser_of,
    in_one_place,
    kind_of,
    parameters_of,
    upcast_autoencoder,
)
from worker.engines.previews import Sketcher
from worker.engines.receipts import Place, failed, make_receipt
from worker.engines.rendezvous import Hub
from worker.engines.schedulers import make_scheduler, with_known_levels
from worker.engines.shelf import fetch, modules_of, shelve

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

_FIXED = frozenset({Optimization.CUDA_GRAPHS, Optimization.TENSORRT})
CODA_PATIENCE = 1
"""Steps of others for which a finished picture waits to be decoded together with more of them."""


class DiffusionEngine:
    """Any diffusers pipeline whose denoiser's row arguments are declared: from text, from an image, with a mask, with
    a ControlNet, with any of the model's adapters; images and videos.

    A job's image is the one that the plain pipeline call makes from the same input with
    `torch.Generator("cpu").manual_seed(seed + index)`, whoever shares its forwards.
    """

    batching = Batching.STEP

    @classmethod
    def from_pipeline(
        cls,
        spec: ModelSpec,
        pipe: DiffusionPipeline,
        crew: Crew | None = None,
        controlnets: Mapping[str, nn.Module] = MappingProxyType({}),
    ) -> Self:
        """An engine of a loaded pipeline, on the device where it is. Raises ModelUnavailable where it does not take
        what the model's entry names."""
        return cls(spec, pipe, crew, controlnets)

    def __init__(
        self,
        spec: ModelSpec,
        pipe: DiffusionPipeline,
        crew: Crew | None = None,
        controlnets: Mapping[str, nn.Module] = MappingProxyType({}),
    ) -> None:
        check_arguments(pipe, spec)
        upcast_autoencoder(pipe)
        self._spec = spec
        self._pipe = pipe
        denoiser = denoiser_of(pipe)
        keep_freed_memory(denoiser.device)
        self._place = Place.of(denoiser)
        self._crew = crew or Crew.of(denoiser.device)
        self._hub = Hub(self._crew, coda_patience=CODA_PATIENCE)
        self._memory = MemoryModel(meter_of(denoiser.device))
        self._modules = [*modules_of(pipe), *controlnets.values()]
        self.model_bytes = bytes_of(*self._modules)
        self._components = Components(spec, pipe, self._hub, controlnets, self._memory)
        self._denoiser = self._components.denoiser
        self._prototypes = {key: in_one_place(one) for key, one in build_prototypes(pipe, controlnets).items()}
        self._schedulers: dict[tuple[SchedulerName, bool], Any] = {}
        self._sketcher = Sketcher()
        self._berths: dict[str, Berth] = {}
        self._refused: list[Event] = []

    @property
    def hub(self) -> Hub:
        return self._hub

    def curves(self) -> dict[str, Curve]:
        """Of the denoiser, by the shape of one row."""
        known = {shape: curve for shape, curve in self._denoiser.curves.items() if curve.is_known}
        return {f"{self._place.device} {name_of(shape)}": curve.as_json() for shape, curve in known.items()}

    def memory(self) -> ModelMemory:
        return ModelMemory(name_of_device(self._denoiser.device), self.model_bytes, self._memory.peaks())

    def recall(self, memory: ModelMemory) -> None:
        self._memory.recall(memory.peaks)

    def learnt_caps(self) -> dict[str, int]:
        """Rows of the denoiser's forwards, by shape, where fewer fit in memory than were configured."""
        caps = self._denoiser.caps
        rows = {shape: caps.of(shape) for shape in {*self._denoiser.curves, *caps.learnt}}
        return {name_of(shape): most for shape, most in rows.items() if most < caps.ceiling}

    def load_adapter(self, name: str) -> int:
        return self._components.load_adapter(name)

    def free_slots(self) -> int:
        """An image that only waits to be decoded has left its slot."""
        taken = sum(task.phase is not Phase.CODA for task in self._hub.tasks)
        return max(0, self._spec.max_batch - taken)

    def urgent_slots(self) -> int:
        return sum(berth.slots for berth in self._yielding())

    def admit(self, jobs: Sequence[EngineJob]) -> None:
        self._memory.refresh()
        for job in jobs:
            try:
                self._berths[job.job_id] = self._board(job)
                if job.is_urgent:
                    self._make_way()
            except Exception as error:  # noqa: BLE001  # an engine never fails a batch for one job
                self._refused.append(failed(job.job_id, error))

    def step(self) -> list[Event]:
        events, self._refused = self._refused, []
        if self._berths:
            self._call_back()
            self._hub.turn()
            for berth in list(self._berths.values()):
                events.extend(self._news(berth))
        return events

    def evict(self, job_id: str) -> Left | None:
        berth = self._berths.pop(job_id, None)
        if berth is None:
            return None
        left = Left(berth.step, berth.meter.gpu_ms)
        self._abandon(berth)
        return left

    def is_idle(self) -> bool:
        return not self._berths and not self._refused

    def park(self) -> None:
        if _FIXED.intersection(self._spec.optimizations):
            raise RuntimeError("what was recorded or built of its forwards holds the weights where they are")
        shelve(self._modules, self._denoiser.device)
        give_back_memory()

    def unpark(self) -> None:
        fetch(self._modules, self._denoiser.device)
        self._memory.refresh()

    def close(self) -> None:
        for job_id in list(self._berths):
            self.evict(job_id)
        self._prototypes.clear()
        self._modules.clear()
        del self._components
        self._crew.close()
        del self._pipe, self._denoiser
        give_back_memory()

    def _yielding(self) -> list[Berth]:
        """Who may rest for an urgent job, the latest virtual deadline first; nobody twice."""
        able = [b for b in self._berths.values() if b.job.is_yielding and not b.has_rested and b.slots]
        return sorted(able, key=lambda berth: -berth.job.vd_ms)

    def _make_way(self) -> None:
        for berth in self._yielding():
            if self._unused_slots() >= 0:
                break
            berth.rest(is_resting=True)

    def _unused_slots(self) -> int:
        """Less than 0 where more are at work than there are slots."""
        return self._spec.max_batch - sum(berth.slots for berth in self._berths.values() if not berth.is_resting)

    def _call_back(self) -> None:
        """Those who rest go on as slots get free, the earliest virtual deadline first, before anybody new comes."""
        resting = sorted((b for b in self._berths.values() if b.is_resting), key=lambda berth: berth.job.vd_ms)
        if not resting:
            return
        for berth in resting:
            is_alone = self._unused_slots() == self._spec.max_batch  # it may have more images than there are slots
            if berth.slots > self._unused_slots() and not is_alone:
                break
            berth.rest(is_resting=False)

    def _board(self, job: EngineJob) -> Berth:
        if not isinstance(job.input, ImageInput):
            raise InvalidJob(f"model {self._spec.name} makes images, the job asks for text")
        calls = [self._prepare(job, job.input, index) for index in range(job.input.num_images)]
        berth = Berth(job, job.input)
        for pipe, arguments in calls:
            steps: Steps = pipe.progress_bar
            glimpse = self._sketcher.watch(pipe, job.input.width, job.input.height, is_wanted=job.has_preview)
            work = partial(_first_output, pipe, arguments)
            task = self._hub.start(
                work, is_urgent=job.is_urgent, is_yielding=job.is_yielding, is_solitary=job.is_reproducible
            )
            berth.pictures.append(Picture(task, steps, glimpse))
        return berth

    def _prepare(self, job: EngineJob, asked: ImageInput, index: int) -> tuple[Any, dict[str, Any]]:
        """A pipeline copy for one image: shared weights behind stand-ins, its own scheduler and generator."""
        kind, control = kind_of(job), asked.control.name if asked.control else None
        prototype = self._prototypes.get((kind, control or ""))
        if prototype is None:
            raise InvalidJob(f"model {self._spec.name} makes no images {kind}{f' {control}' if control else ''}")
        pipe = copy.copy(prototype)
        in_use = {set_of(berth.input.loras) for berth in self._berths.values()}
        # not by setattr, which would write the stand-ins' names into the pipeline's config
        pipe.__dict__.update(self._components.of(set_of(asked.loras), control, in_use))
        scheduler = self._scheduler(asked.scheduler, from_image=job.init_image is not None)
        pipe.__dict__["scheduler"] = copy.deepcopy(scheduler)
        pipe.__dict__["progress_bar"] = Steps(asked.steps)
        arguments = call_arguments(
            parameters_of(prototype), asked, index, job.init_image, self._spec.arguments,
            mask_image=job.mask_image, control_image=job.control_image,
        )  # fmt: skip
        return pipe, arguments

    def _scheduler(self, name: SchedulerName, *, from_image: bool) -> Any:
        key = (name, from_image)
        if key not in self._schedulers:
            self._schedulers[key] = with_known_levels(
                make_scheduler(self._pipe.scheduler, name, from_image=from_image)
            )
        return self._schedulers[key]

    def _news(self, berth: Berth) -> list[Event]:
        """At most one event: how the job ended, or its progress since the last one."""
        job_id = berth.job.job_id
        tasks = [picture.task for picture in berth.pictures]
        error = next((task.error for task in tasks if task.error is not None), None)
        if error is None and not (all(task.is_over for task in tasks) and self._is_there(berth)):
            if berth.step == berth.told:
                return []
            berth.told = berth.step
            return [Progress(job_id, berth.step, berth.steps, sketch=self._sketch(berth))]
        del self._berths[job_id]
        if error is None:
            try:
                images = tuple(as_output(task.result.tensor(), berth.input.fps) for task in tasks)
                self._learn(berth)
            except torch.AcceleratorError:
                raise
            except Exception as fault:  # noqa: BLE001  # one output must not end the worker
                error = fault
        if error is not None:
            self._abandon(berth)
            return [failed(job_id, error, berth.meter.gpu_ms)]
        return [Finished(job_id, self._receipt(berth), images=images)]

    def _is_there(self, berth: Berth) -> bool:
        """Its pictures have come to the host, or there is nothing to do until they have."""
        return not self._hub.tasks or all(picture.task.result.is_there() for picture in berth.pictures)

    def _sketch(self, berth: Berth) -> Sketch | None:
        if not berth.job.has_preview:
            return None
        glimpses = [picture.glimpse for picture in berth.pictures]
        sketch, berth.drawn_s = self._sketcher.sketch(glimpses, berth.drawn_s)
        return sketch

    def _learn(self, berth: Berth) -> None:
        for picture in () if berth.job.is_rehearsal else berth.pictures:
            self._sketcher.learn(picture.glimpse, picture.task.result.tensor())

    def _abandon(self, berth: Berth) -> None:
        for picture in berth.pictures:
            self._hub.evict(picture.task)

    def _receipt(self, berth: Berth) -> Receipt:
        return make_receipt(self._spec, self._place, berth.input.seed, berth.meter, set_of(berth.input.loras))


def _first_output(pipe: Any, arguments: dict[str, Any]) -> HostCopy:
    return HostCopy(as_floats(outputs_of(pipe(**arguments))[0]).detach())
