"""What a model's entry lets jobs ask for, and what is wrong with an input that asks for more."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from genmill.errors import FieldFault
from genmill.inputs import ImageInput, TextInput


class Limits(BaseModel):
    """What a job may ask of the model. Sizes in pixels, lengths in characters, tokens where named so.

    A model makes videos when `max_frames` is above 1; their frames are 1 and a multiple of `frame_factor`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size_factor: int = Field(default=8, ge=1)
    min_size: int = Field(default=64, ge=8)
    max_size: int = Field(default=1024, ge=8)
    max_steps: int = Field(default=100, ge=1)
    max_guidance: float = Field(default=30.0, ge=0)
    max_images: int = Field(default=4, ge=1)
    max_frames: int = Field(default=1, ge=1)
    frame_factor: int = Field(default=1, ge=1)
    max_fps: int = Field(default=60, ge=1, le=1000)
    max_prompt_chars: int = Field(default=2_000, ge=1)
    max_messages: int = Field(default=256, ge=1)
    max_tokens: int = Field(default=256, ge=1)
    max_stop: int = Field(default=4, ge=0)
    max_top_logprobs: int = Field(default=20, ge=0, le=20)
    max_loras: int = Field(default=2, ge=0)


def image_faults(image: ImageInput, limits: Limits) -> list[FieldFault]:
    """Every field that is beyond a limit, with the limit and the value; so do the others here."""
    faults = _length_fault("prompt", image.prompt, limits.max_prompt_chars)
    faults += _length_fault("negative_prompt", image.negative_prompt, limits.max_prompt_chars)
    faults += size_faults(image.width, image.height, limits)
    faults += _range_fault("steps", image.steps, 1, limits.max_steps)
    faults += _range_fault("guidance", image.guidance, 0, limits.max_guidance)
    faults += _range_fault("num_images", image.num_images, 1, limits.max_images)
    faults += _video_faults(image, limits)
    if image.init_image is not None and int(image.steps * image.strength) < 1:
        detail = f"strength {image.strength} of {image.steps} steps leaves no step to run"
        faults.append(FieldFault("/input/strength", detail, f">= 1/{image.steps}", f"{image.strength}"))
    return faults


def text_faults(text: TextInput, limits: Limits) -> list[FieldFault]:
    faults = _range_fault("max_tokens", text.max_tokens, 1, limits.max_tokens)
    if text.prompt is not None:
        faults += _length_fault("prompt", text.prompt, limits.max_prompt_chars)
    if text.messages is not None:
        joined = "".join(message.content for message in text.messages)
        faults += _length_fault("messages", joined, limits.max_prompt_chars)
        faults += _count_fault("messages", len(text.messages), limits.max_messages)
    faults += _range_fault("top_logprobs", text.top_logprobs, 0, limits.max_top_logprobs)
    if len(text.stop) > limits.max_stop:
        faults += _range_fault("stop", len(text.stop), 0, limits.max_stop)
    return faults


def size_faults(width: int, height: int, limits: Limits) -> list[FieldFault]:
    faults = []
    for name, size in (("width", width), ("height", height)):
        faults += _range_fault(name, size, limits.min_size, limits.max_size)
        if size % limits.size_factor:
            detail = f"{name} must be a multiple of {limits.size_factor}, got {size}"
            faults.append(FieldFault(f"/input/{name}", detail, f"multiple of {limits.size_factor}", f"{size}"))
    return faults


def _video_faults(image: ImageInput, limits: Limits) -> list[FieldFault]:
    faults = _range_fault("num_frames", image.num_frames, 1, limits.max_frames)
    if image.fps is not None:
        faults += _range_fault("fps", image.fps, 1, limits.max_fps)
    if (image.num_frames - 1) % limits.frame_factor:
        detail = f"num_frames must be 1 and a multiple of {limits.frame_factor}, got {image.num_frames}"
        limit = f"1 + multiple of {limits.frame_factor}"
        faults.append(FieldFault("/input/num_frames", detail, limit, f"{image.num_frames}"))
    if limits.max_frames == 1 and image.fps is not None:
        detail = f"fps is for videos, the model makes single images, got {image.fps}"
        faults.append(FieldFault("/input/fps", detail, "no videos", f"{image.fps}"))
    return faults


def _range_fault(name: str, value: float, low: float, high: float) -> list[FieldFault]:
    if low <= value <= high:
        return []
    return [
        FieldFault(
            f"/input/{name}",
            f"{name} must be between {low} and {high}, got {value}",
            f"{low}..{high}",
            f"{value}",
        )
    ]


def _count_fault(name: str, count: int, most: int) -> list[FieldFault]:
    if count <= most:
        return []
    detail = f"there are {count} {name}, the model reads at most {most}"
    return [FieldFault(f"/input/{name}", detail, f"{most} {name}", f"{count} {name}")]


def _length_fault(name: str, text: str, most: int) -> list[FieldFault]:
    if len(text) <= most:
        return []
    detail = f"{name} has {len(text)} characters, the model reads at most {most}"
    return [FieldFault(f"/input/{name}", detail, f"{most} characters", f"{len(text)} characters")]
