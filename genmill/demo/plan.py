"""The demo's jobs: the same 56 every time, as mixed as clients are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from genmill.inputs import SchedulerName
from genmill.keys import JobClass
from genmill.shapes.grammar import Caption, draw_captions

SEED = 2026
TENANTS = ("acme", "zoo")
TEXT_TO_IMAGE, IMAGE_TO_IMAGE, TEXTS = 40, 4, 12

LONGEST = (50, 40)
STEPS = (30, 29, 28, 26, 25, 24, 22, 20, 20, 18, 16, 15, 14, 12, 10, 8)
"""Long jobs stand first, so that the batch is full until its end."""

HEUN_STEPS = 15
"""Heun asks the denoiser twice a step."""

PNDM_STEPS, PNDM_GUIDANCE = 25, 3.0
"""PNDM extrapolates: it needs short strides and little guidance, see docs/models.md."""

SMALL, LARGE, LARGE_EVERY = 64, 96, 8
PRIORITIES = (JobClass.P1, JobClass.P2, JobClass.P1, JobClass.P0, JobClass.P1, JobClass.P3)


@dataclass(frozen=True, slots=True)
class DemoJob:
    """`caption` is what the image must show; `start` is what the init image shows, where there is one."""

    number: int
    tenant: str
    model: str
    priority: str
    input: Mapping[str, Any]
    caption: Caption | None = None
    start: Caption | None = None

    @property
    def is_image(self) -> bool:
        return self.caption is not None


def plan_jobs() -> list[DemoJob]:
    """In the order of submission; images first, since texts are short."""
    rng = np.random.default_rng(SEED)
    images = [_image(number, caption, rng) for number, caption in enumerate(draw_captions(TEXT_TO_IMAGE, rng))]
    starts = enumerate(draw_captions(IMAGE_TO_IMAGE, rng), TEXT_TO_IMAGE)
    edits = [_edit(number, caption, rng) for number, caption in starts]
    beginnings = enumerate(draw_captions(TEXTS, rng), TEXT_TO_IMAGE + IMAGE_TO_IMAGE)
    texts = [_text(number, caption) for number, caption in beginnings]
    return images + edits + texts


def _image(number: int, caption: Caption, rng: np.random.Generator) -> DemoJob:
    scheduler = tuple(SchedulerName)[number % len(SchedulerName)]
    steps = _steps(number, scheduler)
    size = LARGE if number % LARGE_EVERY == 3 else SMALL
    asked = {
        "prompt": str(caption),
        "width": size,
        "height": size,
        "steps": steps,
        "guidance": _guidance(steps, scheduler, rng),
        "scheduler": scheduler.value,
        "seed": int(rng.integers(2**32)),
    }
    return DemoJob(number, _tenant(number), "shapes", _priority(number), asked, caption)


def _steps(number: int, scheduler: SchedulerName) -> int:
    steps = LONGEST[number] if number < len(LONGEST) else STEPS[number * len(STEPS) // TEXT_TO_IMAGE]
    match scheduler:
        case SchedulerName.HEUN:
            return min(steps, HEUN_STEPS)
        case SchedulerName.PNDM:
            return max(steps, PNDM_STEPS)
        case _:
            return steps


def _guidance(steps: int, scheduler: SchedulerName, rng: np.random.Generator) -> float:
    """Between 3 and 9, as its user would choose it: short runs go astray under strong guidance."""
    drawn = float(rng.uniform(3, 9))
    if scheduler is SchedulerName.PNDM:
        return PNDM_GUIDANCE
    return round(min(drawn, 3 + 6 * steps / STEPS[0]), 1) if steps < 20 else round(drawn, 1)


def _edit(number: int, caption: Caption, rng: np.random.Generator) -> DemoJob:
    """Image to image: the figure keeps its place and takes another colour; the driver adds the init image."""
    colour = next(name for name in ("yellow", "purple", "green") if name not in (caption.colour, caption.ground))
    asked = {
        "prompt": str(caption),
        "width": SMALL,
        "height": SMALL,
        "steps": 25,
        "guidance": 5.0,
        "strength": 0.8,
        "seed": int(rng.integers(2**32)),
    }
    start = Caption(colour, caption.shape, caption.ground)
    return DemoJob(number, _tenant(number), "shapes", _priority(number), asked, caption, start)


def _text(number: int, caption: Caption) -> DemoJob:
    """The first words of a caption, to be continued."""
    words = str(caption).split()
    asked = {"prompt": " ".join(words[: 1 + number % 4]), "max_tokens": 16, "temperature": 0.8, "seed": number}
    return DemoJob(number, _tenant(number), "captions", _priority(number), asked)


def _tenant(number: int) -> str:
    return TENANTS[number // 2 % len(TENANTS)]


def _priority(number: int) -> str:
    return PRIORITIES[number % len(PRIORITIES)].value
