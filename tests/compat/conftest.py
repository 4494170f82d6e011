"""The API as it runs, gunicorn over a Valkey of its own, and the unmodified clients of other services before it."""

from __future__ import annotations

import ssl
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import openai
import pytest
import replicate
from redis import Redis

from genmill import api_keys
from genmill.connections import connect
from genmill.settings import Settings, load_settings
from genmill.storage import Storage, open_storage
from genmill.store import Store
from tests.compat.certificate import write_certificate
from tests.compat.prompt_worker import PromptWorker, working
from tests.fleet import SECRET, Fleet, Process, Valkey, eventually, free_port


@dataclass
class Served:
    """`keys` are API keys by tenant; `secure_url` is the same API over TLS, by `certificate`."""

    url: str
    secure_url: str
    certificate: Path
    fleet: Fleet
    settings: Settings
    redis: Redis
    store: Store
    storage: Storage
    keys: dict[str, str]
    transports: list[httpx.HTTPTransport] = field(default_factory=list)

    def replicate(self, tenant: str = "alice", *, is_secure: bool = False) -> replicate.Client:
        """It has no close of its own, so its transport is closed at the test's end."""
        verify = ssl.create_default_context(cafile=str(self.certificate)) if is_secure else True
        self.transports.append(httpx.HTTPTransport(verify=verify))
        url = self.secure_url if is_secure else self.url
        return replicate.Client(api_token=self.keys[tenant], base_url=url, transport=self.transports[-1])

    def openai(self, tenant: str = "alice", *, retries: int = 2, timeout_s: float = 30.0) -> openai.OpenAI:
        return openai.OpenAI(
            api_key=self.keys[tenant], base_url=f"{self.url}/v1", max_retries=retries, timeout=timeout_s
        )


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("compat")
    valkey = Valkey(folder / "valkey", appendfsync="no")
    valkey.start()
    fleet = Fleet(folder, valkey.url)
    settings = load_settings(
        redis_url=valkey.url, secret_key=SECRET, storage_url=f"file://{folder}/outputs", allow_private_urls=True
    )
    redis = connect(settings)
    keys = {name: api_keys.create(redis, name, "compat") for name in ("alice", "bob")}
    certificate = write_certificate(folder)
    apis = [_start(fleet, "http"), _start(fleet, "https", f"--certfile={certificate}", f"--keyfile={certificate}")]
    (url, plain), (secure_url, secure) = apis
    eventually(lambda: _answers(f"{url}/readyz"))
    yield Served(
        url, secure_url, certificate, fleet, settings, redis, Store(redis, settings), open_storage(settings), keys
    )
    plain.stop()
    secure.stop()
    fleet.stop()
    redis.close()
    valkey.stop()


def _start(fleet: Fleet, scheme: str, *flags: str) -> tuple[str, Process]:
    port = free_port()
    url = f"{scheme}://127.0.0.1:{port}"
    env = fleet.env | {"GENMILL_AUTH": "on", "GENMILL_PORT": str(port), "GENMILL_PUBLIC_URL": url}
    shared = ["-c", "python:api.serving", "--bind", f"127.0.0.1:{port}"]
    gunicorn = str(Path(sys.executable).with_name("gunicorn"))
    return url, Process([gunicorn, *shared, *flags, "api.wsgi:app"], env, fleet.folder / f"{scheme}.log")


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=10).status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture(autouse=True)
def _no_jobs(served: Served) -> Iterator[None]:
    """Each test begins without jobs, files and limits; the API keys stay."""
    kept = {b"gm:apikeys"}
    if found := set(served.redis.keys("*")) - kept:  # type: ignore[arg-type]  # of a client that is not async
        served.redis.delete(*found)
    yield
    while served.transports:
        served.transports.pop().close()


@pytest.fixture
def worker(served: Served) -> Iterator[PromptWorker]:
    with working(served.store, served.storage) as one:
        yield one


@pytest.fixture
def replicate_client(served: Served) -> replicate.Client:
    return served.replicate()


@pytest.fixture
def openai_client(served: Served) -> Iterator[openai.OpenAI]:
    with served.openai() as client:
        yield client
