"""Who asks, and whether the key may."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from flask import g, request

from api.services import services
from genmill.api_keys import ApiKey, Scope
from genmill.errors import FieldFault, ScopeMissing, Unauthorized
from genmill.settings import LOOPBACK
from genmill.store import KeyGuard
from genmill.tenants import DEFAULT_TENANT

_NOBODY = ApiKey("none", DEFAULT_TENANT, "auth is off", "")
"""With auth off, whoever sends no key; for `admin` a key is needed all the same."""

_READING = frozenset({"GET", "HEAD", "OPTIONS"})


class Submitter(NamedTuple):
    """Who submits a job. `guard`: the key is known from before, and is held against this as the job is stored."""

    tenant: str
    guard: KeyGuard | None


def recall_submitter() -> Submitter:
    """Whose key this request has, without a look at Redis where it is known from before: then `note_submitter` tells
    that the store has found it good. Raises as `identify` does."""
    known = services().known_keys.recall(_given_key() or "")
    if known is None or Scope.SUBMIT not in known.key.scopes:
        return Submitter(authenticate(), None)
    return Submitter(known.key.tenant, known.guard)


def note_submitter(tenant: str) -> None:
    """This tenant submits with this request: its answer tells of the tenant's rate."""
    g.submitter = tenant


def authenticate(scope: Scope | None = None) -> str:
    """The tenant of this request's API key. Raises as `identify` does."""
    return identify(scope).tenant


def identify(scope: Scope | None = None) -> ApiKey:
    """The key of this request, which has the scope; without one given, `read` for GET and `submit` for the rest.

    Raises Unauthorized, ScopeMissing. With auth off a request without a key is the tenant `default`; a wrong key is
    refused all the same. Every key that is given is looked up, so that the time of the answer tells nothing of it.
    """
    given, needed = _given_key(), scope or (Scope.READ if request.method in _READING else Scope.SUBMIT)
    known = None if given is None else services().known_keys.look_up(given)
    key = known and known.key
    if key is None and given is None and not services().settings.auth and needed is not Scope.ADMIN:
        key = _nobody()
    if key is None:
        raise Unauthorized("The API key is not valid" if given else None)
    if needed not in key.scopes:
        raise _missing(needed, key)
    if needed is Scope.SUBMIT:
        note_submitter(key.tenant)
    return key


def _given_key() -> str | None:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    return request.headers.get("X-API-Key")


def _nobody() -> ApiKey:
    """Who asks without a key. Raises Unauthorized unless someone at this machine means this server: a web page that
    they have open can post forms here, and have its own name resolve to us (DNS rebinding)."""
    allowed = LOOPBACK | {urlsplit(services().settings.base_url).hostname}
    if _named_host() not in allowed:
        names = ", ".join(sorted(filter(None, allowed)))
        raise Unauthorized(f"Without an API key this server answers for {names} only, not for {request.host[:80]!r}")
    if request.method not in _READING and request.headers.get("Sec-Fetch-Site") == "cross-site":
        raise Unauthorized("Another site's page needs an API key here")
    return _NOBODY


def _named_host() -> str | None:
    try:
        return urlsplit(f"//{request.host}").hostname
    except ValueError:
        return None


def _missing(needed: Scope, key: ApiKey) -> ScopeMissing:
    has = ", ".join(key.scopes)
    detail = f"this needs an API key with the scope {needed}; this one has {has}"
    return ScopeMissing(detail, faults=(FieldFault("/Authorization", detail, needed.value, has),))
