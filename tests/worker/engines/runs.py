"""Runs jobs through an engine, and the same jobs alone through the plain pipeline."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import torch
from diffusers import AutoPipelineForImage2Image
from PIL import Image

from genmill.inputs import ImageInput
from worker.engines import diffusion
from worker.engines.base import Engine, EngineJob, Event, Failed, Finished, Progress
from worker.engines.diffusion import DiffusionEngine
from worker.engines.schedulers import make_scheduler


def image_job(job_id: str, init_image: Image.Image | None = None, **changes: Any) -> EngineJob:
    base = {"prompt": "a red circle", "width": 32, "height": 32, "steps": 4, "guidance": 3.0, "seed": 1}
    return EngineJob(job_id, ImageInput(**{**base, **changes}), init_image)


def finish(engine: Engine, turn: Callable[[int], None] = lambda _: None) -> dict[str, list[Event]]:
    """Steps until nobody is on board; `turn` is called before each step. Events by job."""
    events: dict[str, list[Event]] = {}
    number = 0
    while True:
        turn(number)
        if engine.is_idle():
            return events
        for event in recorded_step(engine):
            events.setdefault(event.job_id, []).append(event)
        number += 1
        assert number < 500, "the engine does not come to an end"


def recorded_step(engine: Engine) -> list[Event]:
    with patch.object(diffusion, "as_image", _as_image_with_floats):
        return engine.step()


_as_image = diffusion.as_image


def _as_image_with_floats(picture: torch.Tensor) -> Image.Image:
    image = _as_image(picture)
    image.info["floats"] = picture
    return image


def together(engine: DiffusionEngine, jobs: Sequence[EngineJob]) -> dict[str, list[Event]]:
    engine.admit(jobs)
    return finish(engine)


def end_of(events: Sequence[Event]) -> Finished | Failed:
    """The one event that ended the job; all before it are progress."""
    *before, end = events
    assert isinstance(end, Finished | Failed)
    assert all(isinstance(event, Progress) for event in before)
    return end


def pictures(events: Sequence[Event]) -> list[torch.Tensor]:
    end = end_of(events)
    assert isinstance(end, Finished), end
    return [image.info["floats"] for image in end.images]


def alone(pipe: Any, job: EngineJob) -> list[torch.Tensor]:
    """The job's images by plain calls of the pipeline, one after another."""
    asked = job.input
    assert isinstance(asked, ImageInput)
    plain = pipe if job.init_image is None else AutoPipelineForImage2Image.from_pipe(pipe)
    arguments: dict[str, Any] = {"width": asked.width, "height": asked.height}
    if job.init_image is not None:
        if "width" not in inspect.signature(type(plain).__call__).parameters:
            arguments = {}  # the start image's size is the size
        arguments["image"] = job.init_image.resize((asked.width, asked.height), Image.Resampling.LANCZOS)
        arguments["strength"] = asked.strength
    own = plain.scheduler
    made = []
    for index in range(asked.num_images):
        plain.scheduler = make_scheduler(own, asked.scheduler)
        output = plain(
            prompt=asked.prompt,
            negative_prompt=asked.negative_prompt or None,
            num_inference_steps=asked.steps,
            guidance_scale=asked.guidance,
            generator=torch.Generator().manual_seed(asked.seed + index),
            output_type="pt",
            **arguments,
        )
        made.append(output.images[0])
    plain.scheduler = own
    return made


def worst_difference(pipe: Any, jobs: Sequence[EngineJob], events: dict[str, list[Event]]) -> float:
    """Over all pixels of all jobs, against the same job alone."""
    differences = [0.0]
    for job in jobs:
        got, expected = pictures(events[job.job_id]), alone(pipe, job)
        assert len(got) == len(expected)
        differences += [float((one - other).abs().max()) for one, other in zip(got, expected, strict=True)]
    return max(differences)
