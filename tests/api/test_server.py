"""The API as it runs: gunicorn, a client over TCP, a Redis that dies and comes back."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from redis import Redis

from api import problems, serving
from genmill.batches import Ledger, ResultParts
from genmill.batches.ledger import Collected
from genmill.batches.parts import RESULTS_A_PART, as_row
from genmill.client import Client
from genmill.errors import InvalidRequest
from genmill.settings import load_settings
from genmill.storage import open_storage
from tests.api.conftest import IMAGE_JOB
from tests.fleet import Process, Valkey, eventually, free_port


@dataclass
class Running:
    url: str
    valkey: Valkey
    outputs: Path


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("api")
    valkey = Valkey(folder / "valkey")
    valkey.start()
    port = free_port()
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("GENMILL_")},
        "GENMILL_REDIS_URL": valkey.url, "GENMILL_STORAGE_URL": (folder / "outputs").as_uri(),
        "GENMILL_SECRET_KEY": "a secret of the tests", "GENMILL_AUTH": "off", "GENMILL_PORT": str(port),
    }  # fmt: skip
    args = ["-c", "python:api.serving", "--bind", f"127.0.0.1:{port}"]
    gunicorn = str(Path(sys.executable).with_name("gunicorn"))
    process = Process([gunicorn, *args, "api.wsgi:app"], env, folder / "api.log")
    url = f"http://127.0.0.1:{port}"
    eventually(lambda: _status(url) == 200)
    yield Running(url, valkey, folder / "outputs")
    process.stop()
    valkey.stop()


def test_a_connection_is_kept_longer_than_who_uses_it_waits_between_two_tries() -> None:
    assert serving.keepalive > 2 * problems.RETRY_AFTER_S
    assert serving.keepalive > 2 * (httpx.Limits().keepalive_expiry or 0)


def _status(url: str) -> int:
    try:
        return httpx.get(f"{url}/readyz", timeout=10).status_code
    except httpx.TransportError:
        return 0


@pytest.mark.parametrize("head", [b"transfer-encoding: chunked", b"content-length: 10000000"])
def test_a_batch_that_breaks_off_leaves_nothing(head: bytes, running: Running) -> None:
    row = b'{"custom_id": "%d", "model": "captions", "input": {"prompt": "a red"}}\n'
    lines = b"".join(row % number for number in range(1_200))
    parts, folder = urlsplit(running.url), running.outputs / "batches"
    with socket.create_connection((parts.hostname or "", parts.port or 0)) as client:
        client.sendall(b"POST /v1/batches HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/x-ndjson\r\n")
        client.sendall(head + b"\r\n\r\n" + (b"%x\r\n" % len(lines) if b"chunked" in head else b"") + lines)
        eventually(lambda: list(folder.glob("*/lines/*.jsonl")))
    eventually(lambda: not list(folder.glob("*")))
    assert httpx.get(f"{running.url}/v1/batches").json()["data"] == []


@pytest.mark.parametrize(("path", "kind"), [("/v1/jobs", "json"), ("/v1/batches", "x-ndjson"), ("/v1/files", "form")])
@pytest.mark.parametrize("chunk", [b"zz\r\nabc\r\n", b"-5\r\nabc\r\n", b"3;a=\x00\r\nabc\r\n"])
def test_chunks_that_are_none_are_the_clients_fault(path: str, kind: str, chunk: bytes, running: Running) -> None:
    parts = urlsplit(running.url)
    content = "multipart/form-data; boundary=b" if kind == "form" else f"application/{kind}"
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=10) as client:
        client.sendall(
            f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: {content}\r\n"
            "transfer-encoding: chunked\r\n\r\n".encode() + b"1\r\n{\r\n" + chunk
        )  # fmt: skip
        client.shutdown(socket.SHUT_WR)
        assert client.recv(64).startswith((b"HTTP/1.1 400", b"HTTP/1.1 422")), path


def test_client_round_trip(running: Running) -> None:
    with Client(running.url) as client:
        job = client.submit("shapes", {"prompt": "a red circle"}, metadata={"n": 1})
        assert client.job(job.id).data == job.refresh().data
        with pytest.raises(TimeoutError):
            job.wait(0.3)
        assert job.cancel().data["cancel"] == "dequeued"
        assert job.wait(1).state == "canceled"
        with pytest.raises(InvalidRequest, match="multiple of 8"):
            client.submit("shapes", {"prompt": "x", "width": 65})


def test_waiting_clients_do_not_starve_the_others(running: Running) -> None:
    job_id = httpx.post(f"{running.url}/v1/jobs", json=IMAGE_JOB).json()["id"]
    with ThreadPoolExecutor(40) as pool:
        waits = [pool.submit(httpx.get, f"{running.url}/v1/jobs/{job_id}?wait=1.5", timeout=20) for _ in range(40)]
        time.sleep(0.3)
        started = time.monotonic()
        assert httpx.get(f"{running.url}/healthz").status_code == 200
        assert time.monotonic() - started < 1.2
        assert {wait.result().status_code for wait in waits} == {200}


def test_open_streams_and_long_polls_stop_no_submission(running: Running) -> None:
    job_id = httpx.post(f"{running.url}/v1/jobs", json=IMAGE_JOB).json()["id"]
    address = httpx.URL(running.url)
    with ExitStack() as stack:
        for path in ("/events", "?wait=60"):
            for _ in range(120):
                connection = stack.enter_context(socket.create_connection((address.host, address.port), timeout=10))
                request = f"GET /v1/jobs/{job_id}{path} HTTP/1.1\r\nHost: {address.netloc.decode()}\r\n\r\n"
                connection.sendall(request.encode())
                if path == "/events":
                    assert connection.recv(16).startswith(b"HTTP/1.1 200")
        waits = []
        for _ in range(20):
            started = time.monotonic()
            assert httpx.post(f"{running.url}/v1/jobs", json=IMAGE_JOB, timeout=10).status_code == 202
            waits.append(time.monotonic() - started)
        assert sorted(waits)[10] < 1.0
        httpx.post(f"{running.url}/v1/jobs/{job_id}/cancel")
        connection.settimeout(10)
        assert connection.recv(16).startswith(b"HTTP/1.1 200")  # the last long poll


def test_slow_bodies_stop_nobody(running: Running) -> None:
    address = httpx.URL(running.url)
    head = f"POST /v1/jobs HTTP/1.1\r\nHost: {address.netloc.decode()}\r\nContent-Type: application/json\r\n"
    with ExitStack() as stack:
        for _ in range(40):
            connection = stack.enter_context(socket.create_connection((address.host, address.port), timeout=10))
            connection.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        for _ in range(5):
            assert httpx.post(f"{running.url}/v1/jobs", json=IMAGE_JOB, timeout=4).status_code == 202


def test_a_stream_over_tcp_ends_with_its_job(running: Running) -> None:
    with Client(running.url) as client, ThreadPoolExecutor(1) as pool:
        job = client.submit("captions", {"prompt": "a red"}, stream=True)
        events = job.events()
        assert next(events).data["state"] == "queued"
        rest = pool.submit(list, events)
        client.job(job.id).cancel()
        assert [event.data["state"] for event in rest.result(timeout=10)] == ["canceled"]
        assert job.state == "canceled"


def test_a_body_without_a_length_is_bounded_too(running: Running) -> None:
    chunks = (b"[" * 65536 for _ in range(200))
    answer = httpx.post(f"{running.url}/v1/jobs", content=chunks, headers={"content-type": "application/json"})
    assert answer.status_code == 413
    assert "12000000 bytes" in answer.text


def test_results_that_cannot_be_read_on_cut_the_connection_and_the_client_asks_again(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = b'{"custom_id": "%d", "model": "captions", "input": {"prompt": "a red"}}\n'
    batch_id = httpx.post(
        f"{running.url}/v1/batches", content=b"".join(row % number for number in range(RESULTS_A_PART + 1)),
        headers={"content-type": "application/x-ndjson"},
    ).json()["id"]  # fmt: skip
    settings = load_settings(redis_url=running.valkey.url, storage_url=running.outputs.as_uri(), auth=False)
    with Redis.from_url(settings.redis_url) as redis:
        ledger, storage = Ledger(redis, settings), open_storage(settings)
        for numbers in (range(1, RESULTS_A_PART + 1), range(RESULTS_A_PART + 1, RESULTS_A_PART + 2)):
            rows = [as_row({"seq": number, "outputs": [], "custom_id": "x" * 100}) for number in numbers]
            name = ResultParts(storage).write(batch_id, rows)
            assert ledger.collect(batch_id, numbers.start - 1, Collected(name, [*numbers], len(rows), 0, 0))
    key, path = f"batches/{batch_id}/results/{name}.jsonl", f"/v1/batches/{batch_id}/results"
    body = storage.get(key).body
    storage.delete_prefix(key)

    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(running.url + path)
    answer = httpx.get(f"{running.url}{path}?after={RESULTS_A_PART}")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")

    def put_back(_number: int, _retry_after: str | None) -> float:
        storage.put(key, body, "application/x-ndjson")
        return 0.0

    monkeypatch.setattr("genmill.answers._pause_s", put_back)
    with Client(running.url) as client:
        assert [one["seq"] for one in client.lines(path)] == list(range(1, RESULTS_A_PART + 2))


def test_a_hanging_redis_is_503_within_seconds(running: Running) -> None:
    process = running.valkey._process
    assert process is not None
    process.signal(signal.SIGSTOP)
    try:
        started = time.monotonic()
        answer = httpx.post(f"{running.url}/v1/jobs", json=IMAGE_JOB, timeout=10)
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "2"
        assert time.monotonic() - started < 4
    finally:
        process.signal(signal.SIGCONT)
    eventually(lambda: _status(running.url) == 200, within_s=5)


def test_redis_down_and_up(running: Running) -> None:
    with Client(running.url) as client:
        job = client.submit("captions", {"prompt": "a red"})
        running.valkey.kill()
        for method, path in (("POST", "/v1/jobs"), ("GET", f"/v1/jobs/{job.id}"), ("GET", "/readyz")):
            started = time.monotonic()
            answer = httpx.request(method, running.url + path, json=IMAGE_JOB, timeout=10)
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "store_unavailable"
            assert answer.headers["retry-after"] == "2"
            assert time.monotonic() - started < 3
        assert httpx.get(f"{running.url}/healthz").status_code == 200
        running.valkey.start()
        assert _status(running.url) == 200
        assert job.refresh().state == "queued"


def test_a_client_lives_through_a_short_outage(running: Running) -> None:
    with Client(running.url) as client, ThreadPoolExecutor(1) as pool:
        running.valkey.kill()
        submitted = pool.submit(client.submit, "captions", {"prompt": "a red"})
        time.sleep(0.5)
        running.valkey.start()
        assert submitted.result(timeout=15).state == "queued"
        assert len(client.jobs(limit=100)) == len({job.id for job in client.jobs(limit=100)})


def test_wsgi_names_every_fault_of_the_settings() -> None:
    env = {"PATH": os.environ["PATH"], "GENMILL_PORT": "0", "GENMILL_LEASE_S": "-1"}
    done = subprocess.run(
        [sys.executable, "-c", "import api.wsgi"], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert "GENMILL_PORT" in done.stderr
    assert "GENMILL_LEASE_S" in done.stderr
