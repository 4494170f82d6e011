"""`genmill backfill` against a real API, scheduler and worker, each of which is killed on the way."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fleet import Fleet, Process, Valkey, eventually, free_port

LINES = 120
NOOP = """[[models]]
name = "noop"
kind = "text"
source = "none"
max_batch = 8
cost_per_step_ms = 1.0
defaults = { max_tokens = 1, temperature = 1.0, top_p = 1.0 }
"""


class Mill:
    """API, scheduler and a worker whose engine does nothing; any of them may be killed and started again."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        (folder / "models.toml").write_text(NOOP)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.folder = folder
        self.fleet = Fleet(
            folder, redis_url, GENMILL_MODELS=str(folder / "models.toml"), GENMILL_AUTH="off",
            GENMILL_PORT=str(self.port), GENMILL_BATCH_WINDOW="20", GENMILL_URL=self.url,
            RQ_WORKER_CLASS="bench.noop.NoopWorker",
        )  # fmt: skip
        self.api = self.start_api()
        self.scheduler = self.fleet.scheduler()
        self.worker = self.fleet.worker()

    def start_api(self) -> Process:
        gunicorn = str(Path(sys.executable).with_name("gunicorn"))
        flags = ["--worker-class", "gthread", "--threads", "16", "--bind", f"127.0.0.1:{self.port}"]
        self.api = self.fleet._start([gunicorn, *flags, "--no-control-socket", "api.wsgi:app"], "api", {})
        eventually(self._is_ready)
        return self.api

    def backfill(self, *arguments: str) -> Process:
        command = [sys.executable, "-m", "genmill.cli", "backfill", *arguments]
        return self.fleet._start(command, "backfill", {})

    def manifest(self) -> list[dict[str, Any]]:
        path = self.folder / "out" / "manifest.jsonl"
        rows = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        return [json.loads(row) for row in rows if row.endswith(b"\n")]

    def ends(self) -> list[dict[str, Any]]:
        return [record for record in self.manifest() if "state" in record]

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=5).is_success
        except httpx.TransportError:
            return False


@pytest.fixture
def mill(tmp_path: Path, server: Valkey) -> Iterator[Mill]:
    mill = Mill(tmp_path, server.url)
    yield mill
    mill.fleet.stop()


def write_lines(path: Path, count: int = LINES, **more: Any) -> Path:
    rows = [{"custom_id": f"a/{n}", "model": "noop", "input": {"prompt": f"p {n}"}, **more} for n in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_whoever_is_killed_no_line_is_lost_and_none_is_written_twice(mill: Mill, tmp_path: Path) -> None:
    lines, out = write_lines(tmp_path / "lines.jsonl"), tmp_path / "out"
    mill.fleet.scheduler()  # stands by
    run = mill.backfill(str(lines), "-o", str(out))
    eventually(lambda: len(mill.ends()) > 5, within_s=40)
    run.kill()
    mill.scheduler.kill()
    mill.worker.kill()
    mill.api.kill()
    left = len(mill.ends())
    mill.start_api()
    mill.fleet.worker()
    again = mill.backfill(str(lines), "-o", str(out))
    assert again.wait(90) == 0

    ends = mill.ends()
    assert left <= len(ends) == LINES
    assert Counter(record["custom_id"] for record in ends) == Counter(f"a/{n}" for n in range(LINES))
    assert {record["state"] for record in ends} == {"succeeded"}
    assert sorted(path.name for path in out.glob("*.txt")) == sorted(f"a%2F{n}.txt" for n in range(LINES))
    assert list(out.glob(".tmp-*")) == []
    assert len({record["batch"] for record in mill.manifest()[1:]}) == 1


def test_a_server_that_restarts_is_waited_for(mill: Mill, tmp_path: Path) -> None:
    lines, out = write_lines(tmp_path / "lines.jsonl"), tmp_path / "out"
    mill.worker.signal(signal.SIGSTOP)  # so that the batch is under way when the API goes
    run = mill.backfill(str(lines), "-o", str(out))
    eventually(lambda: len(mill.manifest()) > 1, within_s=40)
    mill.api.kill()
    mill.worker.signal(signal.SIGCONT)
    mill.start_api()
    assert run.wait(90) == 0
    assert len(mill.ends()) == LINES


def test_ctrl_c_and_again_from_stdin(mill: Mill, tmp_path: Path) -> None:
    lines, out = write_lines(tmp_path / "lines.jsonl", 40), tmp_path / "out"
    mill.worker.signal(signal.SIGSTOP)
    command = [sys.executable, "-m", "genmill.cli", "backfill", "-", "-o", str(out)]
    with lines.open("rb") as stdin:
        first = subprocess.Popen(command, env=mill.fleet.env, stdin=stdin, stderr=subprocess.PIPE, cwd=tmp_path)
        eventually(lambda: len(mill.manifest()) > 1, within_s=40)
        first.send_signal(signal.SIGINT)
        _, told = first.communicate(timeout=30)
    assert first.returncode == 130
    assert b"goes on; the same command takes it up again" in told
    mill.worker.signal(signal.SIGCONT)

    options: dict[str, Any] = {"env": mill.fleet.env, "stdin": subprocess.DEVNULL, "cwd": tmp_path}
    done = subprocess.run([*command, "--json"], capture_output=True, timeout=90, check=True, **options)
    document = json.loads(done.stdout)
    assert (document["total"], document["succeeded"], document["failed"]) == (40, 40, 0)


def test_the_lines_of_a_batch_that_was_called_off_run_to_their_end(mill: Mill, tmp_path: Path) -> None:
    lines, out = write_lines(tmp_path / "lines.jsonl", 12), tmp_path / "out"
    batch = httpx.post(
        f"{mill.url}/v1/batches?priority=p3", content=lines.read_bytes(),
        headers={"content-type": "application/x-ndjson"},
    ).json()  # fmt: skip
    mill.worker.signal(signal.SIGSTOP)
    eventually(lambda: httpx.get(batch["urls"]["get"]).json()["counts"]["waiting"] == 12)
    httpx.post(batch["urls"]["cancel"])
    eventually(lambda: httpx.get(batch["urls"]["get"]).json()["status"] == "cancelled")
    mill.worker.signal(signal.SIGCONT)

    # the same lines: the server knows what is missing of them
    assert mill.backfill(str(lines), "-o", str(out)).wait(60) == 0
    assert Counter(record["state"] for record in mill.ends()) == Counter(succeeded=12)
