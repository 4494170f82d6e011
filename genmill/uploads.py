"""Where uploaded files lie, and the shelf of those that are to go: by the time of that, for all tenants.

A file is on the shelf before its bytes are stored, until its facts are there and say that it stays; so whatever breaks
off in between, the scheduler finds what is left.
"""

from __future__ import annotations

import math
from typing import Any

from redis import Redis
from redis.client import Pipeline

from genmill import keys
from genmill.storage import Storage

_SHELF = keys.PREFIXES["fileshelf"]


def storage_key(tenant: str, file_id: str) -> str:
    return f"files/{tenant}/{file_id}"


def shelve(redis: Redis | Pipeline, tenant: str, file_id: str, at_s: float) -> None:
    """The file is looked at from `at_s` on, Unix time, and goes if it has no facts then."""
    redis.zadd(_SHELF, {f"{tenant}/{file_id}": at_s})


def unshelve(redis: Redis | Pipeline, tenant: str, file_id: str) -> None:
    redis.zrem(_SHELF, f"{tenant}/{file_id}")


def clear_away(redis: Redis, storage: Storage, tenant: str, file_id: str) -> None:
    """All of it, the shelf last: until then it is tried again. Raises StorageUnavailable."""
    redis.delete(keys.file(tenant, file_id))
    storage.delete_prefix(storage_key(tenant, file_id))
    with redis.pipeline() as pipe:
        pipe.zrem(keys.tenant_files(tenant), file_id)
        unshelve(pipe, tenant, file_id)
        pipe.execute()


def due(redis: Redis, most: int) -> list[tuple[str, str]]:
    """(tenant, file) of those whose time on the shelf is over and that are not there any more; the rest is put back
    until its facts end."""
    commands: Any = redis  # redis-py types each reply for every decode option at once; ours are bytes
    now_s = commands.time()[0]
    found = [raw.decode().split("/") for raw in commands.zrangebyscore(_SHELF, "-inf", now_s, start=0, num=most)]
    gone = []
    for tenant, file_id in found:
        left_ms = commands.pttl(keys.file(tenant, file_id))
        if left_ms == -1:
            unshelve(redis, tenant, file_id)
        elif left_ms > 0:
            shelve(redis, tenant, file_id, now_s + math.ceil(left_ms / 1000))
        else:
            gone.append((tenant, file_id))
    return gone
