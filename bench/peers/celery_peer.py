"""Celery: one worker process, solo or prefork; with and without results."""

from __future__ import annotations

import os

import job
from celery import Celery

url = os.environ["BENCH_REDIS_URL"]
has_results = os.environ.get("BENCH_RESULTS") == "1"
app = Celery("peer", broker=url, backend=url if has_results else None)
app.conf.update(task_ignore_result=not has_results, worker_send_task_events=False)


@app.task(name="noop")
def noop(mark: str = "") -> None:
    job.noop(mark)


def enqueue(count: int) -> None:
    for mark in job.marks(count):
        noop.delay(mark)


def work(mode: str) -> None:
    pool = ["-P", "solo"] if mode == "solo" else ["-P", "prefork", "-c", "1"]
    app.worker_main(
        ["worker", *pool, "--loglevel", "ERROR", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    )


if __name__ == "__main__":
    job.main(enqueue, work)
