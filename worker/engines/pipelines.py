"""Loads diffusers pipelines, and turns a job's input into the arguments of a pipeline call."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import diffusers
import torch
from PIL import Image

from genmill.errors import GenerationFailed, ModelUnavailable
from genmill.inputs import ImageInput
from genmill.registry import ModelSpec
from worker.engines.devices import pick_dtype, quiet, source_arguments, unavailable

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

DENOISERS = ("unet", "transformer")


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


def image_to_image(pipe: DiffusionPipeline) -> DiffusionPipeline:
    """The same components in the pipeline that starts from an image. Raises GenerationFailed where none is."""
    try:
        twin: DiffusionPipeline = diffusers.AutoPipelineForImage2Image.from_pipe(pipe)
    except ValueError as error:
        raise GenerationFailed(f"{type(pipe).__name__} has no image to image pipeline") from error
    return twin


def build_prototypes(pipe: DiffusionPipeline) -> dict[bool, DiffusionPipeline]:
    """The pipelines of a model by whether they start from an image. Made when the model is loaded: importing the
    second one's module takes longer than a step."""
    try:
        return {False: pipe, True: image_to_image(pipe)}
    except GenerationFailed:
        return {False: pipe}


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
    return frozenset(inspect.signature(type(pipe).__call__).parameters)


def check_arguments(pipe: DiffusionPipeline, spec: ModelSpec) -> None:
    """Raises ModelUnavailable where the model's entry names arguments that its pipeline does not take."""
    if unknown := sorted(set(spec.arguments) - parameters_of(pipe)):
        detail = f"model {spec.name}: {type(pipe).__name__} takes no argument {', '.join(unknown)}"
        raise ModelUnavailable(detail)


def call_arguments(
    accepted: frozenset[str],
    job: ImageInput,
    index: int,
    init_image: Image.Image | None,
    further: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Arguments of the call for image `index` of the job, and `further` ones; what the pipeline does not accept is
    left out.

    The output is a float tensor in 0..1, so that NaN can still be told from black.
    """
    arguments: dict[str, Any] = {
        **further,
        "prompt": job.prompt,
        "negative_prompt": job.negative_prompt or None,
        "width": job.width,
        "height": job.height,
        "num_frames": job.num_frames,
        "frame_rate": job.fps,
        "fps": job.fps,
        "num_inference_steps": job.steps,
        "guidance_scale": job.guidance,
        "generator": torch.Generator("cpu").manual_seed(job.seed + index),
        "output_type": "pt",
    }
    if init_image is not None:
        size = (job.width, job.height)
        arguments["image"] = (
            init_image if init_image.size == size else init_image.resize(size, Image.Resampling.LANCZOS)
        )
        arguments["strength"] = job.strength
    return {name: value for name, value in arguments.items() if name in accepted and value is not None}
