"""How many requests are worked on at once. Those that only wait, for a job's end or its events, do not count."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import BoundedSemaphore

from flask import Flask, g, has_request_context

MOST_AT_WORK = 32
"""More would only share one interpreter, and each of them takes a connection to Redis."""

_places = BoundedSemaphore(MOST_AT_WORK)


def install(app: Flask) -> None:
    app.before_request(_sit_down)
    app.teardown_request(_leave)


@contextmanager
def at_work() -> Iterator[None]:
    """For work outside a request, such as that of an event stream."""
    with _places:
        yield


@contextmanager
def away() -> Iterator[None]:
    """While a request waits, another one may be worked on."""
    was_seated = has_request_context() and _get_up()
    try:
        yield
    finally:
        if was_seated:
            _sit_down()


def _leave(_error: BaseException | None) -> None:
    _get_up()


def _sit_down() -> None:
    _places.acquire()
    g.is_at_desk = True


def _get_up() -> bool:
    """Whether the request had a place."""
    if not g.pop("is_at_desk", False):
        return False
    _places.release()
    return True
