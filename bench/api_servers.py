"""The servers of bench/api.py: the API as the Procfile starts it, the constant beside it, and a worker of its jobs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from genmill.up.ports import pick_port

HOST = "127.0.0.1"
START_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Served:
    """A gunicorn that listens. `log` is what it wrote."""

    port: int
    pid: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def cpu_s(self) -> float:
        """What its workers have worked since they started."""
        times = [worker.cpu_times() for worker in psutil.Process(self.pid).children()]
        return sum(one.user + one.system for one in times)


def environment(folder: Path, redis_url: str, *, auth: bool) -> dict[str, str]:
    """Of an API and of its workers; GENMILL_ and RQ_ settings of whoever calls are left out."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("GENMILL_", "RQ_"))},
        "GENMILL_REDIS_URL": redis_url, "GENMILL_STORAGE_URL": (folder / "storage").as_uri(),
        "GENMILL_SECRET_KEY": "x" * 20, "GENMILL_AUTH": "on" if auth else "off", "RQ_REDIS_URL": redis_url,
        "RQ_QUEUE_CLASS": "genmill.queues.PriorityQueue", "PYTHONPATH": str(Path(__file__).parent.parent),
    }  # fmt: skip


@contextmanager
def gunicorn(app: str, path: str, env: Mapping[str, str], log: Path) -> Iterator[Served]:
    """As the Procfile starts it; there once `path` is answered, whatever the answer."""
    port = pick_port()
    command = [str(Path(sys.executable).with_name("gunicorn")), "-c", "python:api.serving", "--bind", f"{HOST}:{port}"]
    with _process([*command, app], {**env, "GENMILL_PORT": str(port)}, log) as pid:
        served = Served(port, pid, log)
        wait_until(lambda: _answers(served.url + path), f"{app} does not answer, see {log}")
        yield served


@contextmanager
def noop_worker(queues: Sequence[str], env: Mapping[str, str], log: Path) -> Iterator[None]:
    """The real worker, with models that do nothing."""
    command = [sys.executable, "-m", "rq.cli", "worker", "-w", "bench.noop.NoopWorker", "-S", "json", *queues]
    with _process(command, env, log):
        yield


@contextmanager
def scheduler(env: Mapping[str, str], log: Path) -> Iterator[None]:
    with _process([sys.executable, "-m", "scheduler"], env, log):
        yield


def wait_until(check: Callable[[], object], fault: str, within_s: float = START_TIMEOUT_S) -> None:
    deadline = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < deadline, fault
        time.sleep(0.05)


@contextmanager
def _process(command: list[str], env: Mapping[str, str], log: Path) -> Iterator[int]:
    with log.open("ab") as sink:
        process = subprocess.Popen(command, env=dict(env), stdout=sink, stderr=sink)
    try:
        yield process.pid
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()
        process.wait()


def _answers(url: str) -> bool:
    try:
        return bool(httpx.get(url, timeout=5).status_code)
    except httpx.TransportError:
        return False
