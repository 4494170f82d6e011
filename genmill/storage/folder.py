"""Objects as files in one folder."""

from __future__ import annotations

import mimetypes
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

from genmill.durable_files import write_durably
from genmill.errors import NotFound, StorageUnavailable
from genmill.storage.port import CHUNK_BYTES, StoredObject, checked_key, is_key

mimetypes.add_type("image/webp", ".webp")


class FolderStorage:
    """Files named by their keys, so that people can open them.

    The suffix tells the content type; only a type that the suffix does not tell is kept, in a hidden file beside.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    @classmethod
    def from_url_path(cls, rest: str) -> FolderStorage:
        """`rest` is what follows `file://`; relative folders are taken from the working directory."""
        return cls(Path(unquote(rest)))

    def put(self, key: str, body: bytes, content_type: str) -> None:
        path = self.root / checked_key(key)
        with _reachable():
            path.parent.mkdir(parents=True, exist_ok=True)
            if _guessed_type(path) != content_type:
                write_durably(_type_file(path), content_type.encode())
            else:
                _type_file(path).unlink(missing_ok=True)
            write_durably(path, body)

    def get(self, key: str) -> StoredObject:
        if not is_key(key):
            raise NotFound
        path = self.root / key
        with _reachable():
            try:
                body = path.read_bytes()
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                raise NotFound from None
            kept = _type_file(path)
            return StoredObject(body, kept.read_text() if kept.exists() else _guessed_type(path))

    def chunks(self, key: str) -> Iterator[bytes]:
        if not is_key(key):
            raise NotFound
        with _reachable():
            try:
                file = (self.root / key).open("rb")
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                raise NotFound from None
            with file:
                while chunk := file.read(CHUNK_BYTES):
                    yield chunk

    def delete_prefix(self, prefix: str) -> None:
        path = self.root / checked_key(prefix.rstrip("/"))
        with _reachable():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=False)
            elif path.exists():
                path.unlink(missing_ok=True)
                _type_file(path).unlink(missing_ok=True)

    def check(self) -> None:
        with _reachable():
            self.root.mkdir(parents=True, exist_ok=True)
            if not os.access(self.root, os.W_OK | os.X_OK):
                raise StorageUnavailable("The output folder cannot be written")


def _guessed_type(path: Path) -> str:
    return mimetypes.guess_type(path.name)[0] or "application/octet-stream"


def _type_file(path: Path) -> Path:
    return path.with_name(f".{path.name}.type")


@contextmanager
def _reachable() -> Iterator[None]:
    try:
        yield
    except OSError as err:
        raise StorageUnavailable(f"The output folder cannot be used: {err.strerror or type(err).__name__}") from err
