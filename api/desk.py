"""How many requests are worked on at once. Those that only wait, for a job's end, its events, a body or another's
server, do not count; nor do those that ask whether the process lives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import BoundedSemaphore

from flask import Flask, g, has_request_context, request

from genmill.errors import TooBusy

MOST_AT_WORK = 32
"""More would only share one interpreter, and each of them takes a connection to Redis."""
PATIENCE_S = 5.0
"""How long a request waits for its turn; whoever waits longer is answered 503, and may come again."""
HEALTH = frozenset({"health.healthz", "health.readyz"})

_places = BoundedSemaphore(MOST_AT_WORK)


def install(app: Flask) -> None:
    app.before_request(_begin)
    app.teardown_request(_leave)


@contextmanager
def at_work() -> Iterator[None]:
    """For work outside a request, such as that of an event stream. Raises TooBusy."""
    _take_place()
    try:
        yield
    finally:
        _places.release()


@contextmanager
def away() -> Iterator[None]:
    """While a request waits, another one may be worked on. Raises TooBusy at its end, when there is no place then."""
    was_seated = has_request_context() and _get_up()
    try:
        yield
    finally:
        if was_seated:
            _sit_down()


def _begin() -> None:
    if request.endpoint not in HEALTH:
        _sit_down()


def _leave(_error: BaseException | None) -> None:
    _get_up()


def _sit_down() -> None:
    _take_place()
    g.is_at_desk = True


def _take_place() -> None:
    if not _places.acquire(timeout=PATIENCE_S):
        raise TooBusy(f"{MOST_AT_WORK} requests are worked on here; try again")


def _get_up() -> bool:
    """Whether the request had a place."""
    if not g.pop("is_at_desk", False):
        return False
    _places.release()
    return True
