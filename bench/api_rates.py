"""Rates of submissions for bench/api.py: beside a Flask endpoint, and beside many answers that are held open."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from redis import Redis

from bench.api_held import held
from bench.api_load import Load, load, request_bytes
from bench.api_servers import Served, environment, gunicorn, noop_worker
from genmill import api_keys

CONNECTIONS = 8
HELD = 500
TENANTS = 5
"""Among whom what is held is shared out: one of them may have a quarter of the places."""
BODY = {"model": "shapes", "input": {"prompt": "a red circle on a blue background"}}
END_TIMEOUT_S = 60.0
ENDED = b'"state":"succeeded"'


@dataclass(frozen=True, slots=True)
class Pace:
    """How long is measured, and how often each in turn; `warm_up_s` before that does not count."""

    rounds: int
    seconds: float
    warm_up_s: float


@dataclass(slots=True)
class Rates:
    """Loads by what was measured, in their order."""

    loads: dict[str, list[Load]] = field(default_factory=dict)
    server_busy: dict[str, list[float]] = field(default_factory=dict)

    def measure(self, name: str, served: Served, request: bytes, status: int, pace: Pace) -> None:
        cpu_s = served.cpu_s()
        found = load(
            served.port, request, status, connections=CONNECTIONS, warm_up_s=pace.warm_up_s, seconds=pace.seconds
        )
        busy = (served.cpu_s() - cpu_s) / (pace.warm_up_s + pace.seconds)
        self.loads.setdefault(name, []).append(found)
        self.server_busy.setdefault(name, []).append(busy)
        print(f"{name}: {found.rate:.0f}/s, p99 {found.percentile_ms(99):.1f} ms", file=sys.stderr, flush=True)

    def rate(self, name: str) -> float:
        return median(one.rate for one in self.loads[name])

    def percentile_ms(self, name: str, percent: int) -> float:
        return median(one.percentile_ms(percent) for one in self.loads[name])

    def told(self) -> dict[str, Any]:
        """For the report: each round's rate, and how busy the sender and the server were, in cores."""
        return {
            name: {
                "per_s": [round(one.rate, 1) for one in loads],
                "sender_busy": round(median(one.busy for one in loads), 2),
                "server_busy": round(median(self.server_busy[name]), 2),
            }
            for name, loads in self.loads.items()
        }


def beside_flask(folder: Path, redis: Redis, redis_url: str, pace: Pace) -> Rates:
    """`flask`, `submit` and `submit without keys`, in turn."""
    rates = Rates()
    with ExitStack() as stack:
        env = environment(folder, redis_url, auth=False)
        flask = stack.enter_context(gunicorn("bench.constant:app", "/", env, folder / "flask.log"))
        is_open = stack.enter_context(gunicorn("api.wsgi:app", "/readyz", env, folder / "open.log"))
        env = environment(folder, redis_url, auth=True)
        keyed = stack.enter_context(gunicorn("api.wsgi:app", "/readyz", env, folder / "keyed.log"))
        for _ in range(pace.rounds):
            redis.flushall()
            bearer = _bearer(api_keys.create(redis, "bench", "bench"))
            rates.measure("flask", flask, request_bytes("POST", "/v1/jobs", BODY, bearer), 200, pace)
            rates.measure("submit", keyed, request_bytes("POST", "/v1/jobs", BODY, bearer), 202, pace)
            rates.measure("submit_without_keys", is_open, request_bytes("POST", "/v1/jobs", BODY), 202, pace)
    return rates


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of answer that is held: `path` follows the job's, `opening` is heard at once, where anything is."""

    name: str
    path: str
    headers: Mapping[str, str]
    opening: bytes | None


STREAMS = Kind("streams", "/events", {}, b": genmill")
POLLS = Kind("polls", "", {"Prefer": "wait=60"}, None)


def beside_held(folder: Path, redis: Redis, redis_url: str, pace: Pace) -> tuple[Rates, dict[str, int]]:
    """`alone`, `with_streams` and `with_polls`, in turn; and how many streams and polls heard of the end of their job
    in the worst of the rounds."""
    rates, ended = Rates(), {}
    env = environment(folder, redis_url, auth=True)
    with gunicorn("api.wsgi:app", "/readyz", env, folder / "held.log") as served:
        for _ in range(pace.rounds):
            redis.flushall()
            bearers = [_bearer(api_keys.create(redis, f"bench-{number}", "bench")) for number in range(TENANTS)]
            request = request_bytes("POST", "/v1/jobs", BODY, bearers[0])
            rates.measure("alone", served, request, 202, pace)
            for kind in (STREAMS, POLLS):
                opened = held(served.port, _requests(kind, served, bearers))
                with opened as answers:
                    if kind.opening is not None:
                        assert answers.count(kind.opening, HELD, END_TIMEOUT_S) == HELD, "not all were opened"
                    rates.measure(f"with_{kind.name}", served, request, 202, pace)
                    assert answers.count(ENDED, HELD, 0.0) == 0, "a job ended without a worker"
                    with noop_worker(("p0",), env, folder / "worker.log"):
                        count = answers.count(ENDED, HELD, END_TIMEOUT_S)
                ended[kind.name] = min(count, ended.get(kind.name, HELD))
    return rates, ended


def _requests(kind: Kind, served: Served, bearers: Sequence[Mapping[str, str]]) -> list[bytes]:
    """Of as many jobs, which stand in the lane of p0: the worker that ends them takes none of those that are
    measured."""
    requests = []
    with httpx.Client(base_url=served.url) as client:
        for number in range(HELD):
            bearer = bearers[number % len(bearers)]
            answer = client.post("/v1/jobs", json={**BODY, "priority": "p0"}, headers=bearer)
            path = f"/v1/jobs/{answer.raise_for_status().json()['id']}{kind.path}"
            requests.append(request_bytes("GET", path, headers={**bearer, **kind.headers}))
    return requests


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}
