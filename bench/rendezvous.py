"""What the rendezvous gains over plain pipeline calls, on one model in one process: `python -m bench.rendezvous`.

All sides run the same jobs on the same cores, in alternating rounds; the medians count. `mixed` are jobs of all
steps, guidances, samplers and sizes with a few that start from an image; `homogeneous` differ in their prompt and
seed alone. `crew_speedup` is the engine as it is, its forwards cut over their rows, against the same engine with
torch's own threads in each operator. `whole_and_cut_ms` are both for one forward of the denoiser, by its rows.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image

from bench.report import machine, write
from genmill.inputs import ImageInput, SchedulerName
from genmill.registry import ModelSpec, load_registry
from worker.encoding import developed
from worker.engines.base import EngineJob, Finished
from worker.engines.crew import Crew, single_threads
from worker.engines.devices import pick_device
from worker.engines.diffusion import DiffusionEngine
from worker.engines.pipelines import denoiser_of, load_pipeline
from worker.engines.plain import PlainCall, PlainRunner

OUT = Path(__file__).parent / "results" / "rendezvous.json"
PROMPTS = (
    "a red circle on a blue background",
    "a green star on a white background",
    "a black ring on a yellow background",
)
CUT_ROWS = (2, 4, 8, 16, 24, 32, 64)
LEVELS = 255
"""Steps of a pixel's value: the engine gives whole ones, so that they compare to half a step at best."""


@dataclass(frozen=True, slots=True)
class Run:
    """One pass over the jobs. `forwards_s` is the part of `wall_s` spent in modules that jobs share."""

    wall_s: float
    forwards_s: float
    forwards: int
    mean_batch: float
    pictures: dict[str, np.ndarray[Any, Any]]


def mixed_jobs(count: int) -> list[EngineJob]:
    """Steps 8 to 50, guidance 3 to 9, every sampler, one in nine of 96x96, one in eleven from an image."""
    rng = random.Random(7)
    return [
        _job(
            index,
            width=96 if index % 9 == 8 else 64,
            height=96 if index % 9 == 8 else 64,
            steps=rng.randint(8, 50),
            guidance=rng.choice((3.0, 5.0, 7.0, 9.0)),
            scheduler=rng.choice(tuple(SchedulerName)),
            init=_picture(index) if index % 11 == 10 else None,
        )
        for index in range(count)
    ]


def homogeneous_jobs(count: int) -> list[EngineJob]:
    return [_job(index, steps=20, guidance=5.0) for index in range(count)]


def _job(index: int, init: Image.Image | None = None, **asked: Any) -> EngineJob:
    sizes = {"width": 64, "height": 64}
    prompt = PROMPTS[index % len(PROMPTS)]
    return EngineJob(f"{index}", ImageInput(prompt=prompt, seed=index, **{**sizes, **asked}), init)


def _picture(seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (64, 64, 3), dtype=np.uint8))


class Fleet:
    """The engine on a pipeline of its own."""

    def __init__(self, spec: ModelSpec, crew: Crew | None = None) -> None:
        pipe = load_pipeline(spec, pick_device(None))
        self.engine = DiffusionEngine.from_pipeline(spec, pipe, crew)

    def run(self, jobs: Sequence[EngineJob]) -> Run:
        """All jobs through the engine, admitted as its slots allow."""
        waiting, ended, hub = list(jobs), [], self.engine.hub
        forwards, forward_s = hub.forwards, hub.forward_s
        began = time.perf_counter()
        while waiting or not self.engine.is_idle():
            free = self.engine.free_slots()
            self.engine.admit(waiting[:free])
            del waiting[:free]
            ended += [event for event in self.engine.step() if isinstance(event, Finished)]
        wall_s = time.perf_counter() - began
        assert len(ended) == len(jobs), "a job failed"
        forwards = hub.forwards - forwards
        mean_batch = sum(event.receipt.forwards for event in ended) / forwards
        pictures = {event.job_id: np.asarray(developed(event.images[0]), dtype=np.float32) for event in ended}
        return Run(wall_s, hub.forward_s - forward_s, forwards, mean_batch, pictures)


def run_alone(runner: PlainRunner, jobs: Sequence[EngineJob]) -> tuple[float, dict[str, np.ndarray[Any, Any]]]:
    """Seconds and pictures of plain calls, one after another."""
    calls = {job.job_id: PlainCall(job.input, job.init_image) for job in jobs if isinstance(job.input, ImageInput)}
    began = time.perf_counter()
    pictures = {job_id: runner.run(call).pictures[0] for job_id, call in calls.items()}
    return time.perf_counter() - began, pictures


