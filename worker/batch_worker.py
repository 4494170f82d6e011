"""The RQ worker that runs jobs in batches: `rq worker -w worker.BatchWorker p0 p1 p2 p3`."""

from __future__ import annotations

import logging
import signal
import time
import uuid
from datetime import timedelta
from types import FrameType
from typing import Any

from redis import Redis
from redis.backoff import ConstantBackoff
from redis.client import PubSub, PubSubWorkerThread
from redis.exceptions import RedisError
from redis.retry import Retry
from rq import worker_registration
from rq.command import handle_command, parse_payload
from rq.defaults import DEFAULT_LOGGING_DATE_FORMAT, DEFAULT_LOGGING_FORMAT
from rq.logutils import setup_loghandlers
from rq.serializers import JSONSerializer
from rq.utils import now
from rq.worker.base import BaseWorker, DequeueStrategy, WorkerStatus

from genmill import __version__, keys
from genmill.errors import SettingsInvalid
from genmill.queues import PriorityQueue
from genmill.registry import ModelSpec, load_registry
from genmill.settings import load_settings
from genmill.store import Outcome, Store
from worker.engines.base import Device, Engine
from worker.floor import NOTHING, Floor
from worker.lease_keeper import LeaseKeeper

log = logging.getLogger("genmill.worker")

IDLE_BLOCK_S = 1.0
"""Longest wait for the wake key, so that foreign pushes, limits and resume are noticed within a second."""

BUSY_CLAIM_S = 0.03
"""While a batch runs, ask for company at most this often after an empty answer."""

REDIS_RETRY_S = 1.0


