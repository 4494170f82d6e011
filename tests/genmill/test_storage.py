"""One contract, two adapters: a folder, and S3 against a live S3-protocol server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from genmill.errors import NotFound, SettingsInvalid, StorageUnavailable
from genmill.settings import load_settings
from genmill.storage import FolderStorage, Storage, StoredObject, open_storage
from genmill.storage.port import CHUNK_BYTES
from tests.fleet import free_port

BAD_KEYS = ["", "/a", "a/", "a//b", "../a", "a/../b", "a/./b", ".a", "a/.b", "a\\b", "a\0b", "ä", "a b", "a" * 600]


@pytest.fixture(scope="module")
def s3_url() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=free_port(), verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="module")
def aws() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ACCESS_KEY_ID", "test")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "test")
        environment.setenv("AWS_DEFAULT_REGION", "us-east-1")
        environment.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield


@pytest.fixture(scope="module")
def s3(aws: None, s3_url: str) -> Iterator[Any]:
    client = boto3.client("s3", endpoint_url=s3_url)
    yield client
    client.close()


@pytest.fixture(params=["file", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "file":
        return open_storage(load_settings(storage_url=(tmp_path / "out puts").as_uri()))
    endpoint = request.getfixturevalue("s3_url")
    bucket = f"b{abs(hash(str(tmp_path)))}"
    request.getfixturevalue("s3").create_bucket(Bucket=bucket)
    return open_storage(load_settings(storage_url=f"s3://{bucket}/some/prefix", storage_endpoint_url=endpoint))


def test_what_was_put_is_got(storage: Storage) -> None:
    storage.put("a/b/0.png", b"\x00\x01", "image/png")
    assert storage.get("a/b/0.png") == StoredObject(b"\x00\x01", "image/png")
    storage.put("empty", b"", "text/plain")
    assert storage.get("empty") == StoredObject(b"", "text/plain")


def test_put_replaces_body_and_type(storage: Storage) -> None:
    storage.put("a.png", b"1", "application/x-odd")
    assert storage.get("a.png").content_type == "application/x-odd"
    storage.put("a.png", b"2", "image/png")
    assert storage.get("a.png") == StoredObject(b"2", "image/png")


def test_a_large_body(storage: Storage) -> None:
    body = bytes(range(256)) * 4096 * 9
    storage.put("large.bin", body, "application/octet-stream")
    assert storage.get("large.bin").body == body


@pytest.mark.parametrize("key", ["a", "a/b", "a/b/c", "a/b/0.png/x"])
def test_absent_is_not_found(key: str, storage: Storage) -> None:
    storage.put("a/b/0.png", b"1", "image/png")
    with pytest.raises(NotFound):
        storage.get(key)


@pytest.mark.parametrize("key", BAD_KEYS)
def test_bad_keys(key: str, storage: Storage) -> None:
    with pytest.raises(ValueError, match="not a storage key"):
        storage.put(key, b"1", "text/plain")
    with pytest.raises(NotFound):
        storage.get(key)


def test_a_large_object_comes_in_chunks(storage: Storage) -> None:
    body = bytes(range(256)) * 3_000
    storage.put("a/large.bin", body, "application/octet-stream")
    chunks = list(storage.chunks("a/large.bin"))
    assert b"".join(chunks) == body
    assert len(chunks) > 1
    assert max(map(len, chunks)) <= CHUNK_BYTES


@pytest.mark.parametrize("key", ["a/none.bin", "a", "../a", ""])
def test_chunks_of_what_is_not_there(key: str, storage: Storage) -> None:
    storage.put("a/b.bin", b"x", "application/octet-stream")
    with pytest.raises(NotFound):
        next(storage.chunks(key))


def test_delete_prefix_takes_the_folder_and_no_neighbour(storage: Storage) -> None:
    for key in ("a/1/x.png", "a/1/y/z.png", "a/10/x.png", "a/1.png"):
        storage.put(key, b"1", "image/png")
    storage.delete_prefix("a/1/")
    for key in ("a/1/x.png", "a/1/y/z.png"):
        with pytest.raises(NotFound):
            storage.get(key)
    assert storage.get("a/10/x.png").body == storage.get("a/1.png").body == b"1"
    storage.delete_prefix("a/1.png")
    with pytest.raises(NotFound):
        storage.get("a/1.png")
    storage.delete_prefix("never/was")


def test_delete_of_everything_is_refused(storage: Storage) -> None:
    for prefix in ("", "/", "..", "a/.."):
        with pytest.raises(ValueError, match="not a storage key"):
            storage.delete_prefix(prefix)


def test_readers_see_old_or_new_but_never_half(storage: Storage) -> None:
    bodies = {letter * 50_000 for letter in (b"a", b"b")}
    storage.put("x.bin", next(iter(bodies)), "application/octet-stream")
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for body in bodies:
                storage.put("x.bin", body, "application/octet-stream")

    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(write)
        seen = {storage.get("x.bin").body for _ in range(20)}
        stop.set()
        writer.result(20)
    assert seen <= bodies


def test_the_check_passes_where_the_storage_answers_and_changes_nothing(storage: Storage) -> None:
    storage.put("a/b.txt", b"1", "text/plain")
    storage.check()
    assert storage.get("a/b.txt").body == b"1"


def test_no_half_files_are_left_behind(tmp_path: Path) -> None:
    storage = FolderStorage(tmp_path)
    storage.put("a/b.png", b"1", "image/png")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["b.png"]


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    storage = FolderStorage(tmp_path / "file")
    with pytest.raises(StorageUnavailable):
        storage.put("a", b"1", "text/plain")
    with pytest.raises(StorageUnavailable):
        storage.check()


@pytest.mark.usefixtures("aws")
def test_a_bucket_that_cannot_be_reached(s3_url: str) -> None:
    for url, endpoint in (("s3://nowhere", s3_url), ("s3://bucket", f"http://127.0.0.1:{free_port()}")):
        storage = open_storage(load_settings(storage_url=url, storage_endpoint_url=endpoint))
        for call in (storage.check, lambda s=storage: s.put("a", b"1", "text/plain"), lambda s=storage: s.get("a")):
            with pytest.raises(StorageUnavailable):
                call()


@pytest.mark.parametrize("url", ["", "outputs", "file://", "s3://", "ftp://x/y"])
def test_bad_url_stops_the_start(url: str) -> None:
    with pytest.raises(SettingsInvalid, match="GENMILL_STORAGE_URL"):
        open_storage(load_settings(storage_url=url))
