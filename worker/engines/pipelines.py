"""Loads diffusers pipelines, and turns a job's input into the arguments of a pipeline call."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import diffusers
import torch
from PIL import Image
from torch import nn

from genmill.errors import GenerationFailed, ModelUnavailable
from genmill.inputs import ImageInput
from genmill.registry import ModelSpec
from worker.engines.base import EngineJob
from worker.engines.devices import pick_dtype, quiet, source_arguments, unavailable

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

DENOISERS = ("unet", "transformer")
STEPPING = (*DENOISERS, "transformer_2")
"""Components that run in each step. The second transformer, of Wan 2.2, takes over for the last of them."""


def load_pipeline(spec: ModelSpec, device: torch.device) -> DiffusionPipeline:
    """Raises ModelUnavailable with the loader's own words."""
    quiet()
    dtype = pick_dtype(spec, device)
    try:
        pipe = diffusers.DiffusionPipeline.from_pretrained(spec.source, dtype=dtype, **source_arguments(spec))
        loaded: DiffusionPipeline = pipe.to(device)
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        raise unavailable(spec, error) from error
    return loaded


def load_controlnets(spec: ModelSpec, pipe: DiffusionPipeline) -> dict[str, nn.Module]:
    """All that the model's entry declares, with the model: one loaded at its first job would hold up everybody's
    steps. Raises ModelUnavailable, naming which."""
    denoiser, loaded = denoiser_of(pipe), {}
    for name, control in spec.controlnets.items():
        revision = {"revision": control.revision} if control.revision and not Path(control.source).is_dir() else {}
        try:
            module = diffusers.AutoModel.from_pretrained(control.source, dtype=denoiser.dtype, **revision)
            loaded[name] = module.to(denoiser.device).eval()
        except (OSError, ValueError, RuntimeError, ImportError) as error:
            reason = " ".join(str(error).split())[:500]
            detail = f"ControlNet {name} of model {spec.name}, from {control.source}: {reason}"
            raise ModelUnavailable(detail) from error
    return loaded


class Kind(StrEnum):
    """What an image job makes its image from. It decides which pipeline of the model is called."""

    TEXT = "from text alone"
    IMAGE = "from an image"
    INPAINT = "from an image and a mask"
    CONTROL = "with a ControlNet"


def kind_of(job: EngineJob) -> Kind:
    if job.control_image is not None:
        return Kind.CONTROL
    if job.init_image is None:
        return Kind.TEXT
    return Kind.IMAGE if job.mask_image is None else Kind.INPAINT


def image_to_image(pipe: DiffusionPipeline) -> DiffusionPipeline:
    """The same components in the pipeline that starts from an image. Raises GenerationFailed where none is."""
    return _twin(diffusers.AutoPipelineForImage2Image, pipe, Kind.IMAGE)


def _twin(auto: Any, pipe: DiffusionPipeline, kind: Kind, **more: nn.Module) -> DiffusionPipeline:
    try:
        twin: DiffusionPipeline = auto.from_pipe(pipe, **more)
    except ValueError as error:
        raise GenerationFailed(f"{type(pipe).__name__} has no pipeline that works {kind}") from error
    return twin


Prototypes = dict[tuple[Kind, str], Any]
"""The pipelines of a model by kind of job and name of the ControlNet, empty for none."""


def build_prototypes(pipe: DiffusionPipeline, controlnets: Mapping[str, nn.Module]) -> Prototypes:
    """All that diffusers has for these components. Made when the model is loaded: importing another pipeline's module
    takes longer than a step."""
    prototypes: Prototypes = {(Kind.TEXT, ""): pipe}
    for kind, auto in _STARTING_FROM.items():
        with suppress(GenerationFailed):
            prototypes[kind, ""] = _twin(auto, pipe, kind)
    for name, module in controlnets.items():
        with suppress(GenerationFailed):
            prototypes[Kind.CONTROL, name] = _twin(
                diffusers.AutoPipelineForText2Image, pipe, Kind.CONTROL, controlnet=module
            )
    return prototypes


