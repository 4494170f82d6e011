"""Static batches: who shares a call, what each gets, how faults, cancels and urgent jobs are met between steps."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from diffusers import AutoPipelineForInpainting
from PIL import Image

from genmill.errors import OutputInvalid
from genmill.inputs import Control, ImageInput, Lora, SchedulerName, TextInput
from genmill.keys import JobClass
from genmill.registry import Batching
from tests.worker.engines import tiny, tiny_more, tiny_static
from tests.worker.engines.runs import (
    end_of,
    finish,
    image_job,
    pictures,
    plain_arguments,
    together,
    worst_difference,
)
from worker.engines.base import EngineJob, Event, Failed, Finished, Left, Progress
from worker.engines.images import image_engine
from worker.engines.pipelines import parameters_of
from worker.engines.sites import can_park
from worker.engines.static import StaticEngine

TOLERANCE = 1e-4


@pytest.fixture
def pipe() -> Any:
    return tiny_static.painter()


def engine_of(pipe: Any, max_batch: int = 8) -> StaticEngine:
    engine = image_engine(tiny.spec(max_batch), pipe)
    assert isinstance(engine, StaticEngine)
    return engine


def alike(count: int, **changes: Any) -> list[EngineJob]:
    """They differ in prompts, lengths of prompts and seeds."""
    return [
        image_job(f"job{index}", prompt="a red circle " * (index % 3 + 1), seed=index, **changes)
        for index in range(count)
    ]


def bulk(jobs: Sequence[EngineJob]) -> list[EngineJob]:
    return [replace(job, job_class=JobClass.P3, vd_ms=9e12) for job in jobs]


def finished(events: Sequence[Event]) -> Finished:
    end = end_of(events)
    assert isinstance(end, Finished), end
    return end


def test_who_differs_in_prompt_and_seed_alone_shares_a_call(pipe: Any) -> None:
    jobs = alike(4)
    events = together(engine_of(pipe), jobs)
    assert pipe.calls == [4]
    assert worst_difference(pipe, jobs, events) < TOLERANCE
    receipt = finished(events["job0"]).receipt
    assert (receipt.forwards, receipt.batch_min, receipt.batch_max) == (4, 4, 4)
    assert [event.step for event in events["job0"] if isinstance(event, Progress)] == [1, 2, 3, 4]


def test_others_run_one_after_another_by_their_deadlines(pipe: Any) -> None:
    jobs = [
        replace(job, vd_ms=float(10 - index))
        for index, job in enumerate(
            [
                *alike(2, guidance=2.0),
                image_job("slow", steps=6),
                image_job("wide", width=48),
                image_job("against", negative_prompt="dark"),
                image_job("euler", scheduler=SchedulerName.EULER_A, num_images=3),
            ]
        )
    ]
    events = together(engine_of(pipe, 16), jobs)
    assert pipe.calls == [3, 1, 1, 1, 2]
    assert worst_difference(pipe, jobs, events) < TOLERANCE
    assert len(finished(events["euler"]).images) == 3


def test_slots_are_free_between_calls_alone(pipe: Any) -> None:
    engine = engine_of(pipe, 4)
    assert (engine.free_slots(), engine.urgent_slots()) == (4, 0)
    engine.admit([*alike(2, steps=3), image_job("other", steps=2)])
    assert engine.free_slots() == 1
    free = []
    while not engine.is_idle():
        engine.step()
        free.append(engine.free_slots())
    assert free == [0, 0, 0, 3, 0, 0, 4]


def test_a_step_of_the_engine_is_a_step_of_the_pipeline(pipe: Any) -> None:
    engine = engine_of(pipe)
    engine.admit([image_job("a", steps=5)])
    events = finish(engine)
    steps = [(event.step, event.steps) for event in events["a"] if isinstance(event, Progress)]
    assert steps == [(step, 5) for step in range(1, 6)]


@pytest.mark.parametrize("scheduler", [SchedulerName.HEUN, SchedulerName.DPM, SchedulerName.EULER])
def test_samplers_of_second_order_too_count_steps(scheduler: SchedulerName) -> None:
    pipe, jobs = tiny.stable_diffusion(), alike(3, scheduler=scheduler, steps=3)
    events = together(StaticEngine.from_pipeline(tiny.spec(), pipe), jobs)
    steps = [event.step for event in events["job0"] if isinstance(event, Progress)]
    assert steps == sorted(set(steps))
    assert steps[-1] == 3
    assert worst_difference(pipe, jobs, events) < TOLERANCE


def test_the_culprit_of_a_shared_call_is_found_by_halving(pipe: Any) -> None:
    def fault(step: int, prompts: list[str]) -> Exception | None:
        return ValueError("cannot paint this") if step == 2 and "poison" in prompts else None

    pipe.fault = fault
    jobs = [*alike(7), image_job("bad", prompt="poison")]
    events = together(engine_of(pipe), jobs)
    end = end_of(events["bad"])
    assert isinstance(end, Failed)
    assert end.error.detail == "the model raised ValueError while it worked on this job; it is logged"
    assert end.gpu_ms > 0
    assert pipe.calls == [8, 4, 4, 2, 2, 1, 1]
    assert worst_difference(pipe, jobs[:7], events) < TOLERANCE


def test_out_of_memory_teaches_how_many_fit(pipe: Any) -> None:
    pipe.fault = lambda _step, prompts: torch.OutOfMemoryError("no room") if len(prompts) > 3 else None
    engine, jobs = engine_of(pipe), alike(8)
    assert all(isinstance(end_of(one), Finished) for one in together(engine, jobs).values())
    assert max(pipe.calls[3:]) <= 4
    pipe.calls.clear()
    assert worst_difference(pipe, jobs, together(engine, jobs)) < TOLERANCE
    assert pipe.calls[:4] == [2, 2, 2, 2]


def test_nan_fails_its_job_alone(pipe: Any) -> None:
    decode = pipe.vae.decode

    def spoiled(latents: torch.Tensor) -> Any:
        decoded = decode(latents)
        decoded.sample[1] = torch.nan
        return decoded

    pipe.vae.decode = spoiled
    events = together(engine_of(pipe), alike(3))
    end = end_of(events["job1"])
    assert isinstance(end, Failed)
    assert isinstance(end.error, OutputInvalid)
    assert isinstance(end_of(events["job2"]), Finished)


def test_who_is_canceled_between_steps_leaves_the_others_as_they_are(pipe: Any) -> None:
    engine, jobs = engine_of(pipe), alike(4, steps=5)
    engine.admit(jobs)
    left: list[Left | None] = []
    events = finish(engine, lambda turn: left.append(engine.evict("job2")) if turn == 2 else None)
    assert left[0] is not None
    assert (left[0].step, left[0].gpu_ms > 0) == (2, True)
    assert [type(event) for event in events["job2"]] == [Progress, Progress]
    assert worst_difference(pipe, [job for job in jobs if job.job_id != "job2"], events) < TOLERANCE
    assert engine.evict("job2") is None


def test_the_last_to_leave_ends_the_call(pipe: Any) -> None:
    engine = engine_of(pipe)
    steps: list[int] = []
    pipe.fault = lambda step, _prompts: steps.append(step)
    engine.admit(alike(2, steps=9))
    engine.step()
    engine.evict("job0")
    engine.evict("job1")
    assert engine.is_idle()
    assert engine.free_slots() == 8
    assert engine.step() == []
    assert steps == [0]
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


def test_an_urgent_job_goes_before_bulk_that_rests_once(pipe: Any) -> None:
    engine, jobs = engine_of(pipe), bulk(alike(2, steps=6))
    first, second = (replace(image_job(name, seed=9), job_class=JobClass.P0) for name in ("first", "second"))
    free: list[int] = []
    ends: list[str] = []

    def play(turn: int) -> None:
        free.append(engine.urgent_slots())
        if turn == 2:
            engine.admit([first])
        if turn == 4:
            engine.admit([second])

    engine.admit(jobs)
    events = finish(engine, play)
    ends = [job_id for job_id, of_job in events.items() if isinstance(of_job[-1], Finished)]
    assert set(ends) == {"first", "second", "job0", "job1"}
    assert pipe.calls == [2, 1, 1]
    assert free[1] == 8
    assert free[3] == 0
    assert worst_difference(pipe, [*jobs, first, second], events) < TOLERANCE


def test_an_urgent_job_waits_for_a_call_that_is_no_bulk(pipe: Any) -> None:
    engine = engine_of(pipe)
    order: list[str] = []
    pipe.fault = lambda _step, prompts: order.append(prompts[0])
    engine.admit([image_job("a", prompt="usual", steps=3)])
    engine.step()
    assert engine.urgent_slots() == 0
    engine.admit([replace(image_job("b", prompt="urgent", steps=2), job_class=JobClass.P0)])
    finish(engine)
    assert order == ["usual"] * 3 + ["urgent"] * 2


def test_bulk_does_not_ride_along_with_an_urgent_job(pipe: Any) -> None:
    engine = engine_of(pipe)
    engine.admit([*bulk(alike(2)), replace(image_job("urgent"), job_class=JobClass.P0), image_job("usual")])
    finish(engine)
    assert pipe.calls == [2, 2]


def test_a_reproducible_job_shares_no_call(pipe: Any) -> None:
    modes: list[tuple[int, bool]] = []
    pipe.fault = lambda _, prompts: modes.append((len(prompts), torch.are_deterministic_algorithms_enabled()))
    jobs = [*alike(2, steps=1), replace(image_job("mine", steps=1), is_reproducible=True)]
    events = together(engine_of(pipe), jobs)
    assert modes == [(2, False), (1, True)]
    assert finished(events["mine"]).receipt.batch_max == 1


def test_a_pipeline_that_cannot_count_prompts_gets_one_at_a_time() -> None:
    pipe = tiny_static.painter(tiny_static.Miser)
    engine, jobs = engine_of(pipe), alike(3)
    assert worst_difference(pipe, jobs, together(engine, jobs)) < TOLERANCE
    pipe.calls.clear()
    together(engine, jobs)
    assert pipe.calls == [1, 1, 1]


def test_a_pipeline_without_callback_parks_in_its_progress_bar() -> None:
    pipe = tiny_static.painter(tiny_static.QuietPainter)
    jobs = alike(3, steps=3)
    engine = engine_of(pipe)
    events = together(engine, jobs)
    assert [event.step for event in events["job0"] if isinstance(event, Progress)] == [1, 2, 3]
    assert worst_difference(pipe, jobs, events) < 1 / 255  # it gives PIL images alone


def test_a_denoiser_that_nobody_declared_and_no_prompts() -> None:
    pipe = tiny_static.ddpm()
    jobs = alike(2, steps=3)
    events = together(engine_of(pipe), jobs)
    assert [event.step for event in events["job0"] if isinstance(event, Progress)] == [1, 2, 3]
    assert finished(events["job0"]).receipt.batch_max == 1
    assert worst_difference(pipe, jobs, events) < TOLERANCE


def test_pipelines_in_a_pipeline_share_calls_and_park_in_each() -> None:
    pipe = tiny_static.stable_cascade()
    spec = tiny.spec().model_copy(update={"arguments": {"prior_num_inference_steps": 3}})
    engine = image_engine(spec, pipe)
    jobs = bulk(alike(3, steps=2))
    turns = []
    engine.admit(jobs)
    events = finish(engine, turns.append)
    assert len(turns) == 3 + 2 + 2  # the prior's, the decoder's, one to decode and one to find nobody on board
    assert [event.step for event in events["job0"] if isinstance(event, Progress)] == [1, 2]
    assert finished(events["job0"]).receipt.batch_max == 3
    assert worst_difference(pipe, jobs, events, prior_num_inference_steps=3) < TOLERANCE


def test_a_pipeline_in_a_pipeline_keeps_its_scheduler_and_does_not_rest() -> None:
    engine = engine_of(tiny_static.stable_cascade())
    engine.admit([*bulk(alike(1)), image_job("other", scheduler=SchedulerName.EULER)])
    (event,) = engine.step()
    assert isinstance(event, Failed)
    assert "has its own scheduler alone, the job asks for euler" in event.error.detail
    assert engine.urgent_slots() == 0
    engine.close()
    assert engine.is_idle()


def test_images_to_start_from_are_not_shared() -> None:
    pipe = tiny_more.stable_diffusion_2()
    start = Image.new("RGB", (40, 40), "red")
    jobs = [*alike(2), *(replace(job, job_id=f"from{job.job_id}", init_image=start) for job in alike(2))]
    events = together(StaticEngine.from_pipeline(tiny.spec(), pipe), jobs)
    assert finished(events["job0"]).receipt.batch_max == 2
    assert finished(events["fromjob0"]).receipt.batch_max == 1
    assert worst_difference(pipe, jobs, events) < TOLERANCE


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (EngineJob("a", TextInput(prompt="hello")), "makes images"),
        (image_job("a", Image.new("RGB", (8, 8))), "makes no images from an image"),
        (image_job("a", loras=(Lora(name="ink"),)), "static batches, which take no loras"),
        (image_job("a", control=Control(name="canny", image="stored")), "static batches, which take no control"),
    ],
)
def test_what_the_pipeline_cannot_do_fails_from_a_later_step(pipe: Any, job: EngineJob, reason: str) -> None:
    engine = engine_of(pipe)
    engine.admit([job])
    (event,) = engine.step()
    assert isinstance(event, Failed)
    assert event.error.code == "invalid_job"
    assert reason in event.error.detail
    assert engine.is_idle()


def test_an_adapter_of_weight_0_is_none(pipe: Any) -> None:
    events = together(engine_of(pipe), [image_job("a", loras=(Lora(name="ink", weight=0.0),)), image_job("b")])
    assert finished(events["a"]).receipt.loras == ()


def test_white_of_a_mask_is_painted_anew() -> None:
    pipe = tiny.stable_diffusion()
    start, mask = Image.new("RGB", (32, 32), "red"), Image.new("RGB", (32, 32))
    mask.paste((255, 255, 255), (8, 8, 24, 24))
    engine = StaticEngine.from_pipeline(tiny.spec(), pipe)
    jobs = [replace(job, init_image=start, mask_image=mask) for job in alike(2)]
    events = together(engine, jobs)
    plain = AutoPipelineForInpainting.from_pipe(pipe)
    for job in jobs:
        assert isinstance(job.input, ImageInput)
        arguments = {**plain_arguments(job.input, 0, start), "mask_image": mask.convert("L")}
        expected = plain(**{name: value for name, value in arguments.items() if name in parameters_of(plain)})
        assert (pictures(events[job.job_id])[0] - expected.images[0]).abs().max() < TOLERANCE
    unmasked = together(engine, [replace(jobs[0], mask_image=None)])
    assert (pictures(events["job0"])[0] - pictures(unmasked["job0"])[0]).abs().max() > 0.01


def test_a_lost_device_ends_the_step_and_fails_no_job(pipe: Any) -> None:
    pipe.fault = lambda _step, _prompts: torch.AcceleratorError("device-side assert")
    engine = engine_of(pipe)
    engine.admit(alike(2))
    with pytest.raises(torch.AcceleratorError):
        engine.step()


def test_curves_tell_of_steps_by_size(pipe: Any) -> None:
    engine = engine_of(pipe)
    together(engine, alike(3))
    together(engine, alike(1))
    (curve,) = engine.curves().items()
    assert curve[0] == "cpu 32x32"
    assert set(curve[1]["ms"]) == {"1", "3"}


def test_who_can_be_parked_is_no_fallback() -> None:
    assert image_engine(tiny.spec(), tiny.stable_diffusion()).batching is Batching.STEP
    assert image_engine(tiny.spec(), tiny_static.painter()).batching is Batching.STATIC
    assert not can_park(tiny_static.ddpm())
    assert not can_park(tiny_static.stable_cascade())
