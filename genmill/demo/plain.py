"""The other side of the comparison: the same image jobs as plain pipeline calls, in a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genmill.demo.fleet import DemoFailed
from genmill.demo.plan import DemoJob
from genmill.settings import load_settings
from genmill.up.orphans import python_module

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


def run_plain(
    jobs: Sequence[DemoJob], inits: Mapping[int, Path], folder: Path, tell: Callable[[int], None]
) -> PlainRun:
    """One call after another, each timed; `tell` hears how many are done. Raises DemoFailed."""
    settings = load_settings()
    calls = [
        {"input": dict(job.input), "init_image": str(inits[job.number]) if job.number in inits else None}
        for job in jobs
    ]
    given = {"model": jobs[0].model, "device": settings.device, "calls": calls, "pictures": str(folder)}
    report = _run([*python_module(MODULE), str(settings.models)], json.dumps(given), folder, tell)
    pictures = {job.number: np.load(folder / f"{place}.npy")[0] for place, job in enumerate(jobs)}
    seconds = {job.number: float(took) for job, took in zip(jobs, report["seconds"], strict=True)}
    return PlainRun(pictures, seconds, {"torch": report["torch"], "threads": report["threads"]})


def _environment() -> dict[str, str]:
    """torch's threads wait for each other in loops. So many of them are as fast as the default where the machine is
    idle, as it should be here; where it is not, the default makes these calls ten times slower."""
    return {**os.environ, "GOMP_SPINCOUNT": "10000"}


def _run(command: Sequence[str], given: str, folder: Path, tell: Callable[[int], None]) -> dict[str, Any]:
    """Its JSON report. The process never outlives this call."""
    request = folder / "calls.json"
    request.write_text(given, encoding="utf-8")
    lines: list[str] = []
    with request.open("rb") as stdin, (folder / "report.json").open("w+b") as stdout:
        process = subprocess.Popen(  # noqa: S603 - a module of ours
            command, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, text=True, env=_environment(),
        )  # fmt: skip
        try:
            for line in process.stderr or ():
                lines.append(line.rstrip())
                if line.startswith("plain "):
                    tell(int(line.split()[1].split("/")[0]))
            process.wait()
        finally:
            process.kill()
            process.wait()
        if process.returncode != 0:
            raise DemoFailed(f"the plain pipeline calls failed: {lines[-1] if lines else process.returncode}")
        stdout.seek(0)
        report: dict[str, Any] = json.load(stdout)
    return report
