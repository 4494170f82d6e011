"""Requests that OpenAI's client repeats: they find the job of the one before, whose client went away.

The client sends no key with a retry, only its number and the same body. So the jobs whose answers are held stand in a
list of their tenant and body, and a retry takes the first whose client is not there any more. While one is, whoever
holds its answer marks the job as attended, for a few seconds and again and again: a retry whose first try was refused,
and so left no job, gets nobody else's. A job leaves the list once its answer was given to a client that was there: the
same request made anew, on purpose, finds none.
"""

from __future__ import annotations

import select
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from flask import request
from redis import Redis

from api import desk
from genmill import keys
from genmill.jobs import JobState
from genmill.store import Store

HOPELESS = frozenset({JobState.FAILED, JobState.CANCELED, JobState.EXPIRED})
RENEW_S = 1.0
"""How often a job is marked as attended."""
LOOK_S = 0.1
"""How often a retry looks whether a mark is renewed, or has run out."""


def is_retry() -> bool:
    """Whether the client has sent this request before."""
    count = request.headers.get("x-stainless-retry-count", "0")
    return count.isascii() and count.isdecimal() and int(count[:6]) > 0


class HeldJobs:
    """Jobs of one tenant and one body whose answers are held, or were lost; as one request sees them."""

    def __init__(
        self, redis: Redis, tenant: str, body_hash: str, *, clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self._redis, self._tenant, self._clock, self._sleep = redis, tenant, clock, sleep
        self._key = keys.held(tenant, body_hash)
        self._holder, self._marks, self._renew_at = uuid.uuid4().hex, 0, 0.0

    def add(self, job_id: str) -> None:
        """A job of this request, whose client is there."""
        with self._redis.pipeline() as pipe:
            pipe.set(keys.attended(job_id), self._next_mark(), ex=keys.ATTENDED_TTL_S)
            pipe.rpush(self._key, job_id)
            pipe.expire(self._key, keys.HELD_TTL_S)
            pipe.execute()

    def take(self, store: Store) -> str | None:
        """The first that runs, waits or has succeeded and that nobody attends, attended from now on; None when there
        is none.

        Where marks stand it waits for what becomes of them: one that is renewed has a client, for its holder looks
        before; one that is not goes within ATTENDED_TTL_S.
        """
        seen: dict[str, bytes] = {}
        until = self._clock() + keys.ATTENDED_TTL_S + RENEW_S
        while True:
            open_marks = {}
            for job_id in self._alive(store):
                mark = self._attend(job_id)
                if mark is None and self._still_stands(job_id):
                    return job_id
                if mark is None:
                    continue
                if seen.setdefault(job_id, mark) == mark:
                    open_marks[job_id] = mark
            if not open_marks or self._clock() >= until:
                return None
            with desk.away():
                self._sleep(LOOK_S)

    def is_renewal_due(self) -> bool:
        return self._clock() >= self._renew_at

    def renew(self, job_id: str) -> None:
        """The client is there, as was just seen."""
        if self._is_ours(job_id):
            self._redis.set(keys.attended(job_id), self._next_mark(), ex=keys.ATTENDED_TTL_S)

    def leave(self, job_id: str) -> None:
        """A retry may have the job at once."""
        if self._is_ours(job_id):
            self._redis.delete(keys.attended(job_id))

    def remove(self, job_id: str) -> None:
        self._redis.lrem(self._key, 0, job_id)

    def _alive(self, store: Store) -> list[str]:
        commands: Any = self._redis  # redis-py types each reply for every decode option at once; ours are bytes
        ids = [raw.decode() for raw in commands.lrange(self._key, 0, -1)]
        records = [(job_id, store.get(job_id)) for job_id in ids]
        return [
            job_id
            for job_id, record in records
            if record is not None and record.tenant == self._tenant and record.state not in HOPELESS
        ]

    def _still_stands(self, job_id: str) -> bool:
        """Whether the job is in the list, which stays longer then; where its answer was given between the look at the
        list and the mark, the mark goes."""
        with self._redis.pipeline() as pipe:
            pipe.lpos(self._key, job_id)
            pipe.expire(self._key, keys.HELD_TTL_S)
            place, _ = pipe.execute()
        if place is None:
            self.leave(job_id)
        return place is not None

    def _attend(self, job_id: str) -> bytes | None:
        """None when the job is this request's now; else the mark of whoever attends it."""
        mark = keys.attended(job_id)
        with self._redis.pipeline() as pipe:
            pipe.get(mark)  # Redis before 7.0 does not tell the old value of what SET NX leaves alone
            pipe.set(mark, self._next_mark(), nx=True, ex=keys.ATTENDED_TTL_S)
            found, _ = pipe.execute()
        return None if found is None else bytes(found)

    def _is_ours(self, job_id: str) -> bool:
        mark: Any = self._redis.get(keys.attended(job_id))
        return mark is None or mark.startswith(self._holder.encode())

    def _next_mark(self) -> str:
        """No two are equal, so that a renewal is seen."""
        self._marks, self._renew_at = self._marks + 1, self._clock() + RENEW_S
        return f"{self._holder}.{self._marks}"


@dataclass(frozen=True, slots=True)
class Connection:
    """The client's end of a request. `sock`: None where the server does not tell (TLS, tests)."""

    sock: socket.socket | None

    @classmethod
    def of_request(cls) -> Self:
        sock = request.environ.get("gunicorn.socket") or request.environ.get("werkzeug.socket")
        return cls(sock if type(sock) is socket.socket else None)

    @property
    def is_told(self) -> bool:
        """Whether the client is there and the server would tell if it were not."""
        return self.sock is not None and not self.is_gone()

    def is_gone(self) -> bool:
        """Whether the other end has closed the connection; False where the server does not tell."""
        if self.sock is None:
            return False
        try:
            readable = select.poll()  # a socket with a timeout waits for that, even when it is told not to
            readable.register(self.sock, select.POLLIN)
            return bool(readable.poll(0)) and self.sock.recv(1, socket.MSG_PEEK) == b""
        except (OSError, ValueError):  # ended otherwise than in good order, or closed by this side
            return True
