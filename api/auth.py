"""Who asks."""

from __future__ import annotations

from flask import request

from api.services import services
from genmill import tenants
from genmill.errors import Unauthorized


def authenticate() -> str:
    """The tenant of this request's API key. Raises Unauthorized.

    With auth off a request without a key is the tenant `default`; a wrong key is refused all the same. The look-up
    is made in every case, so that the time of the answer does not tell which it was.
    """
    given = _given_key()
    tenant = tenants.lookup(services().redis, given or "")
    if tenant is not None:
        return tenant
    if given is None and not services().settings.auth:
        return tenants.DEFAULT_TENANT
    raise Unauthorized("The API key is not valid" if given else None)


def _given_key() -> str | None:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    return request.headers.get("X-API-Key")
