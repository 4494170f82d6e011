"""Image jobs as they come: all alike, of a few kinds, or no two alike; at once, or one by one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from genmill.inputs import ImageInput, SchedulerName
from worker.engines.base import EngineJob

SAMPLERS = (SchedulerName.DDIM, SchedulerName.DPM, SchedulerName.EULER, SchedulerName.UNIPC)
PROMPTS = (
    "a red circle on a blue background",
    "a green star on a white background",
    "a black ring on a yellow background",
    "a white square on a purple background",
)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job, and when it comes: seconds from the start."""

    job: EngineJob
    at_s: float = 0.0


def diverse(count: int, size: int, *, sizes: int = 1, seed: int = 7) -> list[EngineJob]:
    """Guidance from 3 to 9, steps from 10 to 50, four samplers; with two sizes every fourth is half as large again."""
    dice = random.Random(seed)
    return [
        _job(
            number,
            size=size * 3 // 2 if sizes == 2 and number % 4 == 3 else size,
            steps=dice.randint(10, 50),
            guidance=round(dice.uniform(3, 9), 2),
            scheduler=dice.choice(SAMPLERS),
        )
        for number in range(count)
    ]


def few_kinds(count: int, size: int, *, seed: int = 7) -> list[EngineJob]:
    """Four step counts by three guidances: a static server finds company for most."""
    dice = random.Random(seed)
    return [
        _job(number, size=size, steps=dice.choice((10, 20, 30, 50)), guidance=dice.choice((3.0, 5.0, 7.5)))
        for number in range(count)
    ]


def homogeneous(count: int, size: int) -> list[EngineJob]:
    """Prompts and seeds differ, nothing else."""
    return [_job(number, size=size, steps=20, guidance=5.0) for number in range(count)]


def at_once(jobs: Sequence[EngineJob]) -> list[Arrival]:
    return [Arrival(job) for job in jobs]


def poisson(jobs: Sequence[EngineJob], rate: float, *, seed: int = 11) -> list[Arrival]:
    """Independent arrivals, `rate` a second on average."""
    dice, at_s, arrivals = random.Random(seed), 0.0, []
    for job in jobs:
        at_s += dice.expovariate(rate)
        arrivals.append(Arrival(job, at_s))
    return arrivals


def _job(number: int, *, size: int, **asked: object) -> EngineJob:
    given = {"prompt": PROMPTS[number % len(PROMPTS)], "width": size, "height": size, "seed": number, **asked}
    return EngineJob(f"{number}", ImageInput.model_validate(given))
