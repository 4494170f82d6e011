"""The image engine: diffusers pipelines at the denoiser rendezvous, one greenlet for each image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from torch import nn

from genmill.extras import set_of
from genmill.registry import Batching, ModelSpec, Optimization
from worker.engines.base import (
    Curve,
    EngineJob,
    Event,
    Finished,
    Left,
    ModelMemory,
    Progress,
    Receipt,
    Sketch,
    Undeveloped,
)
from worker.engines.batches import Phase
from worker.engines.berths import Berth, Picture, Steps, call_back, make_way, yielding
from worker.engines.components import Components
from worker.engines.copies import Copies
from worker.engines.crew import Crew
from worker.engines.curve import published
from worker.engines.devices import keep_freed_memory, name_of_device
from worker.engines.memory import MemoryModel, meter_of, name_of
from worker.engines.overlap import HostCopy
from worker.engines.pictures import as_floats, outputs_of, undeveloped
from worker.engines.pipelines import denoiser_of, in_one_place, upcast_autoencoder
from worker.engines.previews import Sketcher
from worker.engines.prototypes import Prototypes
from worker.engines.receipts import Place, failed, make_receipt
from worker.engines.rendezvous import Hub
from worker.engines.shelf import Weights, modules_of

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
        self._prototypes = Prototypes(spec, pipe, controlnets, in_one_place)
        upcast_autoencoder(pipe)
        self._spec = spec
        self._pipe = pipe
        denoiser = denoiser_of(pipe)
        keep_freed_memory(denoiser.device)
        self._place = Place.of(denoiser)
        self._crew = crew or Crew.of(denoiser.device)
        self._hub = Hub(self._crew, coda_patience=CODA_PATIENCE)
        self._memory = MemoryModel(meter_of(denoiser.device))
        self._weights = Weights([*modules_of(pipe), *controlnets.values()], denoiser.device)
        self.model_bytes = self._weights.bytes
        self._components = Components(spec, pipe, self._hub, controlnets, self._memory)
        self._denoiser = self._components.denoiser
        self._copies = Copies(self._prototypes, self._components, pipe.scheduler)
        self._sketcher = Sketcher()
        self._berths: dict[str, Berth] = {}
        self._refused: list[Event] = []

    @property
    def hub(self) -> Hub:
        return self._hub

    def curves(self) -> Mapping[str, Curve]:
        """Of the denoiser, by the shape of one row."""
        return published(self._place.device, {name_of(shape): one for shape, one in self._denoiser.curves.items()})

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
        return sum(berth.slots for berth in yielding(self._berths.values()))

    def admit(self, jobs: Sequence[EngineJob]) -> None:
        self._memory.refresh()
        for job in jobs:
            try:
                self._berths[job.job_id] = self._board(job)
                if job.is_urgent:
                    make_way(self._berths.values(), self._spec.max_batch)
            except Exception as error:  # noqa: BLE001  # an engine never fails a batch for one job
                self._refused.append(failed(job.job_id, error))

    def step(self) -> list[Event]:
        events, self._refused = self._refused, []
        if self._berths:
            call_back(self._berths.values(), self._spec.max_batch)
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

    def parked_bytes(self) -> int:
        return self._weights.parked_bytes()

    def park(self) -> None:
        if _FIXED.intersection(self._spec.optimizations):
            raise RuntimeError("what was recorded or built of its forwards holds the weights where they are")
        self._weights.park()

    def unpark(self) -> None:
        self._weights.unpark()
        self._memory.refresh()

    def close(self) -> None:
        for job_id in list(self._berths):
            self.evict(job_id)
        self._prototypes.clear()
        del self._components, self._copies
        self._crew.close()
        del self._pipe, self._denoiser
        self._weights.drop()

    def _board(self, job: EngineJob) -> Berth:
        asked = self._prototypes.asked_of(job)
        in_use = {set_of(berth.input.loras) for berth in self._berths.values()}
        calls = [self._copies.of(job, index, in_use) for index in range(asked.num_images)]
        berth = Berth(job, asked)
        for pipe, arguments in calls:
            steps: Steps = pipe.progress_bar
            glimpse = self._sketcher.watch(pipe, asked.width, asked.height, is_wanted=job.has_preview)
            work = partial(_first_output, pipe, arguments)
            task = self._hub.start(
                work, is_urgent=job.is_urgent, is_yielding=job.is_yielding, is_solitary=job.is_reproducible
            )
            berth.pictures.append(Picture(task, steps, glimpse))
        return berth

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
        if error is not None:
            self._abandon(berth)
            return [failed(job_id, error, berth.meter.gpu_ms)]
        images = tuple(self._undeveloped(berth, picture) for picture in berth.pictures)
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

    def _undeveloped(self, berth: Berth, picture: Picture) -> Undeveloped:
        learn = None if berth.job.is_rehearsal else partial(self._sketcher.learn, picture.glimpse)
        return undeveloped(picture.task.result, berth.input.fps, learn)

    def _abandon(self, berth: Berth) -> None:
        for picture in berth.pictures:
            self._hub.evict(picture.task)

    def _receipt(self, berth: Berth) -> Receipt:
        return make_receipt(self._spec, self._place, berth.input.seed, berth.meter, set_of(berth.input.loras))


def _first_output(pipe: Any, arguments: dict[str, Any]) -> HostCopy:
    return HostCopy(as_floats(outputs_of(pipe(**arguments))[0]).detach())
