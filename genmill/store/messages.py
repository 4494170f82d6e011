"""What goes into the store's methods and what comes out of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import NamedTuple

from genmill.errors import JobFailure
from genmill.jobs import Claim, JobRecord


class Outcome(StrEnum):
    """How a running job leaves the worker; see lib/settling.lua."""

    FINISHED = "finished"
    FAILED = "failed"
    CANCELED = "canceled"
    STOPPED = "stopped"
    SCHEDULED = "scheduled"
    RETURNED = "returned"

    @property
    def is_end(self) -> bool:
        """Whether the job is over, rather than back among those that wait."""
        return self not in (Outcome.SCHEDULED, Outcome.RETURNED)


@dataclass(frozen=True, slots=True)
class Settlement:
    """One run's end. `delay_ms` only for SCHEDULED; `exc` is the traceback that RQ's tools show; `run_ms` is since the
    job was with its model, loading not counted, 0 where that is not known.

    A job that has runs left is not over with it: RQ's Repeat after FINISHED, its Retry after FAILED, unless the error
    is one that another run would meet as well.
    """

    job_id: str
    fence: int
    outcome: Outcome
    result: object = None
    error: JobFailure | None = None
    exc: str = ""
    gpu_ms: float = 0.0
    delay_ms: int = 0
    run_ms: float = 0.0


class KeyGuard(NamedTuple):
    """An API key's facts as they were read, by its hash; see `Store.submit_told`."""

    digest: str
    facts: bytes


class Refusal(NamedTuple):
    """A tenant has too many: which limit, its number, what it stands at, and when to try again."""

    scope: str
    limit: float
    value: float
    retry_after_s: int


class Late(NamedTuple):
    """A job that would miss its deadline, at best. Both in seconds from its submission."""

    deadline_s: float
    soonest_s: float


class Barred(NamedTuple):
    """A class that the tenant may not use, and those that it may."""

    job_class: str
    allowed: tuple[str, ...]


class Unmet(NamedTuple):
    """A job that another one cannot wait for. `what`: "unknown" (to its tenant), "ended" otherwise than by success
    (`detail` tells how) or "full" (`detail` jobs wait for it)."""

    job_id: str
    what: str
    detail: str


class Submitted(NamedTuple):
    """What became of a request: stored, or not. Not, because its Idempotency-Key is known (`is_replay` with the same
    body, `is_mismatch` with another; `job_id` is then that of the earlier job), for its `refusal`, being `late`,
    being `barred` from its class, or an `unmet` dependency; or because the API key `is_key_changed`."""

    job_id: str
    is_replay: bool = False
    is_mismatch: bool = False
    refusal: Refusal | None = None
    late: Late | None = None
    barred: Barred | None = None
    unmet: Unmet | None = None
    is_key_changed: bool = False


class Waiting(NamedTuple):
    """Why a queued job does not run yet. `position`: ready jobs of its class and batch key before it.

    `reason`: "suspended" (the fleet), "no_worker" (none serves its class), "limit" (`scope` has `running` jobs of
    `limit`), "turn" (others are before it), "delay" (it was put off for some time), "dependency" (`jobs` have to
    succeed first).
    """

    position: int | None
    reason: str
    scope: str | None = None
    limit: int | None = None
    running: int | None = None
    jobs: tuple[str, ...] = ()


class Attempt(NamedTuple):
    """One attempt at a delivery: which one it is, counted from 1, and what to send where, in whose name. `before`: how
    many there were before its schedule began anew."""

    number: int
    url: str
    tenant: str
    body: bytes
    before: int = 0


class Limit(NamedTuple):
    """A limit in force: who gave it ("operator" or "settings"), and how many live leases count against
    it; None where that is no one number (a default such as `tenant:*`, a weight, a reserve)."""

    scope: str
    value: float
    source: str
    live: int | None


class Rate(NamedTuple):
    """Submissions a minute: most, how many of them are left, seconds until all are again."""

    limit: int
    left: int
    reset_s: int


class Standing(NamedTuple):
    """How a job stands: what it waits for while it is queued, and where its tenant stands with its submissions, where
    they have a limit."""

    record: JobRecord
    waiting: Waiting | None
    rate: Rate | None


class Stored(NamedTuple):
    """A job that was taken by this request or, where `is_replay`, by an earlier one with its Idempotency-Key.
    `standing` is None for one that is no more."""

    job_id: str
    is_replay: bool
    standing: Standing | None


class Room(IntEnum):
    """For a model that is not loaded. FREE: at once. UNPAID: one that has nothing to do would go, but has not served
    as long as it took to load, so it goes only where no job waits for it. CROWDED: another has to end its jobs first.
    """

    FREE = 0
    UNPAID = 1
    CROWDED = 2


class Want(NamedTuple):
    """What a worker asks for: rows of one batch key. `is_idle`: nothing of this key is on board. `urgent`: rows that
    jobs of p0 may take besides, because others would rest for them. `room`: for the model, where it is not loaded. A
    key that ends in `+` means all sets of the model's adapters, but for those with an adapter that stands in `but`."""

    batch_key: str
    slots: int
    is_resident: bool = False
    is_idle: bool = True
    urgent: int = 0
    room: Room = Room.FREE
    but: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Renewal:
    """`lost` are (job id, fence) pairs."""

    lost: frozenset[tuple[str, int]]
    canceled: frozenset[str]


@dataclass(frozen=True, slots=True)
class Claimed:
    """`why` tells an empty batch: see lib/claiming.lua, or "busy" for a worker that asked for nothing."""

    claims: tuple[Claim, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Reaped:
    requeued: int
    poisoned: int
    expired: int
    canceled: int
