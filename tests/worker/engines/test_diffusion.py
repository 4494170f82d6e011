"""The image engine: faults stay with their job, receipts are true, slots are counted."""

import itertools
import time
from typing import Any

import pytest
import torch
from PIL import Image

from genmill.errors import OutputInvalid
from genmill.inputs import TextInput
from tests.worker.engines import tiny
from tests.worker.engines.runs import end_of, finish, image_job, together, worst_difference
from worker.engines.base import EngineJob, Failed, Finished
from worker.engines.diffusion import DiffusionEngine
from worker.engines.pictures import as_output
from worker.traces import trace

BAD = "poison"


@pytest.fixture
def pipe() -> Any:
    return tiny.stable_diffusion()


def is_bad(pipe: Any, embeddings: torch.Tensor) -> torch.Tensor:
    """Which rows carry the bad prompt."""
    bad, _ = pipe.encode_prompt(BAD, "cpu", 1, False)
    return ((embeddings - bad).abs().amax(dim=(1, 2)) < 1e-4).flatten()


def sixteen() -> list[EngineJob]:
    return [
        image_job(f"job{index}", prompt=BAD if index == 5 else "a red circle", seed=index, steps=2 + index % 3)
        for index in range(16)
    ]


def test_a_poisoned_job_fails_alone_in_a_batch_of_sixteen(pipe: Any) -> None:
    def poison(_: Any, args: Any, kwargs: Any) -> None:
        if bool(is_bad(pipe, kwargs["encoder_hidden_states"]).any()):
            raise ValueError("cannot read this prompt")

    jobs = sixteen()
    engine = DiffusionEngine.from_pipeline(tiny.spec(), pipe)
    hook = pipe.unet.register_forward_pre_hook(poison, with_kwargs=True)
    events = together(engine, jobs)
    hook.remove()
    end = end_of(events["job5"])
    assert isinstance(end, Failed)
    assert end.error.detail == "the model raised ValueError while it worked on this job; it is logged"
    assert "cannot read this prompt" in trace(end.error), "RQ's tools show it"
    assert worst_difference(pipe, [job for job in jobs if job.job_id != "job5"], events) < 1e-4


def test_nan_fails_its_job_alone(pipe: Any) -> None:
    def spoil(_: Any, args: Any, kwargs: Any, output: Any) -> Any:
        bad = is_bad(pipe, kwargs["encoder_hidden_states"])
        return (torch.where(bad[:, None, None, None], torch.nan, output[0]),)

    jobs = sixteen()[:8]
    engine = DiffusionEngine.from_pipeline(tiny.spec(), pipe)
    hook = pipe.unet.register_forward_hook(spoil, with_kwargs=True)
    events = together(engine, jobs)
    hook.remove()
    end = end_of(events["job5"])
    assert isinstance(end, Failed)
    assert isinstance(end.error, OutputInvalid)
    assert worst_difference(pipe, [job for job in jobs if job.job_id != "job5"], events) < 1e-4


def test_out_of_memory_above_a_size_fails_nobody(pipe: Any) -> None:
    sizes: list[int] = []

    def limit(_: Any, args: Any, kwargs: Any) -> None:
        sizes.append(len(kwargs["sample"]))
        if sizes[-1] > 10:
            raise torch.OutOfMemoryError("no room")

    jobs = [image_job(f"job{index}", seed=index, steps=4) for index in range(16)]
    engine = DiffusionEngine.from_pipeline(tiny.spec(), pipe)
    hook = pipe.unet.register_forward_pre_hook(limit, with_kwargs=True)
    events = together(engine, jobs)
    hook.remove()
    assert worst_difference(pipe, jobs, events) < 1e-4
    assert [size for size in sizes if size > 10] == [32, 16]  # only in the first turn, before the cap was learnt