class BatchWorker(BaseWorker):  # type: ignore[misc]  # rq ships no types that mypy can follow
    """Claims compatible jobs as long as slots are free, steps the engines, settles what has ended.

    RQ's registration, heartbeats, commands, suspension, maintenance and signals are kept; its one-job-at-a-time
    loop is replaced. Light to construct (`rq info` builds one for each registered worker); models load on demand.
    """

    queue_class = PriorityQueue

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["serializer"] = JSONSerializer
        super().__init__(*args, **kwargs)
        self._floor: Floor | None = None
        self._grace_ends: float | None = None
        self._token = uuid.uuid4().hex
        self._next_claim = 0.0
        self._claimed_jobs = 0

    # ------------------------------------------------------------------ the loop

    def work(
        self,
        burst: bool = False,
        logging_level: str | None = None,
        date_format: str = DEFAULT_LOGGING_DATE_FORMAT,
        log_format: str = DEFAULT_LOGGING_FORMAT,
        max_jobs: int | None = None,
        max_idle_time: int | None = None,
        with_scheduler: bool = False,
        dequeue_strategy: DequeueStrategy = DequeueStrategy.DEFAULT,  # noqa: ARG002  # RQ's command line passes it
    ) -> bool:
        """Work until told to stop; with `burst` until the queues are empty. Returns whether any job was claimed.

        `dequeue_strategy` has no effect: virtual deadlines order the jobs of all queues.
        """
        _patient(self.connection)
        self._floor = self._open_floor()
        self.bootstrap(logging_level, date_format, log_format)
        setup_loghandlers(logging_level or "INFO", date_format, log_format, name="genmill")
        if with_scheduler:
            self._start_scheduler(burst, logging_level, date_format, log_format)
        self._install_signal_handlers()
        leases = LeaseKeeper(
            self._floor.store,
            self._floor.board,
            heartbeat=self._beat,
            on_lost=self._floor.drop_job,
            on_cancel=lambda job_id: self._stop_job(job_id, Outcome.CANCELED),
        )
        leases.start()
        try:
            self._loop(self._floor, burst=burst, max_jobs=max_jobs, max_idle_s=max_idle_time)
            self._leave(self._floor)
        except Exception:  # a fault of the worker or a lost device: its jobs' leases run out and count a crash
            log.exception("worker %s: unexpected fault, quitting", self.name)
            raise
        finally:
            leases.stop()
            self._say_goodbye(self._floor)
        return self._claimed_jobs > 0

    def _loop(self, floor: Floor, *, burst: bool, max_jobs: int | None, max_idle_s: int | None) -> None:
        idle_since = time.monotonic()
        while not self._is_over(floor):
            try:
                self._maintain(floor)
                was_idle = floor.is_idle()
                why = self._turn_over(floor, self._jobs_left(max_jobs))
                is_drained = burst and was_idle and why not in ("ok", "paused")
                floor.step()
                if not floor.is_idle():
                    idle_since = time.monotonic()
                elif is_drained or self._jobs_left(max_jobs) == 0 or _is_past(idle_since, max_idle_s):
                    return
                if why != "ok":
                    self._pause(floor)
            except RedisError as err:
                self._weather(floor, err)

    def _turn_over(self, floor: Floor, most: int | None) -> str:
        """Commit what has ended and take a batch on board. Returns "ok", or why there is none."""
        floor.obey()
        if self._stop_requested or most == 0 or time.monotonic() < self._next_claim:
            floor.settle()
            return "paused"
        claimed = floor.turn_over(self.name, self.queue_names(), most, self._token)
        if claimed is not NOTHING:  # the old one is asked again when no answer came: the claim may stand
            self._token = uuid.uuid4().hex
        self._claimed_jobs += len(claimed.claims)
        self._next_claim = 0.0 if claimed.claims else time.monotonic() + BUSY_CLAIM_S
        self._note_state(floor, claimed.why)
        return "ok" if claimed.claims else claimed.why

    def _pause(self, floor: Floor) -> None:
        """Nothing on board: sleep until woken. Only threads at work: a short nap. A batch runs: no wait."""
        if floor.is_idle() and not self._stop_requested:
            self.connection.blpop([keys.wake(name) for name in self.queue_names()], timeout=IDLE_BLOCK_S)
            self._next_claim = 0.0
        elif not floor.has_batch() and not floor.has_ended():
            time.sleep(0.005)

    def _jobs_left(self, max_jobs: int | None) -> int | None:
        return None if max_jobs is None else max(0, max_jobs - self._claimed_jobs)

    def _is_over(self, floor: Floor) -> bool:
        if not self._stop_requested:
            return False
        return floor.is_idle() or (self._grace_ends is not None and time.monotonic() >= self._grace_ends)

    def _weather(self, floor: Floor, err: RedisError) -> None:
        """Redis is away: the batch on board goes on, nothing is claimed, what has ended is kept."""
        log.warning("no answer from Redis, trying again in %.0f s: %s", REDIS_RETRY_S, err)
        until = time.monotonic() + REDIS_RETRY_S
        while time.monotonic() < until and not self._is_over(floor):
            floor.step()
            if not floor.has_batch():
                time.sleep(0.05)

    def _leave(self, floor: Floor) -> None:
        """Settle what has ended and give the rest back."""
        try:
            floor.leave()
            floor.settle()
        except RedisError as err:
            log.warning("leases are left to run out, no answer from Redis: %s", err)

    def _say_goodbye(self, floor: Floor) -> None:
        try:
            floor.close()
        except Exception:  # a lost device may refuse even to free memory; the process ends either way
            log.exception("worker %s: not all could be closed", self.name)
        try:
            self.teardown()
        except RedisError as err:
            log.warning("worker %s leaves without a word, no answer from Redis: %s", self.name, err)

    # ------------------------------------------------------------------ RQ's worker, kept true

    def _open_floor(self) -> Floor:
        settings = load_settings()
        unknown = [name for name in self.queue_names() if name not in keys.QUEUES]
        if unknown:
            raise SettingsInvalid(f"no such queue: {', '.join(unknown)}; there are {', '.join(keys.QUEUES)}")
        store = Store(self.connection, settings)
        registry = load_registry(settings.models)
        return Floor(store, registry, settings, load=self._load_engine, find_device=self._find_device)

    def _load_engine(self, spec: ModelSpec) -> Engine:
        from worker.engines.loader import load_engine  # noqa: PLC0415  # torch is loaded with the first model

        return load_engine(spec, device=self._floor.settings.device if self._floor else None)

    def _find_device(self) -> Device:
        from worker.engines.loader import find_device  # noqa: PLC0415  # torch is loaded with the first model

        return find_device(self._floor.settings.device if self._floor else None)

    def serialize(self) -> dict[str, Any]:
        """With a mark by which the fleet's status tells this worker from a plain one, which would do nothing here."""
        return {**super().serialize(), "genmill": __version__}

    def _note_state(self, floor: Floor, why: str) -> None:
        """The state that `rq info` shows, written when it changes."""
        if floor.is_idle() and why != "ok":
            state = WorkerStatus.SUSPENDED if why == "suspended" else WorkerStatus.IDLE
        else:
            state = WorkerStatus.BUSY
        if self.get_state() != state:
            self.set_state(state)

    def _maintain(self, floor: Floor) -> None:
        floor.report()
        if self.should_run_maintenance_tasks:
            self.run_maintenance_tasks()

    def _beat(self) -> None:
        """Heartbeat; a Redis that came back empty gets this worker's registration again."""
        if not self.connection.sismember(self.redis_workers_keys, self.key) and self.birth_date is not None:
            log.warning("worker %s registers again: Redis did not know it", self.name)
            with self.connection.pipeline() as pipe:
                pipe.hset(self.key, mapping={**self.serialize(), "state": self.get_state()})
                worker_registration.register(self, pipe)
                pipe.execute()
        self.heartbeat()

    def handle_payload(self, message: dict[str, Any]) -> None:
        """Commands from RQ's tools and from cancel.lua, on the subscription's thread."""
        try:
            payload = parse_payload(message)
            match payload["command"]:
                case "stop-job" | "stop-execution":
                    outcome = Outcome.CANCELED if payload.get("by") == "client" else Outcome.STOPPED
                    self._stop_job(str(payload["job_id"]), outcome)
                case "kill-horse":
                    for claim in self._floor.board.claims() if self._floor else ():
                        self._stop_job(claim.job_id, Outcome.STOPPED)
                case _:
                    handle_command(self, payload)
        except Exception:  # the edge of the subscription's thread: a bad message must not end it
            log.exception("command %r is not understood", message.get("data"))

    def _stop_job(self, job_id: str, outcome: Outcome) -> None:
        if self._floor is not None:
            self._floor.stop_job(job_id, outcome)

    def request_stop(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002  # a signal handler's form
        """First SIGTERM or SIGINT: claim no more, finish what fits `grace_s`, give the rest back."""
        self._shutdown_requested_date = now()
        signal.signal(signal.SIGINT, self.request_force_stop)
        signal.signal(signal.SIGTERM, self.request_force_stop)
        grace_s = self._floor.settings.grace_s if self._floor else 0.0
        self._grace_ends = time.monotonic() + grace_s
        self._stop_requested = True

    def request_force_stop(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002 - a handler's form
        """Second signal: give everything back at once. One that comes within a second is the same Ctrl-C again."""
        if now() - self._shutdown_requested_date >= timedelta(seconds=1):
            self._grace_ends = time.monotonic()

    def _pubsub_exception_handler(
        self,
        exc: Exception,
        pubsub: PubSub,  # noqa: ARG002 - RQ's form
        thread: PubSubWorkerThread,  # noqa: ARG002 - RQ's form
    ) -> None:
        """Any trouble with Redis is waited out: a subscription that ends would miss cancels until the next renewal."""
        log.warning("commands are not heard, subscribing again: %s", exc)
        time.sleep(REDIS_RETRY_S)


def _is_past(since: float, most_s: float | None) -> bool:
    return most_s is not None and time.monotonic() - since > most_s


def _patient(connection: Redis) -> None:
    """Short, steady retries: RQ's backoff grows to a minute, a worker should be back within seconds."""
    connection.set_retry(Retry(ConstantBackoff(0.2), 2))
    connection.connection_pool.connection_kwargs["socket_connect_timeout"] = 2.0
