"""API keys: random, shown once, stored hashed; each belongs to one tenant."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from redis import Redis

from genmill import keys
from genmill.errors import FieldFault, InvalidRequest, NotFound

DEFAULT_TENANT = "default"

_KEYS = keys.PREFIXES["apikeys"]
_ID_CHARS = 12
_TENANT = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What may be shown of a key. `key_id` is the start of its hash, enough to revoke it by."""

    key_id: str
    tenant: str
    name: str
    created_at: str


def check_name(tenant: str) -> None:
    """Raises InvalidRequest for what cannot be a tenant's name."""
    if not _TENANT.fullmatch(tenant):
        detail = f"tenant must match {_TENANT.pattern}, got {tenant[:80]!r}"
        raise InvalidRequest(detail, faults=(FieldFault("/tenant", detail, _TENANT.pattern, tenant[:80]),))


def create(redis: Redis, tenant: str, name: str) -> str:
    """A new key of the tenant; this return value is the only time it is shown. Raises InvalidRequest."""
    check_name(tenant)
    key = f"gm_{secrets.token_urlsafe(32)}"
    facts = {"tenant": tenant, "name": name, "created_at": datetime.now(UTC).isoformat(timespec="seconds")}
    redis.hset(_KEYS, _digest(key), json.dumps(facts))
    return key


def list_keys(redis: Redis) -> list[ApiKey]:
    """All keys, oldest first."""
    found = [_api_key(digest, raw) for digest, raw in _all(redis)]
    return sorted(found, key=lambda key: (key.created_at, key.key_id))


def revoke(redis: Redis, key_or_id: str) -> ApiKey:
    """Take back a key, named by itself or by its `key_id`. Raises NotFound."""
    for digest, raw in _all(redis):
        if digest[:_ID_CHARS] == key_or_id or digest == _digest(key_or_id):
            redis.hdel(_KEYS, digest)
            return _api_key(digest, raw)
    raise NotFound("There is no such API key")


def lookup(redis: Redis, key: str) -> str | None:
    """The tenant of a key. The key is hashed before it is compared, so the time taken tells nothing about it."""
    raw = redis.hget(_KEYS, _digest(key))
    return None if raw is None else str(json.loads(raw)["tenant"])


def _all(redis: Redis) -> list[tuple[str, str]]:
    pairs: Mapping[bytes, bytes] = redis.hgetall(_KEYS)  # type: ignore[assignment]  # replies are not decoded
    return [(digest.decode(), raw.decode()) for digest, raw in pairs.items()]


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()


def _api_key(digest: str, raw: str) -> ApiKey:
    facts = json.loads(raw)
    return ApiKey(digest[:_ID_CHARS], facts["tenant"], facts["name"], facts["created_at"])
