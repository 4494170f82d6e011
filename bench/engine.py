"""What step-level batching gains: `python -m bench.engine`, written to bench/results/engine.json.

The same jobs through plain pipeline calls, static batches (jobs with the same parameters only) and the rendezvous, in
alternating rounds in one process; medians count. `mixed` jobs all differ; `mixed_two_sizes` in size as well. With
arrivals in time the load is a share of what the static server takes of mixed jobs.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench import traffic
from bench.report import machine, write
from bench.servers import PipelineServer, RendezvousServer, Served, Server, serve
from bench.swaps import swaps_vs_fcfs
from genmill.registry import ModelSpec, load_registry
from tests.worker.engines import tiny
from worker.engines.base import EngineJob, Finished
from worker.engines.devices import pick_device
from worker.engines.diffusion import DiffusionEngine
from worker.engines.pipelines import load_pipeline

OUT = Path(__file__).parent / "results" / "engine.json"
HALF_A_LEVEL = 0.5 / 255
"""The engine gives whole levels: what rounding may move a pixel."""

Jobs = Callable[[int, int], list[EngineJob]]
KINDS: Mapping[str, Jobs] = {
    "mixed": traffic.diverse,
    "mixed_two_sizes": lambda count, size: traffic.diverse(count, size, sizes=2),
    "few_kinds": traffic.few_kinds,
    "homogeneous": traffic.homogeneous,
}


class Bench:
    """One model behind three servers, each with a pipeline of its own."""

    def __init__(self, name: str, spec: ModelSpec, build: Callable[[], Any], size: int) -> None:
        self.name, self.spec, self.size = name, spec, size
        self.servers: dict[str, Server] = {
            "serial": PipelineServer(build(), 1),
            "static": PipelineServer(build(), spec.max_batch),
            "rendezvous": RendezvousServer(spec, build()),
        }
        self.samples: dict[str, Any] = {}
        for server in self.servers.values():
            serve(server, traffic.at_once(traffic.diverse(4, size, sizes=2)))

    def throughput(self, kind: str, count: int, rounds: int) -> dict[str, float]:
        """Jobs a second of each server, all jobs at once; their ratios; the largest difference of a pixel."""
        jobs = KINDS[kind](count, self.size)
        runs: dict[str, list[Served]] = {name: [] for name in self.servers}
        for _ in range(rounds):
            for name, server in self.servers.items():
                runs[name].append(serve(server, traffic.at_once(jobs)))
        rates = {name: count / median(run.wall_s for run in passes) for name, passes in runs.items()}
        self.samples[kind] = {name: [run.wall_s for run in passes] for name, passes in runs.items()}
        last = {name: passes[-1] for name, passes in runs.items()}
        return {
            **{f"{kind}_{name}_jobs_per_s": rate for name, rate in rates.items()},
            f"{kind}_vs_static": rates["rendezvous"] / rates["static"],
            f"{kind}_vs_serial": rates["rendezvous"] / rates["serial"],
            f"{kind}_static_vs_serial": rates["static"] / rates["serial"],
            f"{kind}_mean_batch": last["rendezvous"].mean_batch,
            f"{kind}_static_mean_batch": last["static"].mean_batch,
            f"{kind}_max_abs_diff": difference(last["rendezvous"], last["serial"]),
        }

    def latency(self, load: float, static_rate: float, count: int, rounds: int) -> dict[str, float]:
        """Waits of mixed jobs that come at random, at a share of the static server's rate."""
        arrivals = traffic.poisson(traffic.diverse(count, self.size), load * static_rate)
        runs: dict[str, list[Served]] = {"static": [], "rendezvous": []}
        for _ in range(rounds):
            for name, passes in runs.items():
                passes.append(serve(self.servers[name], arrivals))
        label, figures = f"{100 * load:.0f}", {}
        for name, passes in runs.items():
            for percent in (50, 95):
                figures[f"p{percent}_{label}_{name}_s"] = median(run.percentile_s(percent) for run in passes)
            figures[f"mean_batch_{label}_{name}"] = median(run.mean_batch for run in passes)
        figures[f"p95_{label}_vs_static"] = figures[f"p95_{label}_rendezvous_s"] / figures[f"p95_{label}_static_s"]
        figures[f"p50_{label}_vs_static"] = figures[f"p50_{label}_rendezvous_s"] / figures[f"p50_{label}_static_s"]
        return figures


def difference(got: Served, expected: Served) -> float:
    """Over all pixels of all jobs, past the rounding to whole levels."""
    worst = max(float(np.abs(got.pictures[name] - expected.pictures[name]).max()) for name in expected.pictures)
    return max(0.0, worst - HALF_A_LEVEL)


