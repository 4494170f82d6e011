"""Functions and callbacks that plain jobs of the flow tests name; they run in the fleet's workers."""

from __future__ import annotations

from pathlib import Path

from redis import Redis
from rq.job import Job


def flaky(path: str, failures: int) -> int:
    """Fails so many times, then returns which run it was."""
    with Path(path).open("a+") as log:
        log.write("x")
        log.seek(0)
        run = len(log.read())
    if run <= failures:
        raise RuntimeError(f"run {run}")
    return run


def tell_success(job: Job, connection: Redis, result: object) -> None:
    connection.rpush("told", f"{job.id} returned {result}")


def tell_failure(job: Job, connection: Redis, kind: type, value: BaseException, traceback: object) -> None:
    connection.rpush("told", f"{job.id} raised {value}")