def compare(spec: ModelSpec, jobs: Sequence[EngineJob], rounds: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Figures and samples of all sides."""
    runner, fleet, single = PlainRunner(spec), Fleet(spec), Fleet(spec, Crew(1))
    for warming in (fleet, single):
        warming.run(jobs[:2])
    run_alone(runner, jobs[:2])
    alone, together, uncut = [], [], []
    for _ in range(rounds):
        together.append(fleet.run(jobs))
        uncut.append(single.run(jobs).wall_s)
        alone.append(run_alone(runner, jobs))
    walls, alone_s = [run.wall_s for run in together], [seconds for seconds, _ in alone]
    last, expected = together[-1], alone[-1][1]
    differences = [float(np.abs(last.pictures[name] / LEVELS - expected[name]).max()) for name in expected]
    figures = {
        "jobs": len(jobs),
        "plain_s": median(alone_s),
        "rendezvous_s": median(walls),
        "speedup": median(alone_s) / median(walls),
        "crew_speedup": median(uncut) / median(walls),
        "overhead_share": median(1 - run.forwards_s / run.wall_s for run in together),
        "forwards": last.forwards,
        "mean_batch": last.mean_batch,
        "max_abs_diff": max(max(differences) - 0.5 / LEVELS, 0.0),
    }
    return figures, {"plain_s": alone_s, "rendezvous_s": walls, "rendezvous_uncut_s": uncut}


def denoiser_gain(spec: ModelSpec, rows: Sequence[int], repeats: int) -> dict[str, float]:
    """Milliseconds of the bare denoiser's forward by rows, at the model's own size: the bound on any gain."""
    denoiser = denoiser_of(load_pipeline(spec, pick_device(None)))
    with torch.inference_mode():
        given = {count: _arguments(denoiser, count) for count in rows}
        return {
            f"{count}": median(_timed_ms(lambda of=of: denoiser(*of)) for _ in range(repeats))
            for count, of in given.items()
        }


def whole_and_cut_ms(spec: ModelSpec, rows: Sequence[int], repeats: int) -> dict[str, tuple[float, float]]:
    """Milliseconds of a forward with torch's own threads in each operator, and cut over as many threads of one each;
    by its rows. Medians of turns."""
    denoiser = denoiser_of(load_pipeline(spec, torch.device("cpu")))
    threads = torch.get_num_threads()
    with single_threads(threads) as pool:

        def cut(given: tuple[torch.Tensor, ...]) -> None:
            parts = zip(*(value.tensor_split(threads) for value in given), strict=True)
            list(pool.map(lambda part: _infer(denoiser, part), parts))

        spent = {}
        for count in rows:
            given = _arguments(denoiser, count)
            ways = partial(_infer, denoiser, given), partial(cut, given)
            turns = [tuple(_timed_ms(way) for way in ways) for _ in range(repeats)]
            spent[f"{count}"] = median(whole for whole, _ in turns), median(cut_ms for _, cut_ms in turns)
    return spent


def _infer(module: torch.nn.Module, given: Sequence[torch.Tensor]) -> None:
    with torch.inference_mode():  # it holds for a thread
        module(*given)


def _arguments(denoiser: Any, count: int) -> tuple[torch.Tensor, ...]:
    side, width = denoiser.config.sample_size, denoiser.config.cross_attention_dim
    place = {"device": denoiser.device, "dtype": denoiser.dtype}
    return (
        torch.randn(count, denoiser.config.in_channels, side, side, **place),
        torch.full((count,), 500.0, device=denoiser.device),
        torch.randn(count, 32, width, **place),
    )


def _timed_ms(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - began) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="shapes")
    parser.add_argument("--models", type=Path, help="a models.toml other than the shipped one")
    parser.add_argument("--quick", action="store_true", help="fewer jobs, one round")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    spec = (load_registry(given.models) if given.models else load_registry()).get(given.model)
    about = machine()
    figures: dict[str, float] = {}
    samples: dict[str, Any] = {}
    count, rounds = (22, 1) if given.quick else (44, 5)
    for name, jobs in (("mixed", mixed_jobs(count)), ("homogeneous", homogeneous_jobs(count))):
        part, samples[name] = compare(spec, jobs, rounds)
        figures |= {f"{name}_{figure}": value for figure, value in part.items()}
    spent = denoiser_gain(spec, (2, 2 * spec.max_batch), repeats=5 if given.quick else 15)
    samples["denoiser_ms"] = spent
    samples["whole_and_cut_ms"] = whole_and_cut_ms(spec, CUT_ROWS, repeats=5 if given.quick else 25)
    few, many = spent.values()
    figures["denoiser_gain"] = few * spec.max_batch / many
    write(given.out, "bench.rendezvous", figures, about, samples=samples)


if __name__ == "__main__":
    main()
