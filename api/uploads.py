"""Uploaded files: the bytes in the storage, what is known of them in Redis, each tenant's apart."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from redis import Redis

from api.services import Services
from genmill import keys
from genmill.errors import FieldFault, LimitReached, NotFound
from genmill.storage import StoredObject
from genmill.uploads import clear_away, shelve, storage_key, unshelve

READ_AT_ONCE = 200
"""Facts that are read together."""

_FILE_ID = re.compile(r"file_[0-9a-z]{26}")


@dataclass(frozen=True, slots=True)
class Upload:
    """Facts of one file. `expires_s`: Unix time from which it is gone; None for never."""

    file_id: str
    name: str
    content_type: str
    size: int
    sha256: str
    purpose: str
    created_s: float
    expires_s: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


def keep(upload: Upload, body: bytes, tenant: str, services: Services) -> None:
    """Store bytes and facts: on the shelf first, so that nothing is left for ever, and the bytes before the facts, so
    that facts that can be read have bytes. Raises LimitReached when the tenant has as many files as it may."""
    _make_room(upload, tenant, services)
    services.storage.put(storage_key(tenant, upload.file_id), body, upload.content_type)
    with services.redis.pipeline() as pipe:
        pipe.set(keys.file(tenant, upload.file_id), json.dumps(asdict(upload)), exat=upload.expires_s)
        if upload.expires_s is None:
            unshelve(pipe, tenant, upload.file_id)
        else:
            shelve(pipe, tenant, upload.file_id, upload.expires_s)
        pipe.execute()


def _make_room(upload: Upload, tenant: str, services: Services) -> None:
    """One more in the tenant's list, and on the shelf until its facts are there."""
    with services.redis.pipeline() as pipe:
        pipe.zadd(keys.tenant_files(tenant), {upload.file_id: upload.created_s})
        pipe.zcard(keys.tenant_files(tenant))
        shelve(pipe, tenant, upload.file_id, upload.created_s + keys.FILE_TTL_S)
        count, most = pipe.execute()[1], services.settings.max_files
    if count > most:
        with services.redis.pipeline() as pipe:
            pipe.zrem(keys.tenant_files(tenant), upload.file_id)
            unshelve(pipe, tenant, upload.file_id)
            pipe.execute()
        detail = f"the tenant has {count - 1} files, at most {most} are kept: delete some"
        raise LimitReached(detail, faults=(FieldFault("/", detail, f"{most} files", f"{count - 1} files"),))


def find(file_id: str, tenant: str, services: Services) -> Upload:
    """Raises NotFound, also for another tenant's file and for one that has expired."""
    upload = _facts(services.redis, [file_id], tenant)[0] if _FILE_ID.fullmatch(file_id) else None
    if upload is None:
        raise NotFound("No such file")
    return upload


def content(file_id: str, tenant: str, services: Services) -> StoredObject:
    """Raises NotFound."""
    return services.storage.get(storage_key(tenant, find(file_id, tenant, services).file_id))


def chunks(file_id: str, tenant: str, services: Services) -> Iterator[bytes]:
    """What `content` reads, piece by piece. Raises NotFound."""
    return services.storage.chunks(storage_key(tenant, find(file_id, tenant, services).file_id))


def remove(file_id: str, tenant: str, services: Services) -> None:
    """Raises NotFound."""
    find(file_id, tenant, services)
    shelve(services.redis, tenant, file_id, time.time())  # whatever breaks off from here is made again
    clear_away(services.redis, services.storage, tenant, file_id)


@dataclass(frozen=True, slots=True)
class FilePage:
    """What of a tenant's files is asked for: at most `limit` behind the file `after`, of one purpose or all."""

    limit: int
    after: str | None = None
    purpose: str | None = None
    is_newest_first: bool = True


def list_uploads(tenant: str, services: Services, page: FilePage) -> tuple[list[Upload], bool]:
    """The page, and whether there are more; facts are read as far as that needs. What has expired is not told of."""
    start = _place_behind(page, tenant, services.redis)
    found = list[Upload]()
    while len(found) <= page.limit and (ids := _ids(page, start, tenant, services.redis)):
        start += len(ids)
        facts = _facts(services.redis, ids, tenant)
        found += [one for one in facts if one is not None and page.purpose in (None, one.purpose)]
    return found[: page.limit], len(found) > page.limit


def _place_behind(page: FilePage, tenant: str, redis: Redis) -> int:
    """0 without `after`; the end where there is no such file."""
    if page.after is None:
        return 0
    commands: Any = redis  # redis-py types each reply for every decode option at once; ours are bytes
    index = keys.tenant_files(tenant)
    rank = (commands.zrevrank if page.is_newest_first else commands.zrank)(index, page.after)
    return int(commands.zcard(index) if rank is None else rank + 1)


def _ids(page: FilePage, start: int, tenant: str, redis: Redis) -> list[str]:
    commands: Any = redis
    read = commands.zrevrange if page.is_newest_first else commands.zrange
    return [raw.decode() for raw in read(keys.tenant_files(tenant), start, start + READ_AT_ONCE - 1)]


def _facts(redis: Redis, ids: list[str], tenant: str) -> list[Upload | None]:
    if not ids:
        return []
    found: Any = redis.mget([keys.file(tenant, file_id) for file_id in ids])
    return [None if raw is None else Upload(**json.loads(raw)) for raw in found]
