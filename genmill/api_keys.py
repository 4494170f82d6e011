"""API keys: random, shown once, stored hashed; each belongs to one tenant and may do what its scopes say."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple

from redis import Redis
from redis.client import Pipeline
from redis.exceptions import RedisError

from genmill import audit, keys
from genmill.audit import Actor
from genmill.errors import FieldFault, InvalidRequest, NotFound
from genmill.store.messages import KeyGuard
from genmill.tenants import check_name

DEFAULT_GRACE_S = 24 * 3600
MAX_NAME_CHARS = 200
LONGEST_S = 10 * 365 * 24 * 3600

_KEYS = keys.PREFIXES["apikeys"]
_ID_CHARS = 12


class Scope(StrEnum):
    """What a key may do; none includes another. `admin` is over all tenants."""

    SUBMIT = "submit"
    READ = "read"
    ADMIN = "admin"


DEFAULT_SCOPES = (Scope.SUBMIT, Scope.READ)
"""Also those of keys that were stored before there were scopes."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What may be shown of a key. `key_id` is the start of its hash, enough to name it by. Times are ISO, UTC."""

    key_id: str
    tenant: str
    name: str
    created_at: str
    scopes: tuple[Scope, ...] = DEFAULT_SCOPES
    expires_at: str | None = None
    rotated_to: str | None = None
    last_used_at: str | None = None

    def is_expired(self, now_s: float) -> bool:
        return self.expires_at is not None and datetime.fromisoformat(self.expires_at).timestamp() <= now_s


class KnownKey(NamedTuple):
    """A key that was looked up, and what to hold it against later."""

    key: ApiKey
    guard: KeyGuard


def create(
    redis: Redis, tenant: str, name: str, *, scopes: Collection[str] = DEFAULT_SCOPES, lifetime_s: float | None = None,
    by: Actor | None = None, now_s: float | None = None,
) -> str:  # fmt: skip
    """A new key of the tenant; this return value is the only time it is shown. Raises InvalidRequest."""
    check_name(tenant)
    _check_facts(name, lifetime_s)
    now_s = time.time() if now_s is None else now_s
    facts = {"tenant": tenant, "name": name, "created_at": _iso(now_s), "scopes": _known(scopes)}
    if lifetime_s is not None:
        facts["expires_at"] = _iso(now_s + lifetime_s)
    key = _random_key()
    with redis.pipeline() as pipe:
        pipe.hset(_KEYS, digest_of(key), json.dumps(facts))
        audit.note(pipe, by, "key.create", key_id_of(key), None, facts)
        pipe.execute()
    return key


def rotate(
    redis: Redis, key_or_id: str, *, grace_s: float = DEFAULT_GRACE_S, by: Actor | None = None,
    now_s: float | None = None,
) -> str:  # fmt: skip
    """A new key in the place of an old one, which works for `grace_s` more, or to its own end where that is sooner.

    The new one has the same tenant, name, scopes and length of life. Raises NotFound, and InvalidRequest for a key
    that has expired.
    """
    _check_seconds("/grace_s", grace_s, least_s=0)
    now_s, new = time.time() if now_s is None else now_s, _random_key()

    def change(pipe: Pipeline) -> None:
        digest, before = _found(pipe, key_or_id)
        successor, kept = _successor(before, now_s), _ending(before, new, now_s + grace_s, now_s)
        pipe.multi()
        pipe.hset(_KEYS, digest_of(new), json.dumps(successor))
        _ = pipe.hset(_KEYS, digest, json.dumps(kept)) if grace_s else pipe.hdel(_KEYS, digest)
        audit.note(pipe, by, "key.rotate", digest[:_ID_CHARS], before, kept if grace_s else None)
        audit.note(pipe, by, "key.create", key_id_of(new), None, successor)

    redis.transaction(change, _KEYS)
    return new


def revoke(redis: Redis, key_or_id: str, *, by: Actor | None = None) -> ApiKey:
    """Take back a key, named by itself or by its `key_id`. Raises NotFound."""
    gone: list[ApiKey] = []

    def change(pipe: Pipeline) -> None:
        digest, facts = _found(pipe, key_or_id)
        gone[:] = [_api_key(digest, facts, None)]
        pipe.multi()
        pipe.hdel(_KEYS, digest)
        pipe.delete(keys.key_use(digest))
        audit.note(pipe, by, "key.revoke", digest[:_ID_CHARS], facts, None)

    redis.transaction(change, _KEYS)
    return gone[0]


def list_keys(redis: Redis) -> list[ApiKey]:
    """All keys, oldest first; expired ones too, until they are revoked."""
    rows = _all(redis)
    uses: list[bytes | None] = redis.mget([keys.key_use(digest) for digest in rows]) if rows else []  # type: ignore[assignment]  # replies are not decoded
    found = [_api_key(digest, facts, used) for (digest, facts), used in zip(rows.items(), uses, strict=True)]
    return sorted(found, key=lambda key: (key.created_at, key.key_id))


def find(redis: Redis, key_id: str) -> ApiKey:
    """One key, named by its `key_id` only. Raises NotFound."""
    digest, facts = _found(redis, key_id, by_secret=False)
    used: bytes | None = redis.get(keys.key_use(digest))  # type: ignore[assignment]  # replies are not decoded
    return _api_key(digest, facts, used)


