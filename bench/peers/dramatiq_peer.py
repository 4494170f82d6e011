"""Dramatiq: one process with one thread, or with eight."""

from __future__ import annotations

import os
import sys

import dramatiq
import job
from dramatiq.brokers.redis import RedisBroker

dramatiq.set_broker(RedisBroker(url=os.environ["BENCH_REDIS_URL"]))


@dramatiq.actor(actor_name="noop")
def noop(mark: str = "") -> None:
    job.noop(mark)


def enqueue(count: int) -> None:
    for mark in job.marks(count):
        noop.send(mark)


def work(mode: str) -> None:
    arguments = ["dramatiq_peer", "--processes", "1", "--threads", mode, "--path", os.path.dirname(__file__)]
    os.execv(sys.executable, [sys.executable, "-m", "dramatiq", *arguments])


if __name__ == "__main__":
    job.main(enqueue, work)
