"""What tenants used, by day, as the scripts that end jobs have written it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from typing import Any, NamedTuple

from redis import Redis

from genmill import keys


class DayUse(NamedTuple):
    """One tenant's day (UTC). Jobs that ended on it, each by how it ended; milliseconds of GPU that runs took which
    ended on it; bytes of what succeeded jobs made."""

    day: date
    tenant: str
    gpu_ms: float = 0.0
    succeeded: int = 0
    failed: int = 0
    canceled: int = 0
    expired: int = 0
    output_bytes: int = 0


class UsageBook:
    """Raises redis.exceptions.RedisError when the server is gone."""

    def __init__(self, redis: Redis) -> None:
        self._redis: Redis = redis

    def days(self, first: date, last: date, tenant: str | None = None) -> list[DayUse]:
        """From `first` to `last`, both included, by day and tenant; of one tenant, or of all. Days without use have no
        row."""
        days = [first + timedelta(days=number) for number in range((last - first).days + 1)]
        with self._redis.pipeline(transaction=False) as pipe:
            for day in days:
                key = keys.usage(day.isoformat())
                _ = pipe.hgetall(key) if tenant is None else pipe.hget(key, tenant)
            replies = pipe.execute()
        return [use for day, reply in zip(days, replies, strict=True) for use in _of_day(day, reply, tenant)]


def _of_day(day: date, reply: Any, tenant: str | None) -> Iterator[DayUse]:
    rows: Mapping[bytes, bytes] = reply if tenant is None else {tenant.encode(): reply} if reply else {}
    for name, text in sorted(rows.items()):
        gpu_ms, *counts = text.split()
        yield DayUse(day, name.decode(), float(gpu_ms), *map(int, counts))
