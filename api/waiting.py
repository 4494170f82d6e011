"""Holding an answer until its job has ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from api import desk
from api.seats import Seats
from api.watching import Watch, hub_of
from genmill.errors import TooManyWaiting
from genmill.jobs import JobRecord
from genmill.store import Standing, Store

MOST_WAITERS = 512
"""Each holds a thread, which is all that it costs; whoever comes later is answered at once and polls."""

GONE_S = 1.0
"""How often it is looked whether a client is still there, where that is asked for."""

_seats = Seats(MOST_WAITERS)


def wait_for_job(store: Store, standing: Standing, timeout_s: float) -> Standing:
    """How the job stands at its end, or after `timeout_s`, or at once when too many wait already, in all
    or of this tenant.

    Raises RedisError when Redis goes away meanwhile."""
    record = standing.record
    if timeout_s <= 0 or record.state.is_terminal or _seats.take(record.tenant) is not None:
        return standing
    try:
        with desk.away():
            _wait(store, record.job_id, time.monotonic() + timeout_s)
    finally:
        _seats.give_back(record.tenant)
    return store.standing(record.job_id) or standing


@contextmanager
def seat(tenant: str) -> Iterator[None]:
    """A place to hold an answer in, for those who cannot come back and poll. Raises TooManyWaiting."""
    match _seats.take(tenant):
        case "all":
            raise TooManyWaiting
        case "tenant":
            raise TooManyWaiting(f"{_seats.most_of_tenant} answers are held for this tenant here; try again")
    try:
        yield
    finally:
        _seats.give_back(tenant)


def wait_seated(store: Store, record: JobRecord, timeout_s: float, is_gone: Callable[[], bool]) -> JobRecord:
    """The same, within a `seat`; also returns within GONE_S after the client has gone."""
    if timeout_s <= 0 or record.state.is_terminal:
        return record
    with desk.away():
        _wait(store, record.job_id, time.monotonic() + timeout_s, is_gone)
    return store.get(record.job_id) or record


def _wait(store: Store, job_id: str, deadline: float, is_gone: Callable[[], bool] | None = None) -> None:
    with hub_of(store).watching(Watch(job_id)) as watch:
        while (left_s := deadline - time.monotonic()) > 0 and not (is_gone and is_gone()):
            heard = watch.take(left_s if is_gone is None else min(left_s, GONE_S))
            if heard is not None and heard.error is not None:
                raise heard.error
            if heard is not None and heard.is_end:
                return
