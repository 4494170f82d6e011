"""The job that every peer runs: nothing. The first and the last of a run note the time in Redis."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from redis import Redis


def noop(mark: str = "") -> None:
    if mark:
        Redis.from_url(os.environ["BENCH_REDIS_URL"]).set(f"bench:{mark}", repr(time.time()))


def marks(count: int) -> list[str]:
    """What each of `count` jobs is given, in their order."""
    return ["start"] + [""] * (count - 2) + ["done"]


def main(enqueue: Callable[[int], None], work: Callable[[str], None]) -> None:
    """`enqueue COUNT` prints the seconds that it took; `work [MODE]` runs a worker."""
    if sys.argv[1] == "enqueue":
        start = time.perf_counter()
        enqueue(int(sys.argv[2]))
        print(time.perf_counter() - start)
    else:
        work("".join(sys.argv[2:3]))
