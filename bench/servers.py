"""Three ways to serve the same image jobs: one plain call after another, static batches, the rendezvous."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from bench.traffic import Arrival
from genmill.inputs import ImageInput
from genmill.registry import ModelSpec
from worker.encoding import developed
from worker.engines.base import EngineJob, Finished
from worker.engines.diffusion import DiffusionEngine
from worker.engines.pipelines import call_arguments, parameters_of
from worker.engines.schedulers import make_scheduler

Picture = NDArray[np.float32]


@dataclass(slots=True)
class Served:
    """One pass: seconds from a job's arrival to its end, by id; all pictures; images in a forward."""

    wall_s: float = 0.0
    waits_s: dict[str, float] = field(default_factory=dict)
    pictures: dict[str, Picture] = field(default_factory=dict)
    mean_batch: float = 0.0

    def percentile_s(self, percent: float) -> float:
        return float(np.percentile(list(self.waits_s.values()), percent))


class Server(Protocol):
    """`work` does what it can with the jobs that wait, takes from the list what it takes, and returns what is done."""

    def work(self, waiting: list[EngineJob]) -> dict[str, Picture]: ...
    def is_idle(self) -> bool: ...
    def take_counts(self) -> tuple[int, int]:
        """Steps of images, and forwards of the denoiser, since the last call."""
        ...


def serve(server: Server, arrivals: Sequence[Arrival], clock: Callable[[], float] = time.perf_counter) -> Served:
    """All jobs in real time, none before it has come."""
    served, coming, waiting = Served(), sorted(arrivals, key=lambda arrival: arrival.at_s), []
    arrived, began = {arrival.job.job_id: arrival.at_s for arrival in arrivals}, clock()
    server.take_counts()
    while coming or waiting or not server.is_idle():
        now = clock() - began
        while coming and coming[0].at_s <= now:
            waiting.append(coming.pop(0).job)
        if not waiting and server.is_idle():
            time.sleep(max(0.0, coming[0].at_s - now))
            continue
        for job_id, picture in server.work(waiting).items():
            served.pictures[job_id] = picture
            served.waits_s[job_id] = clock() - began - arrived[job_id]
    served.wall_s = clock() - began
    steps, forwards = server.take_counts()
    served.mean_batch = steps / forwards
    return served


class PipelineServer:
    """Unpatched pipeline calls for the first job that waits and those that are alike, `most` at once: 1 for one call
    after another, more for static batches as servers make them today."""

    def __init__(self, pipe: Any, most: int) -> None:
        self._pipe, self._most, self._counts = pipe, most, (0, 0)
        self._own_scheduler = pipe.scheduler
        pipe.set_progress_bar_config(disable=True)

    def work(self, waiting: list[EngineJob]) -> dict[str, Picture]:
        batch = [job for job in waiting if kind_of(job) == kind_of(waiting[0])][: self._most]
        for job in batch:
            waiting.remove(job)
        inputs = [image_input(job) for job in batch]
        self._pipe.scheduler = make_scheduler(self._own_scheduler, inputs[0].scheduler)
        calls = [call_arguments(parameters_of(self._pipe), asked, 0, None) for asked in inputs]
        output = self._pipe(**joined(calls)).images
        steps = inputs[0].steps
        self._counts = (self._counts[0] + len(batch) * steps, self._counts[1] + steps)
        return {job.job_id: to_picture(image) for job, image in zip(batch, output, strict=True)}

    def is_idle(self) -> bool:
        return True

    def take_counts(self) -> tuple[int, int]:
        counts, self._counts = self._counts, (0, 0)
        return counts


class RendezvousServer:
    """The engine, as the worker drives it: new jobs join as slots allow."""

    def __init__(self, spec: ModelSpec, pipe: Any) -> None:
        self.engine = DiffusionEngine.from_pipeline(spec, pipe)
        self._steps, self._forwards = 0, 0

    def work(self, waiting: list[EngineJob]) -> dict[str, Picture]:
        free = self.engine.free_slots()
        self.engine.admit(waiting[:free])
        del waiting[:free]
        ended = [event for event in self.engine.step() if isinstance(event, Finished)]
        self._steps += sum(event.receipt.forwards for event in ended)
        return {event.job_id: np.asarray(developed(event.images[0]), dtype=np.float32) / 255 for event in ended}

    def is_idle(self) -> bool:
        return self.engine.is_idle()

    def take_counts(self) -> tuple[int, int]:
        counts = self._steps, self.engine.hub.forwards - self._forwards
        self._steps, self._forwards = 0, self.engine.hub.forwards
        return counts


def image_input(job: EngineJob) -> ImageInput:
    assert isinstance(job.input, ImageInput)
    return job.input


def kind_of(job: EngineJob) -> tuple[Any, ...]:
    """What jobs of one static batch have in common."""
    asked = image_input(job)
    return (asked.width, asked.height, asked.steps, asked.guidance, asked.scheduler)


def joined(calls: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One call for all: lists of prompts and generators, the rest is alike."""
    if len(calls) == 1:
        return calls[0]
    own = ("prompt", "negative_prompt", "generator")
    return {
        name: [call[name] for call in calls] if name in own else value
        for name, value in calls[0].items()
        if name != "negative_prompt" or all(name in call for call in calls)
    }


def to_picture(image: torch.Tensor) -> Picture:
    picture: Picture = image.detach().float().cpu().permute(1, 2, 0).numpy()
    return picture
