"""The data folder of `genmill up`: one run at a time, a secret that stays, where the run's Redis listens."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from genmill.errors import GenmillError

DEFAULT_DATA = Path("genmill-data")


class UpFailed(GenmillError):
    """genmill up cannot start."""

    code = "up_failed"


class FolderInUse(UpFailed):
    """Another run uses the data folder."""


class DataFolder:
    """Paths below `--data`. Nothing is created before `locked()` is entered."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.outputs = self.path / "outputs"
        self.valkey = self.path / "valkey"
        self._secret = self.path / "secret.key"
        self._redis_url = self.path / "redis.url"
        self._lock = self.path / "lock"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder during the block; the lock dies with the process. Raises FolderInUse, UpFailed."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = self._lock.open("a+")
        except OSError as err:
            raise UpFailed(f"cannot use the data folder {self.path}: {err.strerror}") from err
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                owner = lock.read().strip() or "unknown"
                raise FolderInUse(f"genmill up (pid {owner}) already runs on {self.path}") from None
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
            yield

    def secret_key(self) -> str:
        """The folder's own GENMILL_SECRET_KEY, made once, readable by its owner only."""
        with suppress(FileExistsError):
            descriptor = os.open(self._secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.write(secrets.token_urlsafe(32))
        return self._secret.read_text(encoding="ascii").strip()

    def has_secret(self) -> bool:
        return self._secret.is_file()

    def redis_url(self) -> str | None:
        """Where the last run's Redis listened, or listens."""
        return self._redis_url.read_text(encoding="utf-8").strip() if self._redis_url.is_file() else None

    def note_redis_url(self, url: str) -> None:
        """For the tools: `RQ_REDIS_URL=$(cat genmill-data/redis.url) rq info`."""
        self._redis_url.touch(mode=0o600, exist_ok=True)
        self._redis_url.write_text(url + "\n", encoding="utf-8")
