"""Previews: what the map learns, how near they come, and that they cost nobody's picture anything."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from genmill.inputs import SchedulerName
from genmill.registry import load_registry
from tests.worker.engines import tiny
from tests.worker.engines.runs import finish, image_job, worst_difference
from worker.engines.base import EngineJob, Finished, Progress
from worker.engines.diffusion import DiffusionEngine
from worker.engines.loader import load_engine
from worker.engines.previews import EVERY_S, MOST_PICTURES, Glimpse, LatentMap, Sketcher


class Clock:
    """Each look at it takes as long as two previews are apart at least."""

    def __init__(self, each_s: float = EVERY_S) -> None:
        self.now_s, self.each_s = 100.0, each_s

    def __call__(self) -> float:
        self.now_s += self.each_s
        return self.now_s


def sketches(events: list[Any]) -> dict[int, Image.Image]:
    return {event.step: event.sketch() for event in events if isinstance(event, Progress) and event.sketch}


def preview_job(job_id: str, **changes: Any) -> EngineJob:
    job = image_job(job_id, **changes)
    return EngineJob(job.job_id, job.input, has_preview=True)


def likeness(one: Image.Image, other: Image.Image) -> float:
    """Correlation of their colours at the size of the smaller."""
    small, large = sorted((one, other), key=lambda image: image.width)
    values = [np.asarray(image.resize(small.size), dtype=float).ravel() for image in (small, large)]
    return float(np.corrcoef(*values)[0, 1])


def test_a_linear_decoder_is_found_exactly() -> None:
    torch.manual_seed(0)
    weights, shift = torch.rand(3, 4) * 0.1, torch.tensor([0.3, 0.5, 0.6])
    known = LatentMap()
    for _ in range(2):
        latents = torch.randn(4, 6, 5)
        colours = torch.einsum("kc,chw->khw", weights, latents) + shift[:, None, None]
        known.learn(latents, colours.repeat_interleave(8, 1).repeat_interleave(8, 2))
    assert torch.allclose(known.weights(), torch.cat([weights, shift[:, None]], 1).double(), atol=1e-3)
    assert torch.allclose(known.colours(latents), colours.clamp(0, 1), atol=2e-3)


def test_the_shipped_model_is_seen_early(one_thread: None) -> None:
    """A preview at a third of the steps is more like its own picture than like any other."""
    spec = load_registry().get("shapes")
    engine = load_engine(spec, device="cpu")
    engine._sketcher._clock = Clock()
    asked = {"width": 64, "height": 64, "steps": 12, "guidance": 4.0}
    colours = ("red", "green", "blue", "yellow", "purple", "white", "orange", "black")

    def prompt(number: int, distance: int) -> str:
        return f"a {colours[number]} circle on a {colours[number - distance]} background"

    engine.admit([image_job(f"learnt{n}", prompt=prompt(n, 1), seed=n, **asked) for n in range(8)])
    finish(engine)
    engine.admit([preview_job(f"{n}", prompt=prompt(n, 3), seed=50 + n, **asked) for n in range(8)])
    events = finish(engine)
    ends = [end for n in range(8) if isinstance(end := events[f"{n}"][-1], Finished)]
    seen = [sketches(events[f"{n}"])[4] for n in range(8)]
    likenesses = np.array([[likeness(sketch, end.images[0]) for end in ends] for sketch in seen])
    assert likenesses.diagonal().mean() > 0.55
    assert (likenesses.argmax(axis=1) == np.arange(8)).sum() >= 6
    engine.close()


@pytest.mark.parametrize("scheduler", SchedulerName)
def test_watching_changes_no_picture(scheduler: SchedulerName) -> None:
    pipe = tiny.stable_diffusion()
    engine = DiffusionEngine.from_pipeline(tiny.spec(), pipe)
    engine._sketcher._clock = Clock()
    first = [preview_job("a", scheduler=scheduler, steps=6), preview_job("b", scheduler=scheduler, num_images=2)]
    engine.admit(first)
    events = finish(engine)
    assert worst_difference(pipe, first, events) < 1e-4
    assert not sketches(events["a"]) or engine._sketcher.map.pictures
    engine.admit([preview_job("c", scheduler=scheduler, num_images=2)])
    drawn = sketches(finish(engine)["c"])
    assert drawn
    assert {image.size for image in drawn.values()} == {(32, 16)}  # two latents of 16 x 16 beside each other


@pytest.mark.parametrize("build", [tiny.stable_diffusion_xl, tiny.stable_diffusion_3, tiny.flux])
def test_other_pipelines_have_previews_as_well(build: Any) -> None:
    engine = DiffusionEngine.from_pipeline(tiny.spec(), build())
    engine._sketcher._clock = Clock()
    engine.admit([preview_job("a")])
    finish(engine)
    engine.admit([preview_job("b")])
    assert {image.size for image in sketches(finish(engine)["b"]).values()} == {(16, 16)}


def test_previews_are_as_far_apart_as_they_should_and_only_where_asked_for() -> None:
    engine = DiffusionEngine.from_pipeline(tiny.spec(), tiny.stable_diffusion())
    engine._sketcher._clock = Clock(EVERY_S / 3 + 0.001)
    engine.admit([preview_job("a"), image_job("b")])
    finish(engine)
    engine.admit([preview_job("a", steps=13), image_job("b", steps=13)])
    events = finish(engine)
    assert sorted(sketches(events["a"])) == [1, 4, 7, 10]
    assert not sketches(events["b"])


def test_latents_of_finished_pictures_are_no_longer_watched_once_the_map_is_done() -> None:
    engine = DiffusionEngine.from_pipeline(tiny.spec(), tiny.stable_diffusion())
    engine.admit([image_job(f"job{number}", steps=1, seed=number) for number in range(MOST_PICTURES + 1)])
    finish(engine)
    assert engine._sketcher.map.pictures == MOST_PICTURES
    engine.admit([image_job("plain"), preview_job("seen")])
    glimpses = {job_id: berth.pictures[0].glimpse for job_id, berth in engine._berths.items()}
    assert glimpses["plain"] is None
    assert isinstance(glimpses["seen"], Glimpse)
    finish(engine)


def test_a_pipeline_still_sees_what_its_scheduler_takes() -> None:
    pipe = tiny.stable_diffusion()
    before = inspect.signature(pipe.scheduler.step)
    Sketcher().watch(pipe, 32, 32, is_wanted=True)
    assert inspect.signature(pipe.scheduler.step) == before


def test_latents_of_another_form_have_no_previews() -> None:
    glimpse = Glimpse(lambda latents: latents)
    assert glimpse.image_of(torch.zeros(1, 4, 3, 8, 8)) is None
    assert glimpse.image_of(torch.zeros(1, 64, 16)) is None
    assert glimpse.image_of(None) is None
    sketcher = Sketcher()
    sketcher.learn(Glimpse(lambda latents: latents, latents=torch.full((1, 4, 2, 2), torch.nan)), torch.zeros(3, 4, 4))
    assert sketcher.map.pictures == 0
