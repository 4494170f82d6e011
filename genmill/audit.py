"""Who changed keys, tenants and limits: one entry for each change, written in the transaction that makes it."""

from __future__ import annotations

import getpass
import json
import re
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from redis import Redis
from redis.client import Pipeline

from genmill import keys
from genmill.errors import FieldFault, InvalidRequest

_LOG = keys.PREFIXES["audit"]
ENTRY_ID = r"[0-9]{1,20}-[0-9]{1,20}"
_ENTRY_ID = re.compile(ENTRY_ID)


class Actor(NamedTuple):
    """`who` is the id of an API key, or `cli`; `where` the address that it came from, or the user at a machine."""

    who: str
    where: str


class AuditEntry(NamedTuple):
    """`before` and `after` are what the change was about, None where there was nothing. No secret is ever in them."""

    entry_id: str
    at: str
    who: str
    where: str
    action: str
    target: str
    before: Any
    after: Any


def local_actor() -> Actor:
    """Whoever works next to Redis, without an API key."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        user = "unknown"
    return Actor("cli", f"{user}@{socket.gethostname()}")


def note(pipe: Pipeline, by: Actor | None, action: str, target: str, before: Any, after: Any) -> None:
    """Into the transaction of the change itself: there is never one without the other. `by` None is `local_actor`."""
    who, where = by or local_actor()
    fields: dict[Any, Any] = {"who": who, "where": where, "action": action, "target": target}
    fields |= {"before": json.dumps(before), "after": json.dumps(after)}
    pipe.xadd(_LOG, fields, maxlen=keys.AUDIT_MAXLEN, approximate=True)
    pipe.expire(_LOG, keys.AUDIT_TTL_S)


def entries(redis: Redis, limit: int = 100, after: str | None = None) -> list[AuditEntry]:
    """Newest first; `after` is the last entry id of the page before. Raises InvalidRequest for what is no such id."""
    if after is not None and not _is_entry_id(after):
        detail = f"after must be the id of an entry, such as 1700000000000-0, got {after[:60]!r}"
        raise InvalidRequest(detail, faults=(FieldFault("/after", detail, "an entry's id", after[:60]),))
    if after is not None and not any(map(int, after.split("-"))):
        return []  # nothing is older than the first that there could be, and Redis takes no such bound
    commands: Any = redis
    found = commands.xrevrange(_LOG, max=f"({after}" if after else "+", count=limit)
    return [_entry(entry_id.decode(), fields) for entry_id, fields in found]


def _is_entry_id(text: str) -> bool:
    return bool(_ENTRY_ID.fullmatch(text)) and all(int(part) < 2**64 for part in text.split("-"))


def _entry(entry_id: str, fields: Mapping[bytes, bytes]) -> AuditEntry:
    facts = {name.decode(): value.decode() for name, value in fields.items()}
    at = datetime.fromtimestamp(int(entry_id.partition("-")[0]) / 1000, UTC).isoformat(timespec="milliseconds")
    before, after = json.loads(facts.pop("before")), json.loads(facts.pop("after"))
    return AuditEntry(entry_id, at, **facts, before=before, after=after)
