"""`genmill up` as the demo runs it: a process of its own in a temporary folder, on free ports, ended for sure."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from genmill.errors import GenmillError
from genmill.up.folder import DataFolder
from genmill.up.orphans import python_module
from genmill.up.ports import pick_port
from genmill.up.run import is_ready

START_TIMEOUT_S = 60.0
GRACE_S = 5.0
STOP_TIMEOUT_S = 30.0
POLL_S = 0.1


class DemoFailed(GenmillError):
    """The demo could not be run to its end."""

    code = "demo_failed"


@dataclass(frozen=True, slots=True)
class RunningFleet:
    """Where the demo's fleet listens."""

    base_url: str
    redis_url: str


@contextmanager
def running_fleet(log: Path) -> Iterator[RunningFleet]:
    """Ready to take jobs; ends with the block, its data too; only its log stays. Raises DemoFailed."""
    with tempfile.TemporaryDirectory(prefix="genmill-demo-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        port = pick_port()
        command = [*python_module("genmill.cli"), "up", "--data", str(folder), "--port", str(port)]
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - ourselves
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=_environment(),
                start_new_session=True,
            )  # fmt: skip
        try:
            base_url = f"http://127.0.0.1:{port}"
            _wait_until_ready(process, base_url, log)
            yield RunningFleet(base_url, DataFolder(folder).redis_url() or "")
        finally:
            _stop(process)


def _environment() -> Mapping[str, str]:
    """The caller's, but with settings of its own: keys are checked, and callbacks may go to this machine."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GENMILL_")}
    kept = {name: os.environ[name] for name in ("GENMILL_DEVICE", "GENMILL_MODELS") if name in os.environ}
    return {
        **inherited,
        **kept,
        "GENMILL_AUTH": "on",
        "GENMILL_ALLOW_HTTP_WEBHOOKS": "on",
        "GENMILL_ALLOW_PRIVATE_URLS": "on",
        "GENMILL_GRACE_S": f"{GRACE_S:g}",
    }


def _wait_until_ready(process: subprocess.Popen[bytes], base_url: str, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise DemoFailed(f"genmill up ended at its start (exit code {process.returncode}); see {log}")
        if is_ready(base_url):
            return
        time.sleep(POLL_S)
    raise DemoFailed(f"genmill up is not ready after {START_TIMEOUT_S:.0f} s; see {log}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM ends the whole fleet within its grace; what hangs longer is killed with its session."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