def identify(redis: Redis, key: str, now_s: float | None = None) -> ApiKey | None:
    """The key's facts while it is valid."""
    found = look_up(redis, digest_of(key), time.time() if now_s is None else now_s)
    return found and found.key


def look_up(redis: Redis, digest: str, now_s: float) -> KnownKey | None:
    """The same by its hash, so that the time taken tells nothing of the key."""
    with redis.pipeline(transaction=False) as pipe:
        pipe.hget(_KEYS, digest)
        pipe.get(keys.key_use(digest))
        raw, used = pipe.execute()
    if raw is None:
        return None
    found = _api_key(digest, json.loads(raw), used)
    if found.is_expired(now_s):
        return None
    if used is None or now_s - int(used) >= keys.KEY_USE_EVERY_S:
        with suppress(RedisError):  # a Redis that is full refuses no caller for it
            redis.set(keys.key_use(digest), int(now_s), ex=keys.KEY_USE_TTL_S)
    return KnownKey(found, KeyGuard(digest, raw))


def key_id_of(key: str) -> str:
    return digest_of(key)[:_ID_CHARS]


def as_json(key: ApiKey) -> dict[str, Any]:
    return {**asdict(key), "scopes": [scope.value for scope in key.scopes]}


def _successor(old: Mapping[str, Any], now_s: float) -> dict[str, Any]:
    facts = {name: old[name] for name in ("tenant", "name")}
    facts |= {"created_at": _iso(now_s), "scopes": old.get("scopes", list(DEFAULT_SCOPES))}
    if (life_s := _life_s(old)) is not None:
        facts |= {"expires_at": _iso(now_s + life_s), "life_s": life_s}
    return facts


def _life_s(facts: Mapping[str, Any]) -> float | None:
    """Seconds for which the key was made; None for one that does not end by itself. Of one that was rotated it stands
    apart from its end, which the grace has set."""
    if "life_s" in facts:
        return None if facts["life_s"] is None else float(facts["life_s"])
    if not (expires_at := facts.get("expires_at")):
        return None
    return (datetime.fromisoformat(expires_at) - datetime.fromisoformat(facts["created_at"])).total_seconds()


def _ending(old: Mapping[str, Any], new: str, end_s: float, now_s: float) -> dict[str, Any]:
    own_end = datetime.fromisoformat(old["expires_at"]).timestamp() if old.get("expires_at") else None
    if own_end is not None and own_end <= now_s:
        detail = f"this key has expired at {old['expires_at']}; create a new one"
        raise InvalidRequest(detail, faults=(FieldFault("/key_id", detail, "a valid key", old["expires_at"]),))
    ends_s = end_s if own_end is None else min(own_end, end_s)
    return {**old, "expires_at": _iso(ends_s), "rotated_to": key_id_of(new), "life_s": _life_s(old)}


def _check_facts(name: str, lifetime_s: float | None) -> None:
    if len(name) > MAX_NAME_CHARS or not name.isprintable():
        detail = f"name must have at most {MAX_NAME_CHARS} printable characters, got {len(name)}"
        raise InvalidRequest(detail, faults=(FieldFault("/name", detail, f"{MAX_NAME_CHARS}", f"{len(name)}"),))
    if lifetime_s is not None:
        _check_seconds("/lifetime_s", lifetime_s, least_s=1)


def _check_seconds(pointer: str, value: float, *, least_s: float) -> None:
    if not least_s <= value <= LONGEST_S:
        limit = f"{least_s:g}..{LONGEST_S} s"
        detail = f"{pointer[1:]} must lie in {limit}, got {value:g}"
        raise InvalidRequest(detail, faults=(FieldFault(pointer, detail, limit, f"{value:g}"),))


def _known(scopes: Collection[str]) -> list[str]:
    """In the order of the enum, each once. Raises InvalidRequest."""
    strange = [scope for scope in scopes if scope not in set(Scope)]
    if strange or not scopes:
        shown, limit = ", ".join(strange)[:80], ", ".join(Scope)
        detail = f"scopes are one or more of {limit}, got {shown or 'none'}"
        raise InvalidRequest(detail, faults=(FieldFault("/scopes", detail, limit, shown or "none"),))
    return [scope.value for scope in Scope if scope in scopes]


def _found(redis: Redis, key_or_id: str, *, by_secret: bool = True) -> tuple[str, dict[str, Any]]:
    wanted = digest_of(key_or_id) if by_secret else ""
    for digest, facts in _all(redis).items():
        if digest[:_ID_CHARS] == key_or_id or digest == wanted:
            return digest, facts
    raise NotFound("There is no such API key")


def _all(redis: Redis) -> dict[str, dict[str, Any]]:
    pairs: Mapping[bytes, bytes] = redis.hgetall(_KEYS)  # type: ignore[assignment]  # replies are not decoded
    return {digest.decode(): json.loads(raw) for digest, raw in pairs.items()}


def _random_key() -> str:
    return f"gm_{secrets.token_urlsafe(32)}"


def digest_of(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _api_key(digest: str, facts: Mapping[str, Any], used: bytes | None) -> ApiKey:
    scopes = tuple(Scope(scope) for scope in facts.get("scopes", DEFAULT_SCOPES))
    last_used_at = None if used is None else _iso(int(used))
    return ApiKey(
        digest[:_ID_CHARS], facts["tenant"], facts["name"], facts["created_at"], scopes, facts.get("expires_at"),
        facts.get("rotated_to"), last_used_at,
    )  # fmt: skip
