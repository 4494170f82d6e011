"""schemathesis over the OpenAPI document that the API serves, in a virtual environment of its own.

The API asks for keys, and a worker whose models do nothing ends every job at once: answers that wait are answered, and
outputs are there to be read.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from redis import Redis

from bench.api_servers import Served, environment, gunicorn, noop_worker, scheduler
from genmill import api_keys
from genmill.api_keys import Scope
from genmill.keys import JobClass

PIN = "schemathesis==4.32.5"
VENV = Path("out/bench/venvs/schemathesis")
HOOKS = Path(__file__).parent / "peers" / "schemathesis_hooks.py"
LOGS = Path("out/bench/contract")
"""What schemathesis and the servers wrote, by phase; of the last run."""
PHASES = ("examples", "coverage", "fuzzing", "stateful")
SERVER_ERRORS = frozenset({"ST101", "ST102"})
UNDOCUMENTED = frozenset({"ST103", "ST104", "ST105", "ST106"})
"""Statuses and content types that the document does not have."""
VIOLATIONS = frozenset({"ST107", "ST108", "ST109", "ST110", "ST111"})
"""Headers and bodies that are not as the document has them."""


@dataclass(frozen=True, slots=True)
class Findings:
    """Of one run. `reports` are schemathesis's own, by phase, each of a server with nothing stored."""

    seed: int
    reports: Mapping[str, Mapping[str, Any]]

    def figures(self) -> dict[str, float]:
        known = SERVER_ERRORS | UNDOCUMENTED | VIOLATIONS
        return {
            "schemathesis_calls": sum(report["test_cases"]["generated"] for report in self.reports.values()),
            "schemathesis_operations": max(report["operations"]["tested"] for report in self.reports.values()),
            "schemathesis_accepted": sum(rate["accepted"] for rate in self._rates()),
            "schemathesis_server_errors": self._count(SERVER_ERRORS),
            "schemathesis_undocumented": self._count(UNDOCUMENTED),
            "schemathesis_schema_violations": self._count(VIOLATIONS),
            "schemathesis_other_findings": sum(one["count"] for one in self._failures() if one["code"] not in known),
        }

    def told(self) -> dict[str, Any]:
        """For the report: what was found, where."""
        return {
            "seed": self.seed,
            "calls": {phase: report["test_cases"]["generated"] for phase, report in self.reports.items()},
            "findings": [
                {name: failure[name] for name in ("code", "title", "count", "operations")}
                for failure in self._failures()
            ],
        }  # fmt: skip

    def _count(self, codes: frozenset[str]) -> int:
        return sum(failure["count"] for failure in self._failures() if failure["code"] in codes)

    def _failures(self) -> Iterator[Mapping[str, Any]]:
        for report in self.reports.values():
            yield from report["failures"]

    def _rates(self) -> Iterator[Mapping[str, int]]:
        for report in self.reports.values():
            for phases in report["valid_rates"].values():
                yield from phases.values()


def examine(redis: Redis, redis_url: str, *, seed: int, examples: int) -> Findings:
    """`examples`: of an operation in each phase, at most. A phase starts with nothing stored and with a key of its
    own, since calls set limits and make keys."""
    program, reports = _schemathesis(), dict[str, Any]()
    shutil.rmtree(LOGS, ignore_errors=True)
    for phase in PHASES:
        redis.flushall()
        key = api_keys.create(redis, "contract", "bench", scopes=tuple(Scope))
        place = LOGS.absolute() / phase
        place.mkdir(parents=True)
        with _served(place, redis_url) as served:
            reports[phase] = _run(program, served, phase, key, place, seed=seed, examples=examples)
            assert _is_known(served, key), "the calls took back the key that they were made with"
        print(f"schemathesis, {phase}: {reports[phase]['test_cases']}", file=sys.stderr, flush=True)
    return Findings(seed, reports)


@contextmanager
def _served(folder: Path, redis_url: str) -> Iterator[Served]:
    env = environment(folder, redis_url, auth=True)
    with ExitStack() as stack:
        stack.enter_context(noop_worker(tuple(JobClass), env, folder / "worker.log"))
        stack.enter_context(scheduler(env, folder / "scheduler.log"))
        yield stack.enter_context(gunicorn("api.wsgi:app", "/readyz", env, folder / "api.log"))


def _run(program: Path, served: Served, phase: str, key: str, place: Path, *, seed: int, examples: int) -> Any:
    report = place / "report.json"
    command = [
        str(program), "run", f"{served.url}/openapi.json", "--phases", phase, "--seed", str(seed),
        "--max-examples", str(examples), "--generation-database", "none", "--continue-on-failure",
        "--generation-with-security-parameters", "false", "--header", f"Authorization: Bearer {key}",
        "--request-timeout", "30", "--suppress-health-check", "all", "--report-json-path", str(report), "--no-color",
    ]  # fmt: skip
    with (place / "schemathesis.log").open("wb") as log:
        env = {**os.environ, "SCHEMATHESIS_HOOKS": str(HOOKS.absolute()), "BENCH_KEY_ID": api_keys.key_id_of(key)}
        # It keeps what it finds in the folder where it runs, and ends with 1 where it finds something.
        subprocess.run(command, stdout=log, stderr=log, env=env, cwd=place, check=False)
    found = json.loads(report.read_text(encoding="utf-8"))
    assert found["complete"], f"schemathesis did not end, see {log.name}"
    return found


def _is_known(served: Served, key: str) -> bool:
    return httpx.get(f"{served.url}/v1/jobs", headers={"Authorization": f"Bearer {key}"}).is_success


def _schemathesis() -> Path:
    """The program; set up at first use."""
    if not (VENV / f".{PIN}").exists():
        print(f"setting up {VENV}", file=sys.stderr, flush=True)
        venv.create(VENV, with_pip=True, clear=True)
        pip = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, PIN], check=True)
        (VENV / f".{PIN}").touch()
    return (VENV / "bin" / "schemathesis").absolute()
