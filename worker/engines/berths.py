"""Jobs on board of the image engine: one pipeline call for each image, and how far each has come."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from genmill.inputs import ImageInput
from worker.engines.base import EngineJob
from worker.engines.batches import Phase
from worker.engines.meter import Meter
from worker.engines.previews import Glimpse
from worker.engines.task import Task


class Steps:
    """Stands where the pipeline expects its progress bar: counts steps instead of drawing them. `on_step` is called
    after each."""

    def __init__(self, planned: int, on_step: Callable[[], None] | None = None) -> None:
        self.total, self.done = planned, 0
        self._on_step = on_step
        self._planned: Sequence[Any] = ()

    def __call__(self, iterable: Iterable[Any] | None = None, total: int | None = None) -> Self:
        """As pipelines call it: with what they then loop over, or with its length alone."""
        self._planned = () if iterable is None else list(iterable)
        self.total = len(self._planned) if total is None else total
        return self

    def __iter__(self) -> Iterator[Any]:
        for step in self._planned:
            yield step
            self.update()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, steps: int = 1) -> None:
        self.done += steps
        if self._on_step is not None:
            self._on_step()


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


def yielding(berths: Collection[Berth]) -> list[Berth]:
    """Who may rest for an urgent job, the latest virtual deadline first; nobody twice."""
    able = [berth for berth in berths if berth.job.is_yielding and not berth.has_rested and berth.slots]
    return sorted(able, key=lambda berth: -berth.job.vd_ms)


def unused_slots(berths: Collection[Berth], slots: int) -> int:
    """Of so many. Less than 0 where more are at work than there are slots."""
    return slots - sum(berth.slots for berth in berths if not berth.is_resting)


def make_way(berths: Collection[Berth], slots: int) -> None:
    """For an urgent one that has just come: others rest until no more are at work than there are slots."""
    for berth in yielding(berths):
        if unused_slots(berths, slots) >= 0:
            break
        berth.rest(is_resting=True)


def call_back(berths: Collection[Berth], slots: int) -> None:
    """Those who rest go on as slots get free, the earliest virtual deadline first, before anybody new comes."""
    for berth in sorted((one for one in berths if one.is_resting), key=lambda one: one.job.vd_ms):
        unused = unused_slots(berths, slots)
        if berth.slots > unused and unused < slots:  # alone it goes on in any case: it may have more images than slots
            break
        berth.rest(is_resting=False)
