"""Requests that OpenAI's client repeats: they find the job of the one before, whose client went away.

The client sends no key with a retry, only its number and the same body. So the jobs whose answers are held stand in a
list of their tenant and body; a retry takes the one that stands first and puts it last, so that two of the same body
that are both repeated find one each. A job leaves the list once its answer was given to a client that was there: the
same request made anew, on purpose, finds none.
"""

from __future__ import annotations

import socket
from contextlib import suppress

from flask import request
from redis import Redis

from genmill import keys
from genmill.jobs import JobState
from genmill.store import Store

HOPELESS = frozenset({JobState.FAILED, JobState.CANCELED, JobState.EXPIRED})


def is_retry() -> bool:
    """Whether the client has sent this request before."""
    count = request.headers.get("x-stainless-retry-count", "0")
    return count.isascii() and count.isdecimal() and int(count[:6]) > 0


class HeldJobs:
    """Jobs of one tenant and one body whose answers are held, or were lost."""

    def __init__(self, redis: Redis, tenant: str, body_hash: str) -> None:
        self._redis, self._tenant = redis, tenant
        self._key = keys.held(tenant, body_hash)

    def add(self, job_id: str) -> None:
        with self._redis.pipeline() as pipe:
            pipe.rpush(self._key, job_id)
            pipe.expire(self._key, keys.HELD_TTL_S)
            pipe.execute()

    def take(self, store: Store) -> str | None:
        """The first that runs, waits or has succeeded; None when there is none."""
        for _ in range(int(self._redis.llen(self._key))):
            raw = self._redis.lmove(self._key, self._key, "LEFT", "RIGHT")
            job_id = raw.decode() if isinstance(raw, bytes) else ""
            record = store.get(job_id) if job_id else None
            if record is not None and record.tenant == self._tenant and record.state not in HOPELESS:
                self._redis.expire(self._key, keys.HELD_TTL_S)
                return job_id
        return None

    def remove(self, job_id: str) -> None:
        self._redis.lrem(self._key, 0, job_id)


def client_is_gone() -> bool:
    """Whether the other end has closed the connection; False where the server does not tell (TLS, tests)."""
    sock = request.environ.get("gunicorn.socket") or request.environ.get("werkzeug.socket")
    if type(sock) is not socket.socket:
        return False
    with suppress(BlockingIOError, InterruptedError):
        try:
            return sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except ConnectionError:
            return True
    return False
