"""How near serving comes to what a GPU can do: `python -m bench.gpu_serving`, for one GPU, within seven minutes.

By model, size and batch: the bare denoiser in a loop (the limit), plain calls one at a time, static batches, and the
rendezvous with jobs that are alike and with jobs that all differ; then with each optimization, and with too little
memory. It needs nothing from outside, and writes what it has after each measurement. `--tiny` runs the same on a CPU
with models of some thousand weights, to see that it runs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from bench import traffic
from bench.gpu_models import SETS, Subject
from bench.report import machine
from bench.servers import PipelineServer, RendezvousServer, serve
from genmill.errors import GenmillError
from genmill.registry import Optimization
from worker.engines.base import EngineJob, Failed, Finished
from worker.engines.diffusion import DiffusionEngine
from worker.engines.optimizations import optimize
from worker.engines.pipelines import denoiser_of

OUT = Path(__file__).parent / "results" / "gpu_serving.json"
BATCHES = (1, 2, 4, 8, 16)
STEPS = 8
BUDGET_S = 400.0


class Report:
    """Rows as they come, in a file that is whole at any time."""

    def __init__(self, out: Path, budget_s: float) -> None:
        self._out, self._began, self._budget_s = out, time.monotonic(), budget_s
        self.rows: list[dict[str, Any]] = []
        self._about = machine()

    @property
    def is_over(self) -> bool:
        return time.monotonic() - self._began > self._budget_s

    def note(self, **row: Any) -> None:
        self.rows.append(row)
        print(json.dumps(row), flush=True)
        figures = {
            "rows": len(self.rows),
            "wall_s": round(time.monotonic() - self._began, 1),
            "is_whole": not self.is_over,
        }
        self._out.parent.mkdir(parents=True, exist_ok=True)
        whole = {
            "figures": figures,
            "samples": self.rows,
            "machine": self._about,
            "command": "python -m bench.gpu_serving",
        }
        self._out.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


def measure(subject: Subject, size: int, report: Report, device: torch.device, dtype: torch.dtype) -> None:
    """All servers at all batches."""
    plain, shared = subject.pipeline(device, dtype), subject.pipeline(device, dtype)
    rendezvous = RendezvousServer(subject.spec, shared)
    one = PipelineServer(plain, 1)
    serve(one, traffic.at_once(alike(1, size)))
    serial = 1 / serve(one, traffic.at_once(alike(1, size))).wall_s
    for batch in BATCHES:
        if report.is_over:
            return
        try:
            limit_ms = bare_ms(plain, size, batch)
            static = PipelineServer(plain, batch)
            serve(static, traffic.at_once(alike(batch, size)))
            static_s = serve(static, traffic.at_once(alike(batch, size))).wall_s
            serve(rendezvous, traffic.at_once(alike(batch, size)))
            alike_s, busy = timed_busy(rendezvous.engine, alike(batch, size))
            mixed_s, mixed_busy = timed_busy(rendezvous.engine, mixed(batch, size))
        except torch.OutOfMemoryError:
            report.note(model=subject.name, size=size, batch=batch, skipped="out of memory")
            return
        limit = batch * 1e3 / (limit_ms * STEPS)
        report.note(
            model=subject.name, size=size, batch=batch, limit_images_per_s=limit, serial_images_per_s=serial,
            static_images_per_s=batch / static_s, rendezvous_images_per_s=batch / alike_s,
            of_limit=batch / alike_s / limit, mixed_images_per_s=batch / mixed_s,
            mixed_of_limit=batch / mixed_s / limit, busy_share=busy, mixed_busy_share=mixed_busy,
            memory_mb=torch.cuda.memory_reserved() / 1e6 if device.type == "cuda" else None,
        )  # fmt: skip


def alike(count: int, size: int) -> list[EngineJob]:
    jobs = traffic.homogeneous(count, size)
    return [_with(job, steps=STEPS) for job in jobs]


def mixed(count: int, size: int) -> list[EngineJob]:
    """Guidance differs, and steps around STEPS; as many steps in all as of jobs that are alike."""
    return [
        _with(job, steps=STEPS + (number % 3 - 1) * 2, guidance=3.0 + number % 5)
        for number, job in enumerate(traffic.homogeneous(count, size))
    ]


def _with(job: EngineJob, **changes: Any) -> EngineJob:
    return dataclasses.replace(job, input=job.input.model_copy(update=changes))


def bare_ms(pipe: Any, size: int, batch: int, repeats: int = 6) -> float:
    """Milliseconds of the denoiser alone, with the arguments that the pipeline gives it for so many images."""
    denoiser, seen = denoiser_of(pipe), list[tuple[Any, Any]]()
    hook = denoiser.register_forward_pre_hook(lambda _, args, kw: seen.append((args, kw)), with_kwargs=True)
    pipe(
        prompt=["a"] * batch, width=size, height=size, num_inference_steps=1, guidance_scale=5.0, output_type="latent"
    )
    hook.remove()
    args, kwargs = seen[-1]
    with torch.inference_mode():
        return timed_ms(lambda: denoiser(*args, **kwargs), repeats)


def timed_ms(work: Callable[[], Any], repeats: int) -> float:
    work()
    synchronize()
    began = time.perf_counter()
    for _ in range(repeats):
        work()
    synchronize()
    return (time.perf_counter() - began) * 1e3 / repeats


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def timed_busy(engine: DiffusionEngine, jobs: Sequence[EngineJob]) -> tuple[float, float]:
    """Seconds for all jobs, and the share of them in which the device computed their forwards."""
    gpu_ms, began = 0.0, time.perf_counter()
    engine.admit(jobs)
    while not engine.is_idle():
        for event in engine.step():
            if isinstance(event, Failed):
                raise event.error
            if isinstance(event, Finished):
                gpu_ms += event.receipt.gpu_ms
    synchronize()
    took_s = time.perf_counter() - began
    return took_s, gpu_ms / 1e3 / took_s


def measure_optimizations(subject: Subject, report: Report, device: torch.device, dtype: torch.dtype) -> None:
    """Eight images at the first size, with each optimization."""
    size = subject.sizes[0]
    for wanted in ((), *((one,) for one in Optimization)):
        if report.is_over:
            return
        pipe = subject.pipeline(device, dtype)
        try:
            optimize(pipe, wanted)
            spec = subject.spec.model_copy(update={"optimizations": wanted})
            engine = DiffusionEngine.from_pipeline(spec, pipe)
            timed_busy(engine, alike(8, size))
            took_s, busy = timed_busy(engine, alike(8, size))
        except GenmillError as error:
            report.note(model=subject.name, size=size, optimizations=wanted, skipped=error.detail)
            continue
        report.note(
            model=subject.name, size=size, batch=8, optimizations=wanted, images_per_s=8 / took_s, busy_share=busy
        )


def measure_little_memory(subject: Subject, report: Report, device: torch.device, dtype: torch.dtype) -> None:
    """Sixteen images where only about six fit: all finish, and the engine has learnt how many do."""
    size, pipe = subject.sizes[-1], subject.pipeline(device, dtype)
    engine = DiffusionEngine.from_pipeline(subject.spec, pipe)
    with _little_memory(engine, pipe, size):
        took_s, _ = timed_busy(engine, alike(16, size))
        learnt = engine.learnt_caps()
        again_s, _ = timed_busy(engine, alike(16, size))
    report.note(
        model=subject.name,
        size=size,
        little_memory=True,
        finished=16,
        learnt_rows=learnt,
        first_s=took_s,
        again_s=again_s,
    )


class _little_memory:  # noqa: N801 - reads as the block that it is
    """On a GPU a lower bound for the whole process; on a CPU a hook that raises above twelve rows."""

    def __init__(self, engine: DiffusionEngine, pipe: Any, size: int) -> None:
        self._engine, self._pipe, self._size, self._hook = engine, pipe, size, None

    def __enter__(self) -> None:
        if not torch.cuda.is_available():

            def refuse(_: Any, __: Any, kwargs: Any) -> None:
                if (
                    max(len(value) for value in kwargs.values() if isinstance(value, torch.Tensor) and value.ndim > 2)
                    > 12
                ):
                    raise torch.OutOfMemoryError("no room for more than 12 rows")

            self._hook = denoiser_of(self._pipe).register_forward_pre_hook(refuse, with_kwargs=True)
            return
        torch.cuda.empty_cache()
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        timed_busy(self._engine, alike(2, self._size))
        for_two = torch.cuda.max_memory_allocated() - held
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, (held + 3 * for_two) / total))

    def __exit__(self, *_: object) -> None:
        if self._hook is not None:
            self._hook.remove()
        if torch.cuda.is_available():
            torch.cuda.set_per_process_memory_fraction(1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--tiny", action="store_true", help="models of some thousand weights, for a machine without GPU"
    )
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--budget-s", type=float, default=BUDGET_S, help="begin no measurement after so many seconds")
    given = parser.parse_args()
    if not given.tiny and not torch.cuda.is_available():
        parser.error("no CUDA device here: --tiny runs the same on a CPU")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.float32 if given.tiny else torch.float16
    report = Report(given.out or (Path("out/bench/gpu_serving.json") if given.tiny else OUT), given.budget_s)
    subjects = SETS[given.tiny]
    for subject in subjects:
        for size in subject.sizes:
            measure(subject, size, report, device, dtype)
            if device.type == "cuda":
                torch.cuda.empty_cache()
    measure_optimizations(subjects[1], report, device, dtype)
    measure_little_memory(subjects[1], report, device, dtype)


if __name__ == "__main__":
    main()
