"""One run: decide the settings, take the data folder, start Valkey and the fleet, end them in order."""

from __future__ import annotations

import os
import signal
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import httpx
from pydantic import SecretStr
from redis.exceptions import RedisError

from genmill.connections import connect, without_secrets
from genmill.environment import SHARED, as_environment, rq_environment
from genmill.registry import load_registry
from genmill.settings import LOOPBACK, Settings, in_url, load_settings
from genmill.up.fleet import Fleet, find_procfile
from genmill.up.folder import DEFAULT_DATA, DataFolder, UpFailed
from genmill.up.ports import why_not
from genmill.up.valkey import EmbeddedValkey, refuse_leftover

DECIDED = (*SHARED, "auth", "host", "port", "workers_per_host")
"""Settings that `up` may decide; the processes get them in their environment."""


@dataclass(frozen=True, slots=True)
class UpOptions:
    """None leaves the choice to the environment or the default."""

    data: Path = DEFAULT_DATA
    host: str | None = None
    port: int | None = None
    workers: int = 1


def run_up(options: UpOptions) -> int:
    """Blocks until the end; returns the exit code. Raises UpFailed or SettingsInvalid before any start."""
    signal.signal(signal.SIGTERM, _leave)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # not under nohup
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
    folder = DataFolder(options.data)
    settings = decide(options, folder)
    load_registry(settings.models)
    refuse_silent_redis(settings)
    with folder.locked():
        refuse_leftover(folder)
        if fault := why_not(settings.host, settings.port):
            raise UpFailed(fault)
        with redis_for(settings, folder) as (redis_url, valkey):
            secret = settings.secret_key or SecretStr(folder.secret_key())
            settings = settings.model_copy(update={"redis_url": redis_url, "secret_key": secret})
            fleet = Fleet(sys.stdout, settings.grace_s, Watch(settings, folder, valkey))
            for line in link_warning(settings):
                fleet.say(line)
            fleet.add_procfile(find_procfile(), child_environment(settings), options.workers)
            return fleet.run()


def decide(options: UpOptions, folder: DataFolder) -> Settings:
    """The environment, the options over it, and the defaults of one machine under it."""
    chosen = {name: value for name in ("host", "port") if (value := getattr(options, name)) is not None}
    settings = load_settings(**chosen)
    given = settings.model_fields_set
    if "storage_url" not in given:
        chosen["storage_url"] = f"file://{folder.outputs}"
    if "auth" not in given and settings.host in LOOPBACK:
        chosen["auth"] = False
    if "workers_per_host" not in given and options.workers > 1:  # one alone may be the first of several, on GPUs
        chosen["workers_per_host"] = options.workers
    return load_settings(**chosen)


def child_environment(settings: Settings) -> dict[str, str]:
    """What the processes inherit, with RQ's own variables, so that `rq` finds the same Redis and classes."""
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    return {
        **os.environ,
        **as_environment(settings, DECIDED),
        **rq_environment(settings.redis_url),
        "PATH": path,
        "PYTHONUNBUFFERED": "1",
    }


@contextmanager
def redis_for(settings: Settings, folder: DataFolder) -> Iterator[tuple[str, EmbeddedValkey | None]]:
    """The Redis of GENMILL_REDIS_URL, or an embedded Valkey that ends after everything else."""
    if "redis_url" in settings.model_fields_set:
        folder.note_redis_url(settings.redis_url)
        yield settings.redis_url, None
        return
    valkey = EmbeddedValkey(folder, settings.durability)
    valkey.start()
    try:
        yield valkey.url, valkey
    finally:
        valkey.stop()


def refuse_silent_redis(settings: Settings) -> None:
    """A Redis of the environment must answer now; once the fleet runs, it waits for one that goes away."""
    if "redis_url" not in settings.model_fields_set:
        return
    try:
        with connect(settings, retries=0, timeout_s=2.0) as redis:
            redis.ping()
    except RedisError as err:
        raise UpFailed(f"GENMILL_REDIS_URL={without_secrets(settings.redis_url)} does not answer: {err}") from None


class Watch:
    """Tells once when the API is ready, and ends the run when Valkey ended by itself."""

    def __init__(self, settings: Settings, folder: DataFolder, valkey: EmbeddedValkey | None) -> None:
        self._settings, self._folder, self._valkey = settings, folder, valkey
        self._is_ready = False

    def __call__(self, fleet: Fleet) -> None:
        if self._valkey and (code := self._valkey.exit_code()) is not None:
            fleet.say(f"Valkey ended by itself (exit code {code}); see {self._folder.valkey / 'valkey.log'}")
            fleet.terminate()
        elif not self._is_ready and is_ready(local_url(self._settings)):
            self._is_ready = True
            for line in greeting(self._settings, self._folder):
                fleet.say(line)


def local_url(settings: Settings) -> str:
    """Where this machine reaches its own API, whatever name others use."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104 - read, not bound
    return f"http://{in_url(host)}:{settings.port}"


def is_ready(base_url: str) -> bool:
    try:
        return httpx.get(f"{base_url}/readyz", timeout=2, trust_env=False).is_success
    except httpx.HTTPError:
        return False


def link_warning(settings: Settings) -> list[str]:
    """A line where clients on other machines would get links that lead nowhere."""
    if not settings.is_linked_nowhere:
        return []
    example = f"http://NAME:{settings.port}"
    return [f"warning: links will begin with {settings.base_url}; set GENMILL_PUBLIC_URL, such as {example}"]


def greeting(settings: Settings, folder: DataFolder) -> list[str]:
    base = local_url(settings) if settings.is_linked_nowhere else settings.base_url
    submit = 'genmill submit shapes "a red circle on a blue background" --wait -o circle.png'
    lines = [
        f"genmill listens at {base} (stop it with Ctrl-C)",
        f"  API     {base}/openapi.json   models: {base}/v1/models",
        f"  submit  {submit if base == DEFAULT_URL else submit + f' --url {base}'}",
        f"  queues  RQ_REDIS_URL={without_secrets(settings.redis_url)} rq info",
        f"  data    {folder.path}",
    ]
    return lines if not settings.auth else [*lines, f"  keys    genmill keys create TENANT --data {folder.path}"]


DEFAULT_URL = "http://127.0.0.1:8080"


def _leave(signum: int, _frame: object) -> NoReturn:
    """SIGTERM before the fleet runs (which then takes the signal over): unwind, so that Valkey is stopped."""
    raise SystemExit(128 + signum)
