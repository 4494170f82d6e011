"""arq: one worker, tuned: 100 jobs at a time, no result kept, polled every 5 ms."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import job
from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker, func

settings = RedisSettings.from_dsn(os.environ["BENCH_REDIS_URL"])


async def noop(_context: dict[str, Any], mark: str = "") -> None:
    job.noop(mark)


async def enqueue(count: int) -> None:
    pool = await create_pool(settings)
    for mark in job.marks(count):
        await pool.enqueue_job("noop", mark)


def work(_mode: str) -> None:
    asyncio.set_event_loop(asyncio.new_event_loop())
    Worker(
        [func(noop, keep_result=0)], redis_settings=settings, max_jobs=100, poll_delay=0.005, burst=True,
    ).run()  # fmt: skip


if __name__ == "__main__":
    job.main(lambda count: asyncio.run(enqueue(count)), work)
