"""Redis connections with the patience that each process needs."""

from __future__ import annotations

from urllib.parse import urlsplit

from redis import Redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from genmill.settings import Settings


def without_secrets(redis_url: str) -> str:
    """The URL as it may be shown: no user, password or query."""
    parts = urlsplit(redis_url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def connect(settings: Settings, *, retries: int = 1, timeout_s: float = 5.0) -> Redis:
    """A client that gives up soon: an API caller gets 503 rather than a hanging request.

    Every script may be repeated after a lost reply: what it did counts once, and the repeat says that it is done. So a
    repeated command does no harm. Blocking reads add their own time to `timeout_s`.
    """
    return Redis.from_url(
        settings.redis_url,
        socket_timeout=timeout_s,
        socket_connect_timeout=min(timeout_s, 2.0),
        retry=Retry(ConstantBackoff(0.1), retries),
        health_check_interval=15,
    )
