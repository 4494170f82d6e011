"""What the API's answers mean to its client: which error one is, and whether to try again."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping

import httpx

from genmill.errors import (
    FieldFault,
    Forbidden,
    GenmillError,
    InvalidRequest,
    NotFound,
    OutputExpired,
    StoreUnavailable,
    Unauthorized,
)

TRIES = 6
LONGEST_PAUSE_S = 30.0
LONGEST_ASKED_S = 60.0
"""A Retry-After that is waited for: a tenant's minute. Past that the caller is told, and decides."""
MOST_DIGITS = 9
"""Of the seconds in a Retry-After: more are no answer."""

_RETRIED = frozenset({409, 429, 502, 503, 504})
_BY_STATUS: Mapping[int, type[GenmillError]] = {
    401: Unauthorized, 403: Forbidden, 404: NotFound, 410: OutputExpired, 503: StoreUnavailable,
}  # fmt: skip


class ApiUnreachable(GenmillError):
    """The API does not answer."""

    code, is_retryable = "api_unreachable", True


class ApiError(GenmillError):
    """The API answered with an error that this client has no class for."""


OnPause = Callable[[GenmillError, float], None]
"""Hears of an error that is waited for, and of how many seconds that takes."""


def pause_or_raise(
    trouble: httpx.Response | httpx.TransportError, number: int, until: float = math.inf,
    on_pause: OnPause | None = None,
) -> None:  # fmt: skip
    """Waits before the next try, after `number` of them. Raises the error that it is where another would not help,
    there were enough, or the next would come after `until` on the monotonic clock, which is waited for."""
    is_hopeless = (
        isinstance(trouble, httpx.Response) and not trouble.is_success and trouble.status_code not in _RETRIED
    )
    asked_s = None if isinstance(trouble, httpx.TransportError) else _asked_s(trouble.headers.get("retry-after"))
    if is_hopeless or number >= TRIES or (asked_s or 0) > LONGEST_ASKED_S:
        raise _error_in(trouble)
    pause_s, left_s = _pause_s(number, asked_s), max(0.0, until - time.monotonic())
    if on_pause is not None:
        on_pause(_error_in(trouble), min(pause_s, left_s))
    time.sleep(min(pause_s, left_s))
    if pause_s >= left_s:
        raise _error_in(trouble)


def _error_in(trouble: httpx.Response | httpx.TransportError) -> GenmillError:
    if isinstance(trouble, httpx.TransportError):
        address = trouble.request.url.copy_with(raw_path=b"/")
        error = ApiUnreachable(f"{address} does not answer: {trouble}")
        error.__cause__ = trouble
        return error
    if trouble.is_success:
        return ApiUnreachable(f"{trouble.url} ends before it is complete")
    return error_of(trouble)


def error_of(response: httpx.Response) -> GenmillError:
    """The error that a problem body tells of: the class with its code, else one that fits the status."""
    try:
        problem = response.json()
        told = problem["error"]
        detail, code = str(told["message"]), str(told["code"])
        faults = tuple(
            FieldFault(fault["pointer"], fault["detail"], fault.get("limit"), fault.get("value"), fault.get("line"))
            for fault in problem.get("errors") or ()
        )
    except (ValueError, KeyError, TypeError, AttributeError):  # whatever a gateway in between has to say
        detail, code, faults = f"HTTP {response.status_code} without a problem body", "", ()
    status = response.status_code
    by_status = _BY_STATUS.get(status, InvalidRequest if 400 <= status < 500 else ApiError)
    error = _classes().get(code, by_status)(detail, faults=faults)
    if error.is_retryable:
        error.retry_after_s = _asked_s(response.headers.get("retry-after"))
    return error


def _classes() -> dict[str, type[GenmillError]]:
    found: dict[str, type[GenmillError]] = {}
    open_classes: list[type[GenmillError]] = [GenmillError]
    while open_classes:
        one = open_classes.pop()
        found.setdefault(one.code, one)
        open_classes += one.__subclasses__()
    return found


def _asked_s(retry_after: str | None) -> int | None:
    if retry_after is None or not retry_after.isdecimal() or len(retry_after) > MOST_DIGITS:
        return None
    return int(retry_after)


def _pause_s(number: int, asked_s: int | None) -> float:
    if asked_s is not None:
        return float(asked_s)
    return float(min(0.2 * 2**number, LONGEST_PAUSE_S) * random.uniform(0.5, 1.0))
