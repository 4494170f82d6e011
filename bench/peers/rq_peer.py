"""RQ: Queue.enqueue_many; one Worker (a fork for each job) or one SimpleWorker, on four queues."""

from __future__ import annotations

import os

import job
from job import marks, noop
from redis import Redis
from rq import Queue, SimpleWorker, Worker

redis = Redis.from_url(os.environ["BENCH_REDIS_URL"])


def enqueue(count: int) -> None:
    queue = Queue("p1", connection=redis)
    given = marks(count)
    for start in range(0, count, 500):
        queue.enqueue_many([Queue.prepare_data(noop, (mark,)) for mark in given[start : start + 500]])


def work(mode: str) -> None:
    kind = SimpleWorker if mode == "simple" else Worker
    queues = [Queue(name, connection=redis) for name in ("p0", "p1", "p2", "p3")]
    kind(queues, connection=redis).work(burst=True, logging_level="ERROR")


if __name__ == "__main__":
    job.main(enqueue, work)
