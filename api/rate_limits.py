"""The headers RateLimit-Policy and RateLimit (draft-ietf-httpapi-ratelimit-headers) of what submits jobs."""

from __future__ import annotations

import logging
from typing import NamedTuple

from flask import Flask, Response, g, request
from redis.exceptions import RedisError

from api.services import services
from genmill.errors import LimitReached
from genmill.keys import RATE_WINDOW_S
from genmill.store.messages import Rate

QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"
"""Problem type of a quota that is used up."""

_LOG = logging.getLogger(__name__)


class Quota(NamedTuple):
    """A policy: `most` in a window, or at once where there is none. What is counted has a name but for requests."""

    name: str
    most: int
    window_s: int | None = None
    unit: str | None = None


def install(app: Flask) -> None:
    app.after_request(_add_rate)


def quota_of(error: LimitReached) -> Quota | None:
    """The policy that an error tells of; None where it names no limit of submissions."""
    if error.scope is None or error.limit is None:
        return None
    most = int(error.limit)
    match error.scope.partition(":")[0]:
        case "rate":
            return Quota("rate", most, RATE_WINDOW_S)
        case "queued":
            return Quota("queued", most, unit="concurrent-requests")
        case "budget":
            return Quota("budget", most, 24 * 3600, "gpu-seconds")
        case _:
            return None


def note(rate: Rate | None) -> None:
    """What this request knows of its tenant's rate, which then needs no asking."""
    g.rate = rate


def tell(response: Response, quota: Quota, *, left: int, reset_s: int) -> None:
    unit = f';qu="{quota.unit}"' if quota.unit else ""
    window = f";w={quota.window_s}" if quota.window_s else ""
    response.headers["RateLimit-Policy"] = f'"{quota.name}";q={quota.most}{unit}{window}'
    response.headers["RateLimit"] = f'"{quota.name}";r={left};t={reset_s}'


def _add_rate(response: Response) -> Response:
    """To the answer of whatever may have submitted jobs, unless it tells of another quota already. A fault of ours is
    told at once: when Redis hangs, asking it costs seconds."""
    tenant, is_fault = g.get("submitter"), response.status_code >= 500
    if tenant is None or is_fault or request.method != "POST" or "RateLimit" in response.headers:
        return response
    try:
        rate = g.rate if "rate" in g else services().store.limits.rate(tenant)
    except RedisError as err:  # the job is stored: an answer without these headers is better than none
        _LOG.warning("the rate of %s is not known: %s", tenant, err)
        return response
    if rate is not None:
        tell(response, Quota("rate", rate.limit, RATE_WINDOW_S), left=rate.left, reset_s=rate.reset_s)
    return response