def test_receipts_tell_who_shared_and_add_up(pipe: Any) -> None:
    engine = DiffusionEngine.from_pipeline(tiny.spec(), pipe)
    jobs = [image_job("long", steps=6, seed=7), image_job("short", steps=2, seed=8), image_job("pair", num_images=2)]
    began = time.perf_counter()
    events = together(engine, jobs)
    wall_ms = (time.perf_counter() - began) * 1e3
    ends = {job_id: end_of(of_job) for job_id, of_job in events.items()}
    receipts = {job_id: end.receipt for job_id, end in ends.items() if isinstance(end, Finished)}
    long = receipts["long"]
    assert (long.forwards, long.batch_min, long.batch_max) == (6, 1, 4)
    assert long.batch_mean == pytest.approx((4 + 4 + 3 + 3 + 1 + 1) / 6)
    assert (receipts["short"].forwards, receipts["pair"].forwards) == (2, 4)
    assert (long.seed, long.model, long.dtype, long.device) == (7, "tiny", "float32", "cpu")
    assert {"torch", "diffusers"} <= set(long.versions)
    charged = sum(receipt.gpu_ms for receipt in receipts.values())
    assert 0.3 * wall_ms < charged < wall_ms
    assert 0 < long.step_ms < wall_ms


def test_slots_are_images_on_board_until_they_are_denoised(pipe: Any) -> None:
    engine = DiffusionEngine.from_pipeline(tiny.spec(max_batch=4), pipe)
    assert engine.free_slots() == 4
    engine.admit([image_job("a", num_images=2, steps=2), image_job("b", steps=9)])
    assert engine.free_slots() == 1
    assert not engine.is_idle()
    free = []
    for _ in itertools.takewhile(lambda _: not engine.is_idle(), range(50)):
        engine.step()
        free.append(engine.free_slots())
    assert free[:2] == [1, 3]
    assert free[-1] == 4
    assert engine.step() == []


def test_a_job_of_the_wrong_kind_fails_from_a_later_step(pipe: Any) -> None:
    engine = DiffusionEngine.from_pipeline(tiny.spec(), pipe)
    engine.admit([EngineJob("text", TextInput(prompt="hello"))])
    assert not engine.is_idle()
    (event,) = engine.step()
    assert isinstance(event, Failed)
    assert engine.is_idle()


def test_steps_leave_the_callers_grad_mode_alone(pipe: Any) -> None:
    engine = DiffusionEngine.from_pipeline(tiny.spec(), pipe)
    engine.admit([image_job("a"), image_job("b", steps=7)])

    def check(turn: int) -> None:
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()
        if turn == 2:
            engine.evict("a")
            assert torch.is_grad_enabled()

    finish(engine, check)


def test_the_pipeline_itself_stays_as_it_was(pipe: Any) -> None:
    unet, config = pipe.unet, dict(pipe.config)
    engine = DiffusionEngine.from_pipeline(tiny.spec(), pipe)
    together(engine, [image_job("a"), image_job("b")])
    engine.close()
    assert pipe.unet is unet
    assert dict(pipe.config) == config
    assert type(pipe.unet).__name__ == "UNet2DConditionModel"


def test_close_ends_jobs_on_board(pipe: Any) -> None:
    engine = DiffusionEngine.from_pipeline(tiny.spec(), pipe)
    engine.admit([image_job("a")])
    engine.step()
    engine.close()
    assert engine.is_idle()
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("picture", [torch.full((3, 4, 4), torch.inf), torch.zeros(3, 4, 4), torch.zeros(3, 0, 4)])
def test_infinite_black_and_empty_pictures_are_no_output(picture: torch.Tensor) -> None:
    with pytest.raises(OutputInvalid):
        as_output(picture, None)


def test_pixels_are_rounded_as_diffusers_does() -> None:
    picture = torch.full((3, 2, 2), 0.5)
    image = as_output(picture, None)
    assert isinstance(image, Image.Image)
    assert image.getpixel((0, 0)) == (128, 128, 128)
