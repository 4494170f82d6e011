"""The port: what the rest of genmill may ask of a storage."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")

CHUNK_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class StoredObject:
    body: bytes
    content_type: str


class Storage(Protocol):
    """Objects by key. Safe to use from several threads.

    A key is a path of parts made of letters, digits, `_`, `-` and inner dots, so that it can neither leave its
    folder nor hide in it. Every method raises StorageUnavailable when the storage cannot be reached; callers retry.
    """

    def put(self, key: str, body: bytes, content_type: str) -> None:
        """Store whole or not at all, durably, over whatever was there. Raises ValueError for a bad key."""

    def get(self, key: str) -> StoredObject:
        """Raises NotFound, also for a bad key."""

    def chunks(self, key: str) -> Iterator[bytes]:
        """The object in parts of at most CHUNK_BYTES, if it is too large to hold. Raises NotFound with the first."""

    def delete_prefix(self, prefix: str) -> None:
        """Delete the object `prefix` and all objects under `prefix/`. Nothing there is no error."""

    def check(self) -> None:
        """Return when the storage answers."""


def is_key(key: str) -> bool:
    return len(key) <= 512 and _KEY.fullmatch(key) is not None


def checked_key(key: str) -> str:
    """Raises ValueError."""
    if not is_key(key):
        raise ValueError(f"not a storage key: {key[:80]!r}")
    return key
