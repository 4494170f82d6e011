"""Uploaded files: those that are to go are cleared away, with their bytes; the others stay."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from redis import Redis

from genmill import keys
from genmill.errors import NotFound, StorageUnavailable
from genmill.keeping import LOOK_AGAIN_S, inputs_folder, outputs_folder
from genmill.keeping import shelve as shelve_job
from genmill.settings import Settings
from genmill.storage import Storage, open_storage
from genmill.store import Store
from genmill.uploads import shelve, storage_key
from scheduler.clearing import clear_files, clear_objects

SHELF, OBJECTS = keys.PREFIXES["fileshelf"], keys.PREFIXES["objectshelf"]


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


def test_objects_go_with_their_job_and_not_before(
    redis: Redis, store: Store, files: Storage, settings: Settings
) -> None:
    for job_id in ("gone", "ended", "runs", "new"):
        shelve_job(redis, job_id, settings)
        for key in (f"{outputs_folder(job_id)}/1/0.png", f"{inputs_folder(job_id)}/init.png"):
            files.put(key, b"bytes", "image/png")
    now_s = int(redis.zscore(OBJECTS, "new") or 0) - settings.result_ttl_s  # type: ignore[arg-type]  # typed for async
    redis.zadd(OBJECTS, dict.fromkeys(("gone", "ended", "runs"), now_s - 1))
    redis.hset(keys.job("ended"), "status", "finished")
    redis.expire(keys.job("ended"), 1000)
    redis.hset(keys.job("runs"), "status", "started")
    clear_objects(store, files)
    for key in ("outputs/gone/1/0.png", "inputs/gone/init.png"):
        with pytest.raises(NotFound):
            files.get(key)
    for job_id in ("ended", "runs", "new"):
        assert files.get(f"outputs/{job_id}/1/0.png").body == files.get(f"inputs/{job_id}/init.png").body == b"bytes"
    left = {name.decode(): at_s - now_s for name, at_s in redis.zrange(OBJECTS, 0, -1, withscores=True)}
    assert left["ended"] == pytest.approx(1000, abs=30)
    assert left["runs"] == pytest.approx(LOOK_AGAIN_S, abs=30)
    assert left["new"] == settings.result_ttl_s
    assert set(left) == {"ended", "runs", "new"}


@pytest.mark.parametrize("job_id", ["files", "inputs", "batches", "imports", "-x", "x" * 600])
def test_a_job_of_any_name_takes_nothing_of_others_with_it(
    job_id: str, redis: Redis, store: Store, files: Storage, settings: Settings
) -> None:
    keys_of_others = [f"{folder}/alice/x.png" for folder in ("files", "inputs", "batches", "imports", "outputs")]
    for key in keys_of_others:
        files.put(key, b"bytes", "image/png")
    shelve_job(redis, job_id, settings)
    for member in redis.zrange(OBJECTS, 0, -1):
        redis.zadd(OBJECTS, {member: 1})
    clear_objects(store, files)
    assert redis.zcard(OBJECTS) == 0
    assert [files.get(key).body for key in keys_of_others] == [b"bytes"] * 5


def test_clearing_objects_ends_after_a_while_and_with_the_storage(
    redis: Redis, store: Store, files: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis.zadd(OBJECTS, {f"j{number}": 1 for number in range(5)})
    clear_objects(store, files, iter([0.0, 1.0, 9.0]).__next__)
    assert redis.zcard(OBJECTS) == 3

    def away(_prefix: str) -> None:
        raise StorageUnavailable

    monkeypatch.setattr(files, "delete_prefix", away)
    clear_objects(store, files)
    assert redis.zcard(OBJECTS) == 3
    monkeypatch.undo()
    clear_objects(store, files)
    assert redis.zcard(OBJECTS) == 0


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
