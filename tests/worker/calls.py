"""Functions and callbacks that the tests of plain calls name; what happened is noted in `heard`."""

from __future__ import annotations

import threading
from typing import Any

from redis import Redis
from rq.job import Job

heard: list[tuple[Any, ...]] = []
GATE = threading.Event()
"""What `wait` and `slow_success` wait for."""


def double(value: int) -> int:
    heard.append(("double", threading.current_thread().name))
    return 2 * value


def fail() -> None:
    raise ValueError("it broke")


def unstorable() -> object:
    return object()


def wait() -> str:
    assert GATE.wait(20)
    heard.append(("wait",))
    return "waited"


def on_success(job: Job, connection: Redis, result: object) -> None:
    is_known = bool(connection.exists(job.key))
    heard.append(("success", job.id, is_known, result, threading.current_thread().name, job.get_status(refresh=False)))


def on_failure(job: Job, connection: Redis, kind: type, value: BaseException, traceback: object) -> None:
    heard.append(("failure", job.id, connection.ping(), kind.__name__, str(value), traceback is not None))


def on_stopped(job: Job, connection: Redis) -> None:
    heard.append(("stopped", job.id, connection.ping()))


def bad_success(job: Job, connection: Redis, result: object) -> None:
    raise LookupError("no success")


def bad_failure(job: Job, connection: Redis, kind: type, value: BaseException, traceback: object) -> None:
    raise LookupError("no failure")


def slow_success(job: Job, connection: Redis, result: object) -> None:
    assert GATE.wait(20)
