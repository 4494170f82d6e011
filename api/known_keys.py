"""API keys that this process has looked up. Who comes again with one saves a trip to Redis: the store holds what is
remembered against what it knows itself, in the same step that stores the job."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

from redis import Redis

from genmill import keys
from genmill.api_keys import KnownKey, digest_of, look_up

MOST_KNOWN = 1_000
"""Of those, the ones that were looked up last."""
FRESH_S = keys.KEY_USE_EVERY_S
"""How long a key is remembered: looking it up anew notes its use."""


class KnownKeys:
    """By their hashes; the keys themselves are not kept."""

    def __init__(self, redis: Redis, *, clock: Callable[[], float] = time.time) -> None:
        self._redis, self._clock = redis, clock
        self._known: OrderedDict[str, tuple[float, KnownKey]] = OrderedDict()
        self._lock = Lock()

    def look_up(self, key: str) -> KnownKey | None:
        """The key while it is valid, as Redis knows it. Raises RedisError."""
        digest, now_s = digest_of(key), self._clock()
        found = look_up(self._redis, digest, now_s)
        with self._lock:
            self._known.pop(digest, None)
            if found is not None:
                self._known[digest] = now_s, found
            if len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)
        return found

    def recall(self, key: str) -> KnownKey | None:
        """The key as it was looked up less than FRESH_S ago, unless its time has ended. It may have been revoked or
        changed since: what is done with it has to be guarded."""
        now_s = self._clock()
        with self._lock:
            looked_up_s, found = self._known.get(digest_of(key), (0.0, None))
        is_fresh = 0 <= now_s - looked_up_s < FRESH_S
        return found if found is not None and is_fresh and not found.key.is_expired(now_s) else None
