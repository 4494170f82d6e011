"""taskiq: a list queue, one worker process, with and without results."""

from __future__ import annotations

import asyncio
import os
import sys

import job
from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend

url = os.environ["BENCH_REDIS_URL"]
broker = ListQueueBroker(url)
if os.environ.get("BENCH_RESULTS") == "1":
    broker = broker.with_result_backend(RedisAsyncResultBackend(url, result_ex_time=600))


@broker.task(task_name="noop")
async def noop(mark: str = "") -> None:
    job.noop(mark)


async def enqueue(count: int) -> None:
    await broker.startup()
    given = job.marks(count)
    for start in range(0, count, 100):
        await asyncio.gather(*(noop.kiq(mark) for mark in given[start : start + 100]))
    await broker.shutdown()


def work(_mode: str) -> None:
    arguments = ["worker", "taskiq_peer:broker", "--workers", "1", "--log-level", "ERROR", "--no-configure-logging"]
    os.chdir(os.path.dirname(os.path.abspath(__file__)))
    os.execv(sys.executable, [sys.executable, "-m", "taskiq", *arguments])


if __name__ == "__main__":
    job.main(lambda count: asyncio.run(enqueue(count)), work)
