"""Jobs on board of the image engine: one pipeline call for each image, and how far each has come."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from genmill.inputs import ImageInput
from worker.engines.base import EngineJob
from worker.engines.batches import Phase
from worker.engines.meter import Meter
from worker.engines.previews import Glimpse
from worker.engines.rendezvous import Task


class Steps:
    """Stands where the pipeline expects its progress bar: counts steps instead of drawing them."""

    def __init__(self, planned: int) -> None:
        self.total, self.done = planned, 0

    def __call__(self, total: int) -> Self:
        self.total = total
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, steps: int = 1) -> None:
        self.done += steps


@dataclass(slots=True)
class Picture:
    """One image of a job on its way."""

    task: Task
    steps: Steps
    glimpse: Glimpse | None = None


@dataclass(slots=True)
class Berth:
    """A job on board. `told` is the progress that its client knows of, `drawn_s` when its last preview was drawn."""

    job: EngineJob
    input: ImageInput
    pictures: list[Picture] = field(default_factory=list)
    told: int = 0
    has_rested: bool = False
    drawn_s: float = 0.0

    @property
    def meter(self) -> Meter:
        return Meter.merged([picture.task.meter for picture in self.pictures])

    @property
    def slots(self) -> int:
        """Images that still take steps, or will."""
        return sum(p.task.phase is not Phase.CODA and not p.task.is_over for p in self.pictures)

    @property
    def is_resting(self) -> bool:
        return self.pictures[0].task.is_resting

    def rest(self, *, is_resting: bool) -> None:
        """Between turns, when all its images stand before a step: their latents are kept in their pipeline calls."""
        self.has_rested = True
        for picture in self.pictures:
            picture.task.is_resting = is_resting

    @property
    def step(self) -> int:
        return min(picture.steps.done for picture in self.pictures)

    @property
    def steps(self) -> int:
        return self.pictures[0].steps.total
