"""Uploaded files: the bytes in the storage, what is known of them in Redis, each tenant's apart."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from redis import Redis

from api.services import Services
from genmill import keys
from genmill.errors import NotFound
from genmill.storage import StoredObject

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
    """Store bytes and facts, the bytes first: facts that can be read have bytes."""
    services.storage.put(storage_key(tenant, upload.file_id), body, upload.content_type)
    with services.redis.pipeline() as pipe:
        pipe.set(keys.file(tenant, upload.file_id), json.dumps(asdict(upload)), exat=upload.expires_s)
        pipe.zadd(keys.tenant_files(tenant), {upload.file_id: upload.created_s})
        pipe.execute()


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
    _forget([file_id], tenant, services)


def list_uploads(tenant: str, services: Services, *, is_newest_first: bool = True) -> list[Upload]:
    """All that there are; what has expired is cleared away on the way, bytes too."""
    commands: Any = services.redis  # redis-py types each reply for every decode option at once; ours are bytes
    read = commands.zrevrange if is_newest_first else commands.zrange
    ids = [raw.decode() for raw in read(keys.tenant_files(tenant), 0, -1)]
    facts = _facts(services.redis, ids, tenant)
    _forget([file_id for file_id, upload in zip(ids, facts, strict=True) if upload is None], tenant, services)
    return [upload for upload in facts if upload is not None]


def storage_key(tenant: str, file_id: str) -> str:
    return f"files/{tenant}/{file_id}"


def _facts(redis: Redis, ids: list[str], tenant: str) -> list[Upload | None]:
    if not ids:
        return []
    found: Any = redis.mget([keys.file(tenant, file_id) for file_id in ids])
    return [None if raw is None else Upload(**json.loads(raw)) for raw in found]


def _forget(ids: list[str], tenant: str, services: Services) -> None:
    for file_id in ids:
        services.redis.delete(keys.file(tenant, file_id))
        services.storage.delete_prefix(storage_key(tenant, file_id))
        services.redis.zrem(keys.tenant_files(tenant), file_id)  # last: until then the next list clears it away
