"""What a model does on this device, by batch and size: `python -m worker.profile MODELS_TOML < asked.json`.

`asked`: {model, device, batches, sizes (pixels, or tokens of a prompt), optimizations: lists of names to try, quick}.
Progress goes to stderr, a line for each measurement; the report is {rows, summary, machine}.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from genmill.errors import GenmillError
from genmill.registry import ModelKind, ModelSpec, load_registry
from worker.engines.base import Engine, EngineJob, Failed, Finished
from worker.engines.loader import load_engine
from worker.engines.memory import WATCHES

STEPS, TOKENS = 8, 16
"""Of the jobs that are measured; what a step takes does not depend on how many there are."""
PASSES = 3
ENOUGH = 0.95
"""A batch is recommended when it reaches this much of the best throughput: larger ones only wait longer."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement. `per_s`: images with the model's default number of steps, or tokens, a second. `utilisation`:
    of the CPU's cores, or of the GPU. `memory_mb`: the most that this process has taken up to here, on a GPU in this
    run."""

    optimizations: str
    size: int
    batch: int
    ms_per_step: float
    per_s: float
    utilisation: float | None
    memory_mb: float


def profile(asked: Mapping[str, Any], spec: ModelSpec) -> dict[str, Any]:
    """All rows, and for each size and set of optimizations what they amount to. A set that the model cannot have is
    told instead of measured."""
    rows: list[Row] = []
    refused: dict[str, str] = {}
    for names in asked["optimizations"]:
        label = "+".join(names) or "none"
        try:
            engine = load_engine(spec.model_copy(update={"optimizations": tuple(names)}), device=asked.get("device"))
        except GenmillError as error:
            refused[label] = error.detail
            continue
        rows += _sweep(engine, spec, label, asked)
        engine.close()
    return {"rows": [asdict(row) for row in rows], "summary": summary(rows), "refused": refused, "machine": _machine()}


def summary(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """For each size and set: the most a second, the knee (the largest batch whose step takes about as long as that of
    one) and the batch to take."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.optimizations, row.size), []).append(row)
    return [
        {
            "optimizations": label,
            "size": size,
            "best_per_s": max(row.per_s for row in group),
            "knee": max(row.batch for row in group if row.ms_per_step <= 1.1 * group[0].ms_per_step),
            "recommended_batch": next(
                row.batch for row in group if row.per_s >= ENOUGH * max(other.per_s for other in group)
            ),
        }
        for (label, size), group in groups.items()
    ]


def _sweep(engine: Engine, spec: ModelSpec, label: str, asked: Mapping[str, Any]) -> Iterator[Row]:
    passes = 1 if asked.get("quick") else PASSES
    for size in asked["sizes"]:
        for batch in asked["batches"]:
            jobs = [_job(spec, number, size) for number in range(batch)]
            for _ in range(WATCHES):  # the first passes of a shape are slower, and the engine measures its memory
                _run(engine, jobs)
            yield _measure(engine, spec, label, size, jobs, passes)
            print(f"profile {label} {size} {batch}", file=sys.stderr, flush=True)


def _measure(
    engine: Engine, spec: ModelSpec, label: str, size: int, jobs: Sequence[EngineJob], passes: int
) -> Row:  # fmt: skip
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    cpu_s, began = time.process_time(), time.perf_counter()
    busy: list[float] = []
    step_s = []
    for _ in range(passes):
        step_s.append(_run(engine, jobs))
        busy += _gpu_utilisation()
    wall_s = time.perf_counter() - began
    cores = min(1.0, (time.process_time() - cpu_s) / wall_s / (os.cpu_count() or 1))
    took_s = median(step_s)
    steps = 1 if spec.kind is ModelKind.TEXT else int(spec.defaults.get("steps", 20))
    return Row(
        label, size, len(jobs), round(took_s * 1e3, 3), round(len(jobs) / took_s / steps, 3),
        round(sum(busy) / len(busy) if busy else cores, 3), round(_memory_mb(), 1),
    )  # fmt: skip


def _run(engine: Engine, jobs: Sequence[EngineJob]) -> float:
    """Seconds for a step of all, everything in them. Raises what a job failed with."""
    ended, began = 0, time.perf_counter()
    engine.admit(jobs)
    while ended < len(jobs):
        for event in engine.step():
            if isinstance(event, Failed):
                raise event.error
            ended += isinstance(event, Finished)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / (jobs[0].input.max_tokens if jobs[0].input.kind == "text" else STEPS)


def _job(spec: ModelSpec, number: int, size: int) -> EngineJob:
    if spec.kind is ModelKind.TEXT:
        asked: dict[str, Any] = {"prompt": "a red circle " * max(1, size // 3), "max_tokens": TOKENS, "stop": ()}
    else:
        asked = {"prompt": "a red circle on a blue background", "width": size, "height": size, "steps": STEPS}
    return EngineJob(f"{number}", spec.parse_input({**asked, "seed": number}))


def _memory_mb() -> float:
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def _gpu_utilisation() -> list[float]:
    """As NVML tells it, of the last sampling period; nothing without a GPU or its library."""
    if not torch.cuda.is_available():
        return []
    try:
        return [torch.cuda.utilization() / 100]
    except (RuntimeError, ModuleNotFoundError):
        return []


def _machine() -> dict[str, Any]:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {"device": device, "cores": os.cpu_count(), "threads": torch.get_num_threads(), "torch": torch.__version__}


def main(arguments: Sequence[str], asked: Mapping[str, Any]) -> dict[str, Any]:
    return profile(asked, load_registry(Path(arguments[0])).get(asked["model"]))


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:], json.load(sys.stdin))))
