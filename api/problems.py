"""One body for every error: problem+json with the `error` object that OpenAI's clients read.

RFC 9457's members, `errors` with a pointer for each fault, and `error` {message, type, param, code}.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

from flask import Flask, Response, current_app, json, request
from redis import exceptions as redis_errors
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

from api import rate_limits
from api.requests import request_id
from genmill.errors import BodyTooLarge, FieldFault, GenmillError, LimitReached, SettingsInvalid, StoreUnavailable

RETRY_AFTER_S = 2
MEDIA_TYPE = "application/problem+json"

_REPEATED = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.TOO_MANY_REQUESTS})
"""What openai's client sends again, besides 5xx, unless it is told not to."""

_LOG = logging.getLogger(__name__)

_AWAY = (redis_errors.ConnectionError, redis_errors.TimeoutError)
_FULL = (redis_errors.ReadOnlyError, redis_errors.OutOfMemoryError)


def install(app: Flask) -> None:
    app.register_error_handler(GenmillError, _genmill)
    app.register_error_handler(redis_errors.RedisError, _redis)
    app.register_error_handler(HTTPException, _http)
    app.register_error_handler(Exception, _unexpected)


def problem_body(
    status: int, code: str, title: str, detail: str, faults: tuple[FieldFault, ...] = ()
) -> dict[str, Any]:
    return {
        "type": f"urn:genmill:problem:{code}",
        "title": title,
        "status": status,
        "detail": detail,
        "instance": request.path,
        "errors": [fault.as_json() for fault in faults],
        "error": error_object(status, code, detail, faults),
    }


def error_object(status: int, code: str, detail: str, faults: tuple[FieldFault, ...] = ()) -> dict[str, Any]:
    """What OpenAI's clients read of an error."""
    param = faults[0].pointer if faults else None
    return {"message": detail, "type": _error_type(status), "param": param, "code": code}


def _genmill(error: GenmillError) -> Response:
    if error.status >= 500 and not error.is_retryable:
        _LOG.error("request %s: %s", request_id(), error, exc_info=error)
    if isinstance(error, SettingsInvalid):
        return _unexpected(error)
    title = (type(error).__doc__ or "").strip().split("\n")[0]
    body = problem_body(error.status, error.code, title, error.detail, error.faults)
    if isinstance(error, LimitReached):
        return _limited(error, body)
    response = _respond(body)
    if error.is_retryable:
        response.headers["Retry-After"] = str(RETRY_AFTER_S)
    elif error.status in _REPEATED or error.status >= 500:
        response.headers["x-should-retry"] = "false"
    if error.status == HTTPStatus.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = 'Bearer realm="genmill"'
    return response


def _limited(error: LimitReached, body: dict[str, Any]) -> Response:
    """Retry-After is the `t` of the RateLimit header: the time at which the quota is there again."""
    wait_s = error.retry_after_s or RETRY_AFTER_S
    quota = rate_limits.quota_of(error)
    if quota is not None:
        body |= {"type": rate_limits.QUOTA_EXCEEDED, "violated-policies": [quota.name]}
    response = _respond(body)
    response.headers["Retry-After"] = str(wait_s)
    if quota is not None:
        rate_limits.tell(response, quota, left=0, reset_s=wait_s)
    return response


def _redis(error: redis_errors.RedisError) -> Response:
    if isinstance(error, _AWAY):
        _LOG.warning("request %s: redis is away: %s", request_id(), error)
        return _genmill(StoreUnavailable())
    if isinstance(error, _FULL) or str(error).startswith("MISCONF"):  # its disk is full, or its last save failed
        _LOG.warning("request %s: redis takes no writes: %s", request_id(), error)
        return _genmill(StoreUnavailable("The queue's Redis takes no writes; try again."))
    return _unexpected(error)


def _http(error: HTTPException) -> Response:
    if isinstance(error, RequestEntityTooLarge):
        return _genmill(_too_large())
    status = error.code or 500
    phrase = HTTPStatus(status).phrase
    code = phrase.lower().replace(" ", "_").replace("'", "")
    detail = _nowhere() if status == HTTPStatus.NOT_FOUND else error.description or phrase
    response = _respond(problem_body(status, code, phrase, detail))
    for name, value in error.get_headers(request.environ):
        if name.lower() not in {"content-type", "content-length"}:
            response.headers[name] = value
    return response


def _nowhere() -> str:
    """Clients differ in whether their base URL ends in /v1."""
    there = current_app.create_url_adapter(request)
    near = [path for path in (f"/v1{request.path}", request.path.removeprefix("/v1")) if path != request.path]
    meant = next((path for path in near if there is not None and there.test(path)), None)
    hint = f": {meant} is meant, so the base URL is wrong by /v1" if meant else "; /openapi.json tells what there is"
    return f"There is no {request.path[:200]} here{hint}"


def _unexpected(error: Exception) -> Response:
    """The edge of the process: the cause goes to the log under the request id, never to the client."""
    _LOG.error("request %s failed", request_id(), exc_info=error)
    detail = f"Something went wrong on our side; it is logged as {request_id()}"
    return _respond(problem_body(500, "internal_error", "Internal error", detail))


def _too_large() -> BodyTooLarge:
    length, most = request.content_length, request.max_content_length or 0
    if request.mimetype == "multipart/form-data" and length is not None and length <= most:
        limit = f"{current_app.config['MAX_FORM_MEMORY_SIZE']} bytes in {current_app.config['MAX_FORM_PARTS']} fields"
        return _body_too_large("the form's fields, but for its file, take more than {limit}", limit, f"{length} bytes")
    value = f"{length} bytes" if length else "more than that"
    return _body_too_large("the body has {value}, at most {limit} are read", f"{most} bytes", value)


def _body_too_large(text: str, limit: str, value: str) -> BodyTooLarge:
    detail = text.format(limit=limit, value=value)
    return BodyTooLarge(detail, faults=(FieldFault("/", detail, limit, value),))


def _error_type(status: int) -> str:
    """OpenAI's names."""
    match status:
        case 401:
            return "authentication_error"
        case 403:
            return "permission_error"
        case 429:
            return "rate_limit_error"
        case _:
            return "server_error" if status >= 500 else "invalid_request_error"


def _respond(body: dict[str, Any]) -> Response:
    return Response(json.dumps(body), status=body["status"], mimetype=MEDIA_TYPE)
