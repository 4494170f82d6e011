"""What the forwards of one image cost: its rows' share of their time, and how full they were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch


class Stopwatch:
    """Milliseconds between creation and `stop()`; on CUDA by events: reading waits, stopping does not."""

    __slots__ = ("_ends", "_is_cuda")

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._ends: list[Any] = [self._now()]

    def _now(self) -> Any:
        if not self._is_cuda:
            return perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # of torch
        event.record()
        return event

    def stop(self) -> None:
        self._ends.append(self._now())

    def ms(self) -> float:
        first, last = self._ends
        if not self._is_cuda:
            return float(last - first) * 1e3
        last.synchronize()
        return float(first.elapsed_time(last))


@dataclass(frozen=True, slots=True)
class Share:
    """One forward, seen by one of its calls: charged is `part` of the watch's time. `images` counts the calls that
    shared the forward, which `forward` identifies; threads that computed it together have a watch each."""

    watch: Stopwatch
    part: float
    images: int
    is_step: bool
    forward: object

    @property
    def charged_ms(self) -> float:
        return self.watch.ms() * self.part


@dataclass(slots=True)
class Meter:
    """The shares of one image, or of all images of a job when merged."""

    shares: list[Share] = field(default_factory=list)

    @classmethod
    def merged(cls, meters: Sequence[Meter]) -> Meter:
        return cls([share for meter in meters for share in meter.shares])

    @property
    def gpu_ms(self) -> float:
        return sum(share.charged_ms for share in self.shares)

    @property
    def step_ms(self) -> float:
        """Mean time of a forward of the denoiser."""
        steps = self.steps
        return sum(share.watch.ms() for share in steps) / len(steps) if steps else 0.0

    @property
    def steps(self) -> list[Share]:
        """Forwards of the denoiser; two images of one job in one forward count once."""
        return list({id(share.forward): share for share in self.shares if share.is_step}.values())
