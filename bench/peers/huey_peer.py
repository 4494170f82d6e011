"""Huey: one consumer thread, results off."""

from __future__ import annotations

import os

import job
from huey import RedisHuey

huey = RedisHuey("peer", url=os.environ["BENCH_REDIS_URL"], results=False)


@huey.task(name="noop")
def noop(mark: str = "") -> None:
    job.noop(mark)


def enqueue(count: int) -> None:
    for mark in job.marks(count):
        noop(mark)


def work(_mode: str) -> None:
    huey.create_consumer(workers=1, worker_type="thread", periodic=False).run()


if __name__ == "__main__":
    job.main(enqueue, work)