def urgent_in_bulk(spec: ModelSpec, build: Callable[[], Any], size: int, bulk: int, rounds: int) -> dict[str, float]:
    """A p0 job for every ten p3 jobs that have ended, into an engine that is full of them."""
    engine = DiffusionEngine.from_pipeline(spec, build())
    jobs = [
        dataclasses.replace(job, job_class="p3", vd_ms=float(n)) for n, job in enumerate(traffic.diverse(bulk, size))
    ]
    alone, inside, calm, disturbed = [], [], [], []
    for _ in range(rounds):
        alone += [_run(engine, [], [urgent])[1][0] for urgent in _urgent(3, size)]
        calm.append(_run(engine, jobs, [])[0])
        wall_s, waits_s = _run(engine, jobs, _urgent(bulk // 10, size))
        disturbed.append(wall_s)
        inside += waits_s
    engine.close()
    return {
        "p0_alone_s": median(alone),
        "p0_in_p3_s": median(inside),
        "p0_in_p3_vs_alone": median(inside) / median(alone),
        "p0_in_p3_worst_vs_alone": max(inside) / median(alone),
        "bulk_share_with_p0": median(calm) / median(disturbed),
    }


def _urgent(count: int, size: int) -> list[EngineJob]:
    jobs = traffic.homogeneous(count, size)
    return [dataclasses.replace(job, job_id=f"urgent{n}", job_class="p0") for n, job in enumerate(jobs)]


def _run(engine: DiffusionEngine, bulk: Sequence[EngineJob], urgent: Sequence[EngineJob]) -> tuple[float, list[float]]:
    """Seconds until the bulk has ended, and of each urgent job from its coming to its end."""
    waiting, later, came, waits_s = list(bulk), list(urgent), dict[str, float](), list[float]()
    began, ended, bulk_s = time.perf_counter(), 0, 0.0
    while waiting or later or not engine.is_idle():
        if later and (ended >= 10 * (len(urgent) - len(later)) + 5 or not bulk) and not came:
            came[later[0].job_id] = time.perf_counter()
            engine.admit([later.pop(0)])
        free = engine.free_slots()
        engine.admit(waiting[:free])
        del waiting[:free]
        for event in engine.step():
            if isinstance(event, Finished) and event.job_id in came:
                waits_s.append(time.perf_counter() - came.pop(event.job_id))
            elif isinstance(event, Finished):
                ended, bulk_s = ended + 1, time.perf_counter() - began
    return bulk_s, waits_s


def overhead(build: Callable[[], Any], spec: ModelSpec, size: int, rounds: int) -> float:
    """Share of the time outside the shared modules, with eight mixed jobs on board."""
    engine = DiffusionEngine.from_pipeline(spec, build())
    jobs = [
        dataclasses.replace(job, input=job.input.model_copy(update={"steps": 30}))
        for job in traffic.diverse(8, size)
    ]  # fmt: skip
    shares = []
    for _ in range(rounds + 1):
        began, spent = time.perf_counter(), engine.hub.forward_s
        engine.admit(jobs)
        while not engine.is_idle():
            engine.step()
        shares.append(1 - (engine.hub.forward_s - spent) / (time.perf_counter() - began))
    engine.close()
    return median(shares[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer jobs, one round")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    about, rounds = machine(), 1 if given.quick else 3
    spec = load_registry().get("shapes")
    shapes = Bench("shapes", spec, lambda: load_pipeline(spec, pick_device(None)), 64)
    figures: dict[str, float] = {}
    for kind in KINDS:
        figures |= shapes.throughput(kind, 24 if given.quick else 48, rounds)
        print({name: round(value, 3) for name, value in figures.items() if name.startswith(kind)}, flush=True)
    figures["max_abs_diff"] = max(value for name, value in figures.items() if name.endswith("max_abs_diff"))
    for load in (0.6, 0.9):
        figures |= shapes.latency(load, figures["mixed_static_jobs_per_s"], 16 if given.quick else 60, min(rounds, 2))
    figures |= urgent_in_bulk(
        spec, lambda: load_pipeline(spec, pick_device(None)), 64, 50 if given.quick else 100, rounds
    )
    figures |= swaps_vs_fcfs()
    small = Bench("tiny sdxl", tiny.spec(), tiny.stable_diffusion_xl, 32)
    part = small.throughput("mixed", 16 if given.quick else 48, rounds)
    figures |= {f"tiny_sdxl_{name}": value for name, value in part.items()}
    for name, build in (("tiny_sd", tiny.stable_diffusion), ("tiny_sdxl", tiny.stable_diffusion_xl)):
        figures[f"overhead_share_{name}"] = overhead(build, tiny.spec(), 32, rounds)
    figures["overhead_share_shapes"] = overhead(
        lambda: load_pipeline(spec, pick_device(None)), spec, 64, rounds
    )  # fmt: skip
    write(given.out, "bench.engine", figures, about, samples={"shapes": shapes.samples, "tiny_sdxl": small.samples})


if __name__ == "__main__":
    main()
