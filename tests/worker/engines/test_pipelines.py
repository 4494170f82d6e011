"""Every image is the one that the plain pipeline makes, whoever shares its forwards."""

from typing import Any

import numpy as np
import pytest
from PIL import Image

from genmill.inputs import SchedulerName
from tests.worker.engines import tiny
from tests.worker.engines.runs import end_of, finish, image_job, pictures, together, worst_difference
from worker.engines.base import EngineJob, Failed, Finished, Left
from worker.engines.crew import Crew
from worker.engines.diffusion import DiffusionEngine
from worker.engines.schedulers import make_scheduler

TOLERANCE = 1e-4
NOISE = tuple(SchedulerName)
FLOW = (SchedulerName.DEFAULT, SchedulerName.EULER, SchedulerName.HEUN, SchedulerName.DPM, SchedulerName.UNIPC)
FLUX = (SchedulerName.DEFAULT, SchedulerName.EULER)


def picture(size: int = 40) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 255, (size, size, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def mixed(schedulers: tuple[SchedulerName, ...], count: int = 12) -> list[EngineJob]:
    """Steps, guidance, schedulers, sizes, prompts and numbers of images all differ."""
    return [
        image_job(
            f"job{index}",
            prompt="a red circle " * (index % 3 + 1),
            negative_prompt="dark" if index % 2 else "",
            width=48 if index % 4 == 3 else 32,
            steps=2 + index % 6,
            guidance=(1.0, 3.0, 7.5)[index % 3],
            scheduler=schedulers[index % len(schedulers)],
            seed=index,
            num_images=2 if index % 5 == 0 else 1,
        )
        for index in range(count)
    ]


@pytest.mark.parametrize(
    ("build", "schedulers"),
    [
        (tiny.stable_diffusion, NOISE),
        (tiny.stable_diffusion_xl, NOISE),
        (tiny.stable_diffusion_3, FLOW),
        (tiny.flux, FLUX),
    ],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_mixed_batch_gives_each_the_image_that_it_has_alone(build: Any, schedulers: Any, threads: int) -> None:
    pipe, jobs = build(), mixed(schedulers)
    engine = DiffusionEngine.from_pipeline(tiny.spec(), pipe, Crew(threads))
    events = together(engine, jobs)
    engine.close()
    assert worst_difference(pipe, jobs, events) < TOLERANCE
    ends = [end_of(events[job.job_id]) for job in jobs]
    assert max(end.receipt.batch_max for end in ends if isinstance(end, Finished)) >= 6


@pytest.mark.parametrize(
    ("build", "schedulers"),
    [(tiny.stable_diffusion_xl, NOISE), (tiny.stable_diffusion_3, FLOW[:3]), (tiny.flux, FLUX)],
)
def test_a_large_batch_with_strong_guidance_and_images_to_start_from_does_the_same(
    build: Any, schedulers: Any
) -> None:
    pipe = build()
    jobs = [
        image_job(
            f"job{index}",
            init_image=picture() if index % 3 == 2 else None,
            width=48 if index % 4 == 3 else 32,
            steps=(5, 9, 14)[index % 3],
            guidance=(2.5, 7.5, 12.0)[index // 3 % 3],
            scheduler=schedulers[index % len(schedulers)],
            seed=100 + index,
        )
        for index in range(30)
    ]
    engine = DiffusionEngine.from_pipeline(tiny.spec(max_batch=32), pipe, Crew(2))
    events = together(engine, jobs)
    engine.close()
    assert worst_difference(pipe, jobs, events) < TOLERANCE
    ends = [end_of(events[job.job_id]) for job in jobs]
    assert max(end.receipt.batch_max for end in ends if isinstance(end, Finished)) >= 20


@pytest.mark.parametrize("name", NOISE)
def test_no_scheduler_clips_latents_that_the_models_own_does_not(name: SchedulerName) -> None:
    own = tiny.stable_diffusion_xl().scheduler
    assert "clip_sample" not in own.config
    assert make_scheduler(own, name).config.get("clip_sample", False) is False


@pytest.mark.parametrize("scheduler", [SchedulerName.DPM, SchedulerName.UNIPC])
def test_a_scheduler_that_cannot_start_from_an_image_is_named(scheduler: SchedulerName) -> None:
    engine = DiffusionEngine.from_pipeline(tiny.spec(), tiny.stable_diffusion_3())
    end = end_of(together(engine, [image_job("a", init_image=picture(), scheduler=scheduler)])["a"])
    assert isinstance(end, Failed)
    assert f"scheduler {scheduler} cannot start from an image" in end.error.detail


@pytest.mark.parametrize(
    "build", [tiny.stable_diffusion, tiny.stable_diffusion_xl, tiny.stable_diffusion_3, tiny.flux]
)
def test_image_to_image_shares_forwards_with_text_to_image(build: Any) -> None:
    pipe = build()
    start = picture()
    jobs = [
        image_job("from-image", start, steps=5, strength=0.6),
        image_job("strong", start, steps=4, strength=1.0, seed=9),
        image_job("from-text", steps=3, seed=3),
        image_job("wide", start, width=48, steps=6, strength=0.5),
    ]
    events = together(DiffusionEngine.from_pipeline(tiny.spec(), pipe), jobs)
    assert worst_difference(pipe, jobs, events) < TOLERANCE
    text = end_of(events["from-text"])
    assert isinstance(text, Finished)
    assert text.receipt.batch_max == 3
    wide = end_of(events["wide"])
    assert isinstance(wide, Finished)
    assert wide.images[0].size == (48, 32)


def test_jobs_join_a_running_batch_at_any_step() -> None:
    pipe = tiny.stable_diffusion()
    engine = DiffusionEngine.from_pipeline(tiny.spec(), pipe)
    jobs = [image_job(f"job{index}", seed=index, steps=4 + index) for index in range(5)]
    engine.admit(jobs[:1])

    def join(turn: int) -> None:
        engine.admit(jobs[turn : turn + 1] if turn else [])

    events = finish(engine, join)
    assert worst_difference(pipe, jobs, events) < TOLERANCE
    first = end_of(events["job0"])
    assert isinstance(first, Finished)
    assert (first.receipt.batch_min, first.receipt.batch_max) == (1, 4)


def test_an_evicted_job_leaves_the_others_as_they_are() -> None:
    pipe = tiny.stable_diffusion()
    engine = DiffusionEngine.from_pipeline(tiny.spec(), pipe)
    jobs = [image_job(f"job{index}", seed=index, steps=6) for index in range(4)]
    engine.admit(jobs)
    told: list[Left | None] = []

    def evict(turn: int) -> None:
        if turn == 3:
            told.append(engine.evict("job2"))

    events = finish(engine, evict)
    assert [left.step for left in told if left] == [3]
    assert all(left and left.gpu_ms > 0 for left in told)
    assert all(not isinstance(event, Finished | Failed) for event in events["job2"])
    assert worst_difference(pipe, [job for job in jobs if job.job_id != "job2"], events) < TOLERANCE
    assert engine.evict("job2") is None


def test_the_same_job_again_on_the_same_engine_gives_the_same_image() -> None:
    engine = DiffusionEngine.from_pipeline(tiny.spec(), tiny.stable_diffusion())
    first = pictures(together(engine, [image_job("a")])["a"])
    again = pictures(together(engine, [image_job("a")])["a"])
    assert first[0].equal(again[0])


def test_progress_counts_the_steps_that_really_run() -> None:
    engine = DiffusionEngine.from_pipeline(tiny.spec(), tiny.stable_diffusion())
    jobs = [
        image_job("heun", scheduler=SchedulerName.HEUN, steps=3),
        image_job("from-image", picture(), steps=6, strength=0.5),
    ]
    events = together(engine, jobs)
    assert [(event.step, event.steps) for event in events["heun"][:-1]][-1] <= (3, 3)
    assert {event.steps for event in events["from-image"][:-1]} == {3}


def test_sampler_of_the_wrong_kind_fails_its_job_alone() -> None:
    engine = DiffusionEngine.from_pipeline(tiny.spec(), tiny.flux())
    events = together(engine, [image_job("a", scheduler=SchedulerName.DDIM), image_job("b")])
    end = end_of(events["a"])
    assert isinstance(end, Failed)
    assert "ddim" in end.error.detail
    assert isinstance(end_of(events["b"]), Finished)