_STARTING_FROM = {
    Kind.IMAGE: diffusers.AutoPipelineForImage2Image,
    Kind.INPAINT: diffusers.AutoPipelineForInpainting,
}


def in_one_place(pipe: DiffusionPipeline) -> DiffusionPipeline:
    """A copy that knows where it runs. The original looks for hooks of offloading in every submodule, several times a
    call: milliseconds each for a large denoiser. Here a model is on its device as a whole, or not in use."""
    cls, first = type(pipe), next(denoiser_of(pipe).parameters())
    own = copy.copy(pipe)
    place = {"_execution_device": property(lambda _self: first.device), "__module__": cls.__module__}
    own.__class__ = type(cls.__name__, (cls,), place)
    return own


def upcast_autoencoder(pipe: DiffusionPipeline) -> None:
    """One that overflows in half precision is single for good: each pipeline call would cast it for itself, and back
    under the others that decode in the same turn."""
    vae = getattr(pipe, "vae", None)
    if vae is not None and vae.dtype == torch.float16 and getattr(vae.config, "force_upcast", False):
        vae.to(dtype=torch.float32)


def denoiser_of(pipe: DiffusionPipeline) -> Any:
    """The module that runs once a step. Raises ModelUnavailable where there is none by a known name."""
    for name in DENOISERS:
        if (module := getattr(pipe, name, None)) is not None:
            return module
    raise ModelUnavailable(f"{type(pipe).__name__} has no {' or '.join(DENOISERS)}")


def inner_pipelines(pipe: DiffusionPipeline) -> list[DiffusionPipeline]:
    """Of one that is combined from others, which hold its modules and schedulers too."""
    return [part for part in vars(pipe).values() if isinstance(part, diffusers.DiffusionPipeline)]


def parameters_of(pipe: DiffusionPipeline) -> frozenset[str]:
    return _parameters_of(type(pipe).__call__)


@cache
def _parameters_of(call: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(call).parameters)


def check_arguments(pipe: DiffusionPipeline, spec: ModelSpec) -> None:
    """Raises ModelUnavailable where the model's entry names arguments that its pipeline does not take."""
    if unknown := sorted(set(spec.arguments) - parameters_of(pipe)):
        detail = f"model {spec.name}: {type(pipe).__name__} takes no argument {', '.join(unknown)}"
        raise ModelUnavailable(detail)


def call_arguments(
    accepted: frozenset[str],
    asked: ImageInput,
    index: int,
    init_image: Image.Image | None,
    further: Mapping[str, Any] = MappingProxyType({}),
    *,
    mask_image: Image.Image | None = None,
    control_image: Image.Image | None = None,
) -> dict[str, Any]:
    """Arguments of the call for image `index` of what a job asks for, its images brought to size, and `further` ones;
    what the pipeline does not accept is left out.

    The output is a float tensor in 0..1, so that NaN can still be told from black.
    """
    arguments: dict[str, Any] = {
        **further,
        "prompt": asked.prompt,
        "negative_prompt": asked.negative_prompt or None,
        "width": asked.width,
        "height": asked.height,
        "num_frames": asked.num_frames,
        "frame_rate": asked.fps,
        "fps": asked.fps,
        "num_inference_steps": asked.steps,
        "guidance_scale": asked.guidance,
        "generator": torch.Generator("cpu").manual_seed(asked.seed + index),
        "output_type": "pt",
    }
    if init_image is not None:
        arguments |= {"image": _sized(init_image, asked), "strength": asked.strength}
    if mask_image is not None:
        arguments["mask_image"] = _sized(mask_image, asked).convert("L")
    if asked.control is not None and control_image is not None:
        name = "control_image" if "control_image" in accepted else "image"  # Stable Diffusion's older word
        arguments |= {name: _sized(control_image, asked), "controlnet_conditioning_scale": asked.control.scale}
    return {name: value for name, value in arguments.items() if name in accepted and value is not None}


def _sized(image: Image.Image, asked: ImageInput) -> Image.Image:
    size = (asked.width, asked.height)
    return image if image.size == size else image.resize(size, Image.Resampling.LANCZOS)
