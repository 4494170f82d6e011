"""Masks and ControlNets as jobs: each image is that of the plain pipeline, and shares forwards with other tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoPipelineForInpainting, AutoPipelineForText2Image
from PIL import Image

from genmill.errors import ModelUnavailable
from genmill.extras import ControlnetSpec
from genmill.inputs import Control
from tests.worker.engines import tiny
from tests.worker.engines.runs import alone, end_of, image_job, pictures, together
from tests.worker.engines.test_memory import SmallDevice
from tests.worker.engines.test_pipelines import TOLERANCE, picture
from tests.worker.engines.tiny_loras import controlnet
from worker.engines import previews
from worker.engines.base import EngineJob, Failed, Finished, Progress
from worker.engines.crew import Crew
from worker.engines.diffusion import DiffusionEngine
from worker.engines.loader import load_engine
from worker.engines.memory import bytes_of
from worker.engines.shelf import modules_of


def mask(size: tuple[int, int] = (32, 32)) -> Image.Image:
    white = Image.new("L", size)
    white.paste(255, (8, 8, 24, 24))
    return white.convert("RGB")  # as the station reads what is stored


def inpaint_job(job_id: str, **changes: Any) -> EngineJob:
    job = image_job(job_id, picture(32), **{"strength": 0.7, "steps": 5, **changes})
    return EngineJob(job_id, job.input, job.init_image, mask_image=mask())


def control_job(job_id: str, name: str = "canny", scale: float = 0.7, **changes: Any) -> EngineJob:
    job = image_job(job_id, control=Control(name=name, image="stored", scale=scale), **changes)
    return EngineJob(job_id, job.input, control_image=picture(32))


def asked_of(job: EngineJob) -> dict[str, Any]:
    asked = job.input
    return {
        "prompt": asked.prompt, "num_inference_steps": asked.steps, "guidance_scale": asked.guidance,
        "generator": torch.Generator().manual_seed(asked.seed), "output_type": "pt",
    }  # fmt: skip


def inpainted(pipe: Any, job: EngineJob) -> torch.Tensor:
    plain, size = AutoPipelineForInpainting.from_pipe(pipe), (job.input.width, job.input.height)
    images = {"image": job.init_image.resize(size, Image.Resampling.LANCZOS), "mask_image": mask().convert("L")}
    return plain(**asked_of(job), **images, strength=job.input.strength, width=size[0], height=size[1]).images[0]


def controlled(pipe: Any, control: Any, job: EngineJob) -> torch.Tensor:
    plain = AutoPipelineForText2Image.from_pipe(pipe, controlnet=control)
    scale = job.input.control.scale
    return plain(**asked_of(job), image=picture(32), controlnet_conditioning_scale=scale, width=32, height=32).images[
        0
    ]


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max())


@pytest.mark.parametrize("build", [tiny.stable_diffusion, tiny.stable_diffusion_xl, tiny.flux])
def test_inpainting_is_the_plain_pipelines_and_shares_forwards_with_text_to_image(build: Callable[[], Any]) -> None:
    pipe = build()
    jobs = [inpaint_job("a"), inpaint_job("b", seed=4, strength=1.0), image_job("text", steps=5)]
    events = together(DiffusionEngine.from_pipeline(tiny.spec(), pipe), jobs)
    for job in jobs[:2]:
        assert difference(pictures(events[job.job_id])[0], inpainted(build(), job)) < TOLERANCE
    assert difference(pictures(events["text"])[0], alone(build(), jobs[2])[0]) < TOLERANCE
    end = end_of(events["a"])
    assert isinstance(end, Finished)
    assert end.receipt.batch_max == 3


@pytest.mark.parametrize("build", [tiny.stable_diffusion, tiny.stable_diffusion_xl])
@pytest.mark.parametrize("threads", [1, 2])
def test_control_is_the_plain_pipelines_and_shares_forwards_with_others(
    build: Callable[[], Any], threads: int
) -> None:
    pipe = build()
    controls = {"canny": controlnet(pipe.unet), "depth": controlnet(pipe.unet, seed=6)}
    jobs = [
        control_job("a", steps=4),
        control_job("b", steps=4, seed=8, scale=0.3),
        control_job("c", "depth", steps=4),
        image_job("text", steps=4),
    ]
    engine = DiffusionEngine.from_pipeline(tiny.spec(), pipe, Crew(threads), controls)
    events = together(engine, jobs)
    for job in jobs[:3]:
        expected = controlled(build(), controls[job.input.control.name], job)
        assert difference(pictures(events[job.job_id])[0], expected) < TOLERANCE
    bare = alone(build(), image_job("bare", steps=4))[0]
    assert difference(pictures(events["a"])[0], bare) > 0.01
    assert difference(pictures(events["a"])[0], pictures(events["c"])[0]) > 0.01
    assert difference(pictures(events["text"])[0], alone(build(), jobs[3])[0]) < TOLERANCE
    end = end_of(events["a"])
    assert isinstance(end, Finished)
    assert end.receipt.batch_max >= 3  # the calls without a ControlNet's residuals are a forward of their own


def test_a_controlnet_loads_with_its_model(tmp_path: Path) -> None:
    pipe = tiny.stable_diffusion()
    pipe.save_pretrained(tmp_path / "model")
    controlnet(pipe.unet).save_pretrained(tmp_path / "canny")
    spec = tiny.spec().model_copy(
        update={
            "source": str(tmp_path / "model"), "controlnets": {"canny": ControlnetSpec(source=str(tmp_path / "canny"))}
        }
    )  # fmt: skip
    events = together(load_engine(spec, device="cpu"), [control_job("a")])
    assert isinstance(end_of(events["a"]), Finished)
    gone = {"edges": ControlnetSpec(source=str(tmp_path / "gone"))}
    with pytest.raises(ModelUnavailable, match="ControlNet edges of model tiny"):
        load_engine(spec.model_copy(update={"controlnets": gone}), device="cpu")


def test_controlnets_count_and_move_with_their_model() -> None:
    pipe = tiny.stable_diffusion()
    control = controlnet(pipe.unet)
    engine = DiffusionEngine.from_pipeline(tiny.spec(), pipe, controlnets={"canny": control})
    assert engine.memory().model_bytes == bytes_of(*modules_of(pipe), control)
    expected = pictures(together(engine, [control_job("a")])["a"])[0]
    before = {parameter.data_ptr() for parameter in control.parameters()}
    engine.park()
    assert not before & {parameter.data_ptr() for parameter in control.parameters()}
    engine.unpark()
    assert torch.equal(pictures(together(engine, [control_job("a")])["a"])[0], expected)


def test_previews_and_memory_of_jobs_with_a_mask_and_a_controlnet(monkeypatch: pytest.MonkeyPatch) -> None:
    device = SmallDevice(total=10_000)
    monkeypatch.setattr("worker.engines.diffusion.meter_of", lambda _: device)
    monkeypatch.setattr(previews, "EVERY_S", 0.0)
    pipe = tiny.stable_diffusion()
    engine = DiffusionEngine.from_pipeline(tiny.spec(), pipe, controlnets={"canny": controlnet(pipe.unet)})
    together(engine, [image_job("first")])  # its picture teaches what colours latents have
    jobs = [replace(inpaint_job("paint"), has_preview=True), replace(control_job("edges"), has_preview=True)]
    for job_id, seen in together(engine, jobs).items():
        assert any(isinstance(event, Progress) and event.sketch is not None for event in seen), job_id
    assert {name.split(" 3x")[0] for name in engine.memory().peaks} >= {"controlnet canny.__call__ 4x16x16"}


def test_a_task_that_the_model_has_no_pipeline_for_fails_with_its_name() -> None:
    engine = DiffusionEngine.from_pipeline(tiny.spec(), tiny.stable_diffusion())
    pipes = engine._prototypes._pipes
    engine._prototypes._pipes = {key: pipe for key, pipe in pipes.items() if key[0].name == "TEXT"}
    events = together(engine, [inpaint_job("a"), control_job("b"), image_job("c", picture()), image_job("d")])
    for job_id, words in (("a", "an image and a mask"), ("b", "with a ControlNet canny"), ("c", "from an image")):
        end = end_of(events[job_id])
        assert isinstance(end, Failed)
        assert words in end.error.detail
        assert end.error.code == "invalid_job"
    assert isinstance(end_of(events["d"]), Finished)
