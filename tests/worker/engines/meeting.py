"""A hub with one site, at a module of one weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from worker.engines.batches import Phase, Site
from worker.engines.caps import RowCaps
from worker.engines.crew import Crew
from worker.engines.rendezvous import Hub
from worker.engines.rows import RowPlan
from worker.engines.task import Task


class Doubler(nn.Module):
    """Twice its input; notes the rows of each forward, and raises where `faults` says so."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(2.0))
        self.sizes: list[int] = []
        self.states: list[tuple[bool, bool]] = []
        self.fault: Callable[[Tensor], Exception | None] = lambda _: None

    def forward(self, sample: Tensor, timestep: Any) -> Tensor:  # noqa: ARG002 - as a denoiser is called
        error = self.fault(sample)
        if error is not None:
            raise error
        self.sizes.append(len(sample))
        self.states.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
        return sample * self.weight


class Meeting:
    """A hub with one site."""

    def __init__(self, cap: int = 64, crew: Crew | None = None, **options: Any) -> None:
        self.module = Doubler()
        self.hub = Hub(crew, **options)
        plan = RowPlan(("sample", "timestep"), ("sample", "timestep"))
        self.caps = RowCaps(cap)
        self.site = Site(self.module, "__call__", Phase.STEP, plan, self.caps, torch.device("cpu"))

    def call(self, sample: Tensor, timestep: float = 1.0) -> Tensor:
        result: Tensor = self.hub.meet(self.site, (sample, timestep), {})
        return result

    def doublings(self, start: float, times: int, seen: list[int] | None = None) -> Task:
        def work() -> Tensor:
            sample = torch.full((1, 3), start)
            for step in range(times):
                sample = self.call(sample)
                if seen is not None:
                    seen.append(step)
            return sample

        return self.hub.start(work)

    def run(self) -> None:
        while self.hub.tasks:
            self.hub.turn()


def value(task: Task) -> float:
    assert task.error is None, task.error
    return float(task.result[0, 0])
