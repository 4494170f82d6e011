"""The other side of the comparison: the same image jobs as plain pipeline calls, in a process of their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genmill.demo.fleet import DemoFailed
from genmill.demo.plan import DemoJob
from genmill.errors import ChildFailed
from genmill.settings import load_settings
from genmill.up.modules import Module

MODULE = "worker.engines.plain"
"""Named, not imported: only the worker's room may touch torch."""


@dataclass(frozen=True, slots=True)
class PlainRun:
    """`pictures` are floats in 0..1, [height, width, 3], by the number of their job; loading is not in `seconds`."""

    pictures: Mapping[int, NDArray[np.float32]]
    seconds: Mapping[int, float]
    machine: Mapping[str, Any]

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())


@contextmanager
def plain_process() -> Iterator[Module]:
    """It imports its libraries while the fleet does, and is idle until it is asked."""
    with Module(MODULE, [str(load_settings().models)], env=_environment()) as module:
        yield module


def run_plain(
    module: Module, jobs: Sequence[DemoJob], inits: Mapping[int, Path], folder: Path, tell: Callable[[int], None]
) -> PlainRun:
    """One call after another, each timed; `tell` hears how many are done. Raises DemoFailed."""
    calls = [
        {"input": dict(job.input), "init_image": str(inits[job.number]) if job.number in inits else None}
        for job in jobs
    ]
    given = {"model": jobs[0].model, "device": load_settings().device, "calls": calls, "pictures": str(folder)}
    try:
        report = module.ask(given, partial(_hear, tell))
    except ChildFailed as error:
        raise DemoFailed(f"the plain pipeline calls failed: {error.detail}") from error
    pictures = {job.number: np.load(folder / f"{place}.npy")[0] for place, job in enumerate(jobs)}
    seconds = {job.number: float(took) for job, took in zip(jobs, report["seconds"], strict=True)}
    return PlainRun(pictures, seconds, {"torch": report["torch"], "threads": report["threads"]})


def _environment() -> dict[str, str]:
    """torch's threads wait for each other in loops. So many of them are as fast as the default where the machine is
    idle, as it should be here; where it is not, the default makes these calls ten times slower."""
    return {**os.environ, "GOMP_SPINCOUNT": "10000"}


def _hear(tell: Callable[[int], None], line: str) -> None:
    if line.startswith("plain "):
        tell(int(line.split()[1].split("/", maxsplit=1)[0]))
