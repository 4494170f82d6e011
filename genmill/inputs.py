"""What a job asks for: image and text inputs with every default filled in.

`ModelSpec.parse_input` (genmill/registry.py) is the only maker: it applies the model's defaults and limits, so
whoever holds an `ImageInput` or a `TextInput` holds a valid one.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from genmill.strict_json import Flag

MAX_SEED = 2**53 - 1
"""Largest integer that JSON readers in every language keep exact."""

PromptText = Annotated[str, StringConstraints(min_length=1)]


USUAL_FPS = 16
"""Frames a second of a video whose job and model say nothing else."""


def draw_seed() -> int:
    """A fresh seed for a job that gives none; recorded with the job, so that a retry repeats it."""
    return secrets.randbelow(2**32)


class SchedulerName(StrEnum):
    """Diffusion samplers by the names that clients send."""

    DDIM = "ddim"
    DPM = "dpm++2m"
    EULER = "euler"
    EULER_A = "euler_a"
    HEUN = "heun"
    PNDM = "pndm"
    UNIPC = "unipc"
    DEFAULT = "default"


class _Input(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Lora(_Input):
    """An adapter of the model, see GET /v1/models, and how much of it: 1 is as it was trained, 0 none of it."""

    name: str
    weight: float = Field(default=1.0, description="-2 to 2.")


class Control(_Input):
    """A ControlNet of the model, see GET /v1/models, and the image that it follows: edges, depths, a pose."""

    name: str
    image: str = Field(description="A data URI, an http(s) URL or file:<id>.")
    scale: float = Field(default=1.0, ge=0, le=2, description="How closely to follow it.")


class ImageInput(_Input):
    """Text to image; with `init_image` image to image, with `mask_image` too inpainting: white is painted anew. With
    `control` a text to image that follows another image; with several `num_frames` text to video, shown at `fps`
    frames a second. Sizes in pixels, `strength` in (0, 1]."""

    kind: Literal["image"] = "image"
    prompt: PromptText
    negative_prompt: str = ""
    width: int = 512
    height: int = 512
    steps: int = 20
    guidance: float = 5.0
    scheduler: SchedulerName = SchedulerName.DEFAULT
    seed: int = Field(default_factory=draw_seed, ge=0, le=MAX_SEED)
    num_images: int = 1
    num_frames: int = 1
    fps: int | None = None
    init_image: str | None = None
    strength: float = Field(default=0.8, gt=0, le=1)
    mask_image: str | None = None
    loras: tuple[Lora, ...] = ()
    control: Control | None = None

    @property
    def rows(self) -> int:
        """Slots that the job takes: one for each image or video."""
        return self.num_images

    def images(self) -> dict[str, str]:
        """What the job gives of the images `init`, `mask` and `control`: as its client wrote them, or where they are
        stored."""
        control = self.control.image if self.control else None
        given = {"init": self.init_image, "mask": self.mask_image, "control": control}
        return {role: image for role, image in given.items() if image is not None}

    def with_images(self, images: Mapping[str, str]) -> ImageInput:
        """The same job with its images at other places, by the same names."""
        moved: dict[str, Any] = {f"{role}_image": place for role, place in images.items() if role != "control"}
        if self.control is not None and "control" in images:
            moved["control"] = self.control.model_copy(update={"image": images["control"]})
        return self.model_copy(update=moved)


class Message(_Input):
    role: Literal["system", "user", "assistant"]
    content: str


class TextInput(_Input):
    """A prompt to continue, or chat messages; exactly one of them."""

    kind: Literal["text"] = "text"
    prompt: str | None = None
    messages: tuple[Message, ...] | None = None
    max_tokens: int = Field(default=64, ge=1)
    temperature: float = Field(default=1.0, ge=0, le=5)
    top_p: float = Field(default=1.0, gt=0, le=1)
    stop: tuple[Annotated[str, StringConstraints(min_length=1, max_length=64)], ...] = Field(default=(), max_length=8)
    seed: int = Field(default_factory=draw_seed, ge=0, le=MAX_SEED)
    logprobs: Flag = Field(default=False, description="Tell of each token how likely the model itself held it.")
    top_logprobs: int = Field(default=0, ge=0, le=20, description="With logprobs: the likeliest so many beside it.")

    @model_validator(mode="after")
    def _has_logprobs(self) -> TextInput:
        if self.top_logprobs and not self.logprobs:
            raise ValueError(f"top_logprobs needs logprobs: true, got top_logprobs {self.top_logprobs} without it")
        return self

    @model_validator(mode="after")
    def _one_source(self) -> TextInput:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        if self.messages is not None and not self.messages:
            raise ValueError("messages must not be empty")
        return self

    @property
    def rows(self) -> int:
        return 1


JobInput = ImageInput | TextInput
