"""Steps of a round that go wrong by themselves, told from a Redis that is away."""

from __future__ import annotations

import logging
from collections.abc import Callable

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

log = logging.getLogger("genmill.scheduler")

OUTAGES = (RedisConnectionError, RedisTimeoutError)
"""No step can go on. Any other error, an answer of Redis that a script went wrong among them, is of one step alone."""


def apart(name: str, step: Callable[[], object]) -> None:
    """Run one step of a round; its error is logged and stops no other step. Raises one of OUTAGES."""
    try:
        step()
    except OUTAGES:
        raise
    except Exception:  # the edge to one step: one bad record or script must not stop the others
        log.exception("%s failed, trying again in the next round", name)
