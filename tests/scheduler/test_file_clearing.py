"""Uploaded files: those that are to go are cleared away, with their bytes; the others stay."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from redis import Redis

from genmill import keys
from genmill.errors import StorageUnavailable
from genmill.settings import Settings
from genmill.storage import Storage, open_storage
from genmill.store import Store
from genmill.uploads import shelve, storage_key
from scheduler.file_clearing import clear_files

SHELF = keys.PREFIXES["fileshelf"]


@pytest.fixture
def files(settings: Settings) -> Storage:
    return open_storage(settings)


def begun(redis: Redis, files: Storage, file_id: str, at_s: float) -> None:
    """An upload that has come as far as its bytes."""
    redis.zadd(keys.tenant_files("alice"), {file_id: 1})
    shelve(redis, "alice", file_id, at_s)
    files.put(storage_key("alice", file_id), b"bytes", "image/png")


def paths(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in tmp_path.rglob("file_*") if path.is_file())


def test_an_upload_that_broke_off_goes(redis: Redis, store: Store, files: Storage, tmp_path: Path) -> None:
    begun(redis, files, "file_old", time.time() - 1)
    begun(redis, files, "file_new", time.time() + 100)
    clear_files(store, files)
    assert paths(tmp_path) == ["file_new"]
    assert redis.zrange(SHELF, 0, -1) == [b"alice/file_new"]
    assert redis.zrange(keys.tenant_files("alice"), 0, -1) == [b"file_new"]


def test_what_has_facts_stays(redis: Redis, store: Store, files: Storage, tmp_path: Path) -> None:
    ends_s = int(time.time()) + 100
    for file_id, expires_s in (("file_ever", None), ("file_while", ends_s)):
        begun(redis, files, file_id, 1)
        redis.set(keys.file("alice", file_id), "{}", exat=expires_s)
    clear_files(store, files)
    assert paths(tmp_path) == ["file_ever", "file_while"]
    assert redis.zrange(SHELF, 0, -1, withscores=True) == [(b"alice/file_while", ends_s)]


def test_a_storage_that_is_away_is_asked_again(
    redis: Redis, store: Store, files: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(redis, files, "file_old", 1)

    def away(_prefix: str) -> None:
        raise StorageUnavailable

    with monkeypatch.context() as patch:
        patch.setattr(files, "delete_prefix", away)
        clear_files(store, files)
    assert paths(tmp_path) == ["file_old"]
    clear_files(store, files)
    assert paths(tmp_path) == []
    assert not redis.exists(SHELF, keys.tenant_files("alice"))
