"""Reading a request: its id, its JSON body, its headers; and the headers that every answer gets."""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flask import Flask, Response, g, request
from gunicorn.http.errors import ParseException
from werkzeug.exceptions import ClientDisconnected, RequestEntityTooLarge

from api import desk
from api.services import services
from genmill import strict_json
from genmill.errors import FieldFault, InvalidRequest, MalformedJson, UnsupportedMediaType

MAX_WAIT_S = 60.0
MAX_KEY_CHARS = 255
READ_TIMEOUT_S = 30.0
HSTS_S = 365 * 24 * 3600

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_WAIT = re.compile(r"^\s*wait\s*(?:=\s*\"?(\d{1,6}(?:\.\d+)?)\"?)?\s*(?:;.*)?$", re.IGNORECASE)


def install(app: Flask) -> None:
    app.before_request(_name_request)
    app.after_request(_add_headers)


def request_id() -> str:
    return str(g.setdefault("request_id", uuid.uuid4().hex))


def read_json() -> dict[str, Any]:
    """The body as an object. Raises UnsupportedMediaType, MalformedJson, and werkzeug's 413 before it reads on."""
    check_type("application/json")
    try:
        body = strict_json.loads(_bounded_body())
    except ValueError as err:
        raise _malformed(f"the body is not valid JSON: {err}", "one JSON object") from None
    if not isinstance(body, dict):
        raise _malformed(f"the body must be a JSON object, got {type(body).__name__}", "one JSON object")
    return body


def check_type(*wanted: str) -> None:
    """Raises UnsupportedMediaType."""
    if request.mimetype not in wanted:
        got, limit = (request.mimetype or "none")[:80], " or ".join(wanted)
        detail = f"the content type must be {limit}, got {got}"
        raise UnsupportedMediaType(detail, faults=(FieldFault("/", detail, limit, got),))


def has_body() -> bool:
    """Whether anything was sent, with or without its length. Raises as reading does."""
    return bool(_bounded_body())


def read_form() -> None:
    """Reads the form, so that `request.form` and `request.files` have it. Raises UnsupportedMediaType, InvalidRequest,
    and werkzeug's 413."""
    check_type("multipart/form-data")
    with reading():
        _ = request.form


@contextmanager
def reading() -> Iterator[None]:
    """`bounded_reading`, while another request may be worked on."""
    with desk.away(), bounded_reading():
        yield


@contextmanager
def bounded_reading() -> Iterator[None]:
    """A client that sends nothing for READ_TIMEOUT_S is let go. Raises InvalidRequest when the body breaks off."""
    connection = request.environ.get("gunicorn.socket")
    if connection is not None:
        connection.settimeout(READ_TIMEOUT_S)
    try:
        yield
    except (OSError, ClientDisconnected, ParseException) as err:
        raise InvalidRequest(f"the body broke off: {type(err).__name__}") from None
    finally:
        if connection is not None:
            connection.settimeout(None)


def wait_s() -> float:
    """Seconds to hold the answer, from `?wait=` or `Prefer: wait=N`; at most 60. A bare `wait` means 60."""
    if (asked := request.args.get("wait")) is not None:
        if not re.fullmatch(r"\d{1,6}(\.\d+)?", asked):
            detail = f"wait must be a number of seconds, got {asked[:80]}"
            raise InvalidRequest(detail, faults=(FieldFault("/wait", detail, f"0..{MAX_WAIT_S:g}", asked[:80]),))
        return min(float(asked), MAX_WAIT_S)
    for preference in request.headers.get("Prefer", "").split(","):
        if found := _WAIT.match(preference):
            return min(float(found[1]) if found[1] else MAX_WAIT_S, MAX_WAIT_S)
    return 0.0


def idempotency_key() -> str | None:
    """The key of the Idempotency-Key header, a quoted sf-string or bare. Raises InvalidRequest."""
    raw = request.headers.get("Idempotency-Key")
    if raw is None:
        return None
    key = raw.strip()
    if len(key) >= 2 and key[0] == key[-1] == '"':
        key = re.sub(r'\\(["\\])', r"\1", key[1:-1])
    if not key or len(key) > MAX_KEY_CHARS or not (key.isascii() and key.isprintable()):
        detail = f"Idempotency-Key must be 1 to {MAX_KEY_CHARS} printable ASCII characters, got {len(key)}"
        raise InvalidRequest(
            detail, faults=(FieldFault("/Idempotency-Key", detail, f"1..{MAX_KEY_CHARS}", f"{len(key)}"),)
        )
    return key


def _bounded_body() -> bytes:
    """Werkzeug refuses a length over the limit, but cuts a body that comes without a length."""
    with reading():
        body = request.get_data()
    if request.content_length is None and len(body) >= (request.max_content_length or math.inf):
        raise RequestEntityTooLarge
    return body


def _name_request() -> None:
    given = request.headers.get("x-request-id", "")
    g.request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def _add_headers(response: Response) -> Response:
    response.headers["x-request-id"] = request_id()
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers.setdefault("Cache-Control", "no-store")
    response.headers.setdefault("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
    response.headers.setdefault("Referrer-Policy", "no-referrer")
    if services().settings.base_url.startswith("https:"):
        response.headers["Strict-Transport-Security"] = f"max-age={HSTS_S}"
    return response


def _malformed(detail: str, limit: str) -> MalformedJson:
    return MalformedJson(detail[:300], faults=(FieldFault("/", detail[:300], limit),))
