"""The examples of the Python client's docstrings, each against a whole fleet: API, scheduler, worker, receiver."""

from __future__ import annotations

import doctest
import inspect
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from redis import Redis
from werkzeug.serving import make_server

from api.app import create_app
from genmill import api_keys, batch_handle, client, job_handle, mapping
from genmill.client import Batches, BatchHandle, Client, JobHandle, Mapped
from genmill.connections import connect
from genmill.settings import Settings, load_settings
from genmill.store import Store
from tests.fleet import SECRET, Fleet, Valkey, eventually, free_port
from tests.receiver import receiving

DOCUMENTED = Path(__file__).parent.parent.parent / "docs" / "client.md"
MODULES = (client, job_handle, batch_handle, mapping)
LINES = [{"custom_id": name, "model": "captions", "input": {"prompt": "a red"}} for name in ("one", "two")]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

EXAMPLES = {
    found.name: found for module in MODULES for found in doctest.DocTestFinder().find(module) if found.examples
}


class RunningFleet(NamedTuple):
    """`key` is the API key of the tenant alice."""

    url: str
    key: str
    settings: Settings
    redis: Redis


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFleet]:
    folder = tmp_path_factory.mktemp("examples")
    valkey, port = Valkey(folder / "valkey", appendfsync="no"), free_port()
    valkey.start()
    url = f"http://127.0.0.1:{port}"
    processes = Fleet(folder, valkey.url, GENMILL_PUBLIC_URL=url)
    settings = load_settings(
        redis_url=valkey.url, secret_key=SECRET, storage_url=f"file://{folder}/outputs", public_url=url,
        allow_private_urls=True, allow_http_webhooks=True,
    )  # fmt: skip
    redis = connect(settings)
    server = make_server("127.0.0.1", port, create_app(settings), threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    processes.scheduler()
    processes.worker()
    yield RunningFleet(url, api_keys.create(redis, "alice", "examples"), settings, redis)
    server.shutdown()
    thread.join()
    server.server_close()
    processes.stop()
    redis.close()
    valkey.stop()


@pytest.fixture(scope="module")
def names(fleet: RunningFleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What the examples take as given: jobs that have ended, with a webhook that was told, and a batch."""
    with receiving() as receiver, Client(fleet.url, fleet.key) as one:
        job = one.submit("captions", {"prompt": "a red circle"})
        picture = one.submit("shapes", {"prompt": "a red circle on a blue background"})
        told = one.submit("captions", {"prompt": "a red"}, webhook=receiver.url)
        batch = one.batches.create(LINES, webhook=receiver.url)
        for handle in (job, picture, told, batch):
            handle.wait(90)
        yield {
            "client": one, "url": fleet.url, "api_key": fleet.key, "webhook": receiver.url, "job": job,
            "picture": picture, "told": told, "batch": batch, "folder": tmp_path_factory.mktemp("saved"),
            "Client": Client,
        }  # fmt: skip


def all_told(names: dict[str, Any]) -> bool:
    deliveries = [*names["told"].deliveries(), *names["batch"].deliveries()]
    return len(deliveries) == 2 and {one["state"] for one in deliveries} == {"delivered"}


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_does_what_it_says(example: str, names: dict[str, Any]) -> None:
    eventually(lambda: all_told(names), within_s=60)
    told: list[str] = []
    case = EXAMPLES[example]
    case.globs = dict(names)
    doctest.DocTestRunner(optionflags=FLAGS).run(case, out=told.append)
    assert not told, "".join(told)


def test_the_documented_map_saves_its_pictures(
    fleet: RunningFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", DOCUMENTED.read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GENMILL_URL", fleet.url)
    monkeypatch.setenv("GENMILL_API_KEY", fleet.key)
    exec(example, {})  # noqa: S102 - the example of our own docs
    assert capsys.readouterr().out == ""
    assert [path.suffix for path in (tmp_path / "pictures").iterdir()] == [".png", ".png"]


class Noted(httpx.HTTPTransport):
    """Keeps the status of every answer."""

    def __init__(self) -> None:
        super().__init__()
        self.statuses: list[int] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = super().handle_request(request)
        self.statuses.append(response.status_code)
        return response


def test_a_map_over_the_quota_of_its_tenant_waits_and_submits_each_request_once(fleet: RunningFleet) -> None:
    store, transport = Store(fleet.redis, fleet.settings), Noted()
    store.limits.set({"queued:alice": 1})
    requests = ({"model": "captions", "input": {"prompt": f"a red {n}", "max_tokens": 2}} for n in range(6))
    with Client(fleet.url, fleet.key, transport=transport) as one:
        eventually(lambda: store.limits.in_force().get("queued:alice") == 1)
        before = {job.id for job in one.jobs(limit=1000)}
        ended = list(one.map(requests, concurrency=6))
        made = {job.id for job in one.jobs(limit=1000)} - before
    store.limits.unset(["queued:alice"])
    assert [mapped.index for mapped in ended if mapped.is_success] == list(range(6))
    assert made == {mapped.result().id for mapped in ended}
    assert 429 in transport.statuses


def test_every_public_method_has_an_example() -> None:
    without = [
        f"{kind.__name__}.{name}"
        for kind in (Client, JobHandle, Batches, BatchHandle, Mapped)
        for name, member in vars(kind).items()
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property))
        if ">>>" not in (inspect.getdoc(member) or "")
    ]
    assert without == []
