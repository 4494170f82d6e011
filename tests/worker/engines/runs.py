"""Runs jobs through an engine, and the same jobs alone through the plain pipeline."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import torch
from diffusers import AutoPipelineForImage2Image
from PIL import Image

from genmill.errors import JobFailure
from genmill.inputs import ImageInput
from worker.encoding import developed
from worker.engines import pictures as making
from worker.engines.base import Engine, EngineJob, Event, Failed, Finished, Progress, Video
from worker.engines.pictures import as_floats, as_output
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
    with patch.object(making, "as_output", _as_output_with_floats):
        return [_developed(event) for event in engine.step()]


def _developed(event: Event) -> Event:
    """As the worker does it, elsewhere."""
    if not isinstance(event, Finished):
        return event
    try:
        return replace(event, images=tuple(map(developed, event.images)))
    except JobFailure as error:
        return Failed(event.job_id, error, event.receipt.gpu_ms)


def _as_output_with_floats(output: Any, fps: int | None) -> Image.Image | Video:
    made = as_output(output, fps)
    first = made.frames[0] if isinstance(made, Video) else made
    first.info["floats"] = as_floats(output)
    return made


def together(engine: Engine, jobs: Sequence[EngineJob]) -> dict[str, list[Event]]:
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
    firsts = [one.frames[0] if isinstance(one, Video) else one for one in end.images]
    return [first.info["floats"] for first in firsts]


def alone(pipe: Any, job: EngineJob, further: Mapping[str, Any] = MappingProxyType({})) -> list[torch.Tensor]:
    """The job's images by plain calls of the pipeline, one after another."""
    asked = job.input
    assert isinstance(asked, ImageInput)
    plain = pipe if job.init_image is None else AutoPipelineForImage2Image.from_pipe(pipe)
    accepted = inspect.signature(type(plain).__call__).parameters
    own = getattr(plain, "scheduler", None)
    made = []
    for index in range(asked.num_images):
        if own is not None:
            plain.scheduler = make_scheduler(own, asked.scheduler)
        wanted = {**plain_arguments(asked, index, job.init_image), **further}
        output = plain(**{name: value for name, value in wanted.items() if name in accepted and value is not None})
        made.append(as_floats((output.images if hasattr(output, "images") else output.frames)[0]))
    if own is not None:
        plain.scheduler = own
    return made


def plain_arguments(asked: ImageInput, index: int, init_image: Image.Image | None) -> dict[str, Any]:
    """What a client of diffusers would write for image `index`, of which a pipeline may not take all."""
    size = (asked.width, asked.height)
    return {
        "prompt": asked.prompt,
        "negative_prompt": asked.negative_prompt or None,
        "width": asked.width,
        "height": asked.height,
        "num_frames": asked.num_frames,
        "frame_rate": asked.fps,
        "num_inference_steps": asked.steps,
        "guidance_scale": asked.guidance,
        "generator": torch.Generator().manual_seed(asked.seed + index),
        "output_type": "pt",
        "image": None if init_image is None else init_image.resize(size, Image.Resampling.LANCZOS),
        "strength": asked.strength,
    }


def worst_difference(pipe: Any, jobs: Sequence[EngineJob], events: dict[str, list[Event]], **further: Any) -> float:
    """Over all pixels of all jobs, against the same job alone, by calls with `further` arguments."""
    differences = [0.0]
    for job in jobs:
        got, expected = pictures(events[job.job_id]), alone(pipe, job, further)
        assert len(got) == len(expected)
        differences += [float((one - other).abs().max()) for one, other in zip(got, expected, strict=True)]
    return max(differences)
