"""The scheduler's loop: lead or stand by; a leader reaps, moves jobs on and publishes limits every second."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable

from redis.exceptions import RedisError
from rq.scheduler import RQScheduler
from rq.serializers import JSONSerializer

from genmill import keys
from genmill.store import Store
from scheduler.apart import apart

log = logging.getLogger("genmill.scheduler")

LEAST_PAUSE_S = 3.0
"""Workers that could not renew try again a second later."""
TICK_S = 1
MOST_REVISITED = 100
"""Jobs that one run of a script looks at: others wait meanwhile."""
LEAST_LEAD_S = 2.0
"""What must be left of the lead for something that others must not do at the same time."""
LIMITS_TTL_S = 30.0
"""Published limits outlive a take-over; when no scheduler is left the static ones of the workers hold."""


class DelayedWork:
    """RQ's own scheduler, driven by our tick instead of a process of its own."""

    def __init__(self, store: Store) -> None:
        self._rq = RQScheduler(keys.QUEUES, connection=store.redis, interval=TICK_S, serializer=JSONSerializer)
        self._redis = store.redis
        self._epoch: int | None = None
        self._is_registered = False

    def tick(self, epoch: int) -> None:
        """Move jobs whose time has come from RQ's scheduled registries to their queues. Raises RedisError.

        Who leads anew takes RQ's locks from whoever has them: those of a leader that was killed last for a minute."""
        if epoch != self._epoch:
            self._redis.delete(*map(RQScheduler.get_locking_key, keys.QUEUES))
            self._epoch = epoch
        if not self._is_registered:
            self._rq.register_birth()
            self._is_registered = True
        self._rq.acquire_locks()
        self._rq.heartbeat()
        self._rq.enqueue_scheduled_jobs()

    def stop(self) -> None:
        """Release RQ's scheduler locks, so that a standby need not wait for them to run out."""
        if self._is_registered:
            self._rq.stop()
            self._is_registered = False


class Scheduler:
    """`run` blocks until `stop` is set; any number may run, one leads."""

    def __init__(self, store: Store, name: str | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self._store = store
        self._delayed = DelayedWork(store)
        self._epoch: int | None = None
        self._led_at = clock() - keys.SCHEDULER_LOCK_TTL_S
        self._clock = clock
        self._reap_after = clock()
        self._forgotten_to = 0

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                self.tick()
            except RedisError as err:
                log.warning("no answer from Redis, or no writes taken, trying again: %s", err)
                self.note_outage()
            except Exception:  # the edge of the process: whatever stops one tick must not stop the next
                log.exception("a tick failed, trying again")
            stop.wait(TICK_S)
        self._resign()

    def leads(self) -> bool:
        """Whether no other can lead by now, asked without a word to Redis."""
        return self._epoch is not None and self._clock() < self._led_at + keys.SCHEDULER_LOCK_TTL_S - LEAST_LEAD_S

    def note_outage(self) -> None:
        """Leases ran out while nobody could renew them: let the workers renew before anything is reaped."""
        self._reap_after = self._clock() + max(2 * self._store.settings.renew_s, LEAST_PAUSE_S)

    def tick(self) -> None:
        """One second's work of a leader; nothing on standby. An error of one step stops no other. Raises RedisError
        where Redis is away, or takes no writes: workers cannot renew then."""
        asked_at = self._clock()
        epoch = self._store.lead(self.name, keys.SCHEDULER_LOCK_TTL_S)
        self._led_at = asked_at
        if epoch != self._epoch:
            log.info("scheduler %s %s", self.name, "is on standby" if epoch is None else f"leads, epoch {epoch}")
            self._epoch = epoch
        if epoch is None:
            return
        if self._clock() >= self._reap_after:
            apart("reaping", self._reap)
        apart("moving delayed jobs", lambda: self._delayed.tick(epoch))
        apart("publishing limits", lambda: self._publish_limits(epoch))
        apart("moving jobs on that waited for others", self._move_on)
        apart("forgetting idle tenants", self._forget)

    def _reap(self) -> None:
        reaped = self._store.reap()
        if reaped.requeued or reaped.poisoned or reaped.expired or reaped.canceled:
            log.info(
                "reaped: %d requeued, %d poisoned, %d expired, %d canceled",
                reaped.requeued, reaped.poisoned, reaped.expired, reaped.canceled,
            )  # fmt: skip

    def _publish_limits(self, epoch: int) -> None:
        self._store.publish_limits(epoch, self._store.limits.in_force(), LIMITS_TTL_S)

    def _move_on(self) -> None:
        """Jobs whose dependencies have ended, as far as the scripts that ended those have left any behind."""
        while self._store.revisit(MOST_REVISITED) and self.leads():
            pass

    def _forget(self) -> None:
        self._forgotten_to = self._store.upkeep.forget_idle(self._forgotten_to)

    def _resign(self) -> None:
        try:
            if self._epoch is not None:
                self._delayed.stop()
            self._store.resign(self.name)
        except RedisError as err:
            log.warning("leadership is left to run out: %s", err)
