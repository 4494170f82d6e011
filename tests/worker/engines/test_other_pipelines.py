"""Other pipelines than text to image need no code of their own at the rendezvous."""

import copy
from typing import Any

import torch
from diffusers import StableDiffusionControlNetPipeline, StableDiffusionInpaintPipeline
from PIL import Image

from tests.worker.engines import tiny
from tests.worker.engines.tiny_loras import controlnet
from worker.engines.crew import Crew
from worker.engines.rendezvous import Hub
from worker.engines.sites import build_stand_ins

COUNT = 5


def together(pipe: Any, calls: list[dict[str, Any]]) -> tuple[list[torch.Tensor], list[int]]:
    """Images of the calls at one hub, and how many calls shared each of the denoiser's forwards."""
    hub = Hub(Crew(2))
    doubles, _ = build_stand_ins(pipe, hub, max_images=COUNT)
    tasks = []
    for arguments in calls:
        own = copy.copy(pipe)
        own.__dict__.update(doubles)
        own.__dict__["scheduler"] = copy.deepcopy(pipe.scheduler)
        tasks.append(hub.start(lambda own=own, arguments=arguments: own(**arguments).images[0]))
    while hub.tasks:
        hub.turn()
    assert [task.error for task in tasks] == [None] * len(calls)
    return [task.result for task in tasks], [share.images for task in tasks for share in task.meter.steps]


def calls(**more: Any) -> list[dict[str, Any]]:
    return [
        {
            "prompt": "a cat " * (index + 1),
            "num_inference_steps": 3 + index,
            "guidance_scale": 2.0 + index,
            "width": 32,
            "height": 32,
            "output_type": "pt",
            "seed": index,
            **more,
        }
        for index in range(COUNT)
    ]


def seeded(arguments: dict[str, Any]) -> dict[str, Any]:
    return {**arguments, "generator": torch.Generator().manual_seed(arguments["seed"])}


def assert_same(pipe: Any, asked: list[dict[str, Any]]) -> None:
    def ready() -> list[dict[str, Any]]:
        return [{name: value for name, value in seeded(one).items() if name != "seed"} for one in asked]

    expected = [pipe(**arguments).images[0] for arguments in ready()]
    got, sizes = together(pipe, ready())
    assert max(sizes) == COUNT
    for one, other in zip(got, expected, strict=True):
        assert torch.allclose(one, other, atol=1e-4)


def parts() -> dict[str, Any]:
    return {**tiny.stable_diffusion().components, "requires_safety_checker": False}


def test_controlnet() -> None:
    components = parts()
    control = controlnet(components["unet"])
    pipe = tiny.quieted(StableDiffusionControlNetPipeline(**components, controlnet=control))
    assert_same(pipe, calls(image=Image.new("RGB", (32, 32), "red"), controlnet_conditioning_scale=0.7))


def test_inpainting() -> None:
    pipe = tiny.quieted(StableDiffusionInpaintPipeline(**parts()))
    mask = Image.new("L", (32, 32))
    mask.paste(255, (8, 8, 24, 24))
    assert_same(pipe, calls(image=Image.new("RGB", (32, 32), "red"), mask_image=mask, strength=1.0))
