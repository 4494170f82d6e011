"""Client.map against a server of the test's own: bounds, order, failures, patience."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import httpx
import pytest

from genmill.client import Client, Mapped
from genmill.errors import GenerationFailed, InvalidRequest, LimitReached, StoreUnavailable, UnknownModel
from tests.fleet import eventually

BASE = "http://api.test"


def request(name: str, **more: Any) -> dict[str, Any]:
    return {"model": "shapes", "input": {"prompt": name}, **more}


class Server:
    """Jobs named by their prompt; one whose name is in `held` does not end. `refusals` are given first, by name;
    reading is answered by the one of `away`, if there is one."""

    def __init__(self) -> None:
        self.held: set[str] = set()
        self.fails: set[str] = set()
        self.refusals: dict[str, list[httpx.Response]] = {}
        self.away: list[httpx.Response] = []
        self.posts: list[tuple[str, str]] = []
        self.running: set[str] = set()
        self.most_running = 0
        self._lock = threading.Lock()

    def __call__(self, asked: httpx.Request) -> httpx.Response:
        with self._lock:
            return self._submitted(asked) if asked.method == "POST" else self._read(asked)

    def names(self) -> list[str]:
        return [name for name, _ in self.posts]

    def _submitted(self, asked: httpx.Request) -> httpx.Response:
        name = json.loads(asked.content)["input"]["prompt"]
        self.posts.append((name, asked.headers["idempotency-key"]))
        if self.refusals.get(name):
            return self.refusals[name].pop(0)
        self.running.add(name)
        self.most_running = max(self.most_running, len(self.running))
        return httpx.Response(202, json=self._view(name, "queued"))

    def _read(self, asked: httpx.Request) -> httpx.Response:
        name = asked.url.path.rpartition("/")[2]
        if self.away:
            return self.away[0]
        if name in self.held:
            return httpx.Response(200, json=self._view(name, "running"))
        self.running.discard(name)
        return httpx.Response(200, json=self._view(name, "failed" if name in self.fails else "succeeded"))

    def _view(self, name: str, state: str) -> dict[str, Any]:
        error = {"code": "generation_failed", "message": "it broke"} if state == "failed" else None
        return {"id": name, "state": state, "outputs": [], "error": error}


def problem(status: int, code: str, **headers: str) -> httpx.Response:
    body = {"error": {"message": "why", "type": "t", "param": None, "code": code}, "errors": []}
    return httpx.Response(status, json=body, headers={name.replace("_", "-"): one for name, one in headers.items()})


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def client(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setattr("genmill.answers.TRIES", 1)
    monkeypatch.setattr("genmill.mapping.AWAY_S", 0.01)
    monkeypatch.setattr("genmill.mapping.LOOK_S", 0.05)
    with Client(BASE, transport=httpx.MockTransport(server)) as one:
        yield one


def names(found: list[Mapped]) -> list[str]:
    return [str(one.request["input"]["prompt"]) for one in found]


def test_results_come_in_the_order_of_their_requests(client: Client, server: Server) -> None:
    server.held = {"0"}
    results = client.map((request(str(n)) for n in range(6)), concurrency=3)
    threading.Timer(0.3, server.held.clear).start()
    found = list(results)
    assert names(found) == [str(n) for n in range(6)]
    assert [one.index for one in found] == list(range(6))
    assert all(one.is_success and one.result().id == one.request["input"]["prompt"] for one in found)
    assert server.most_running <= 3
    assert len({key for _, key in server.posts}) == 6


def test_unordered_results_come_as_jobs_end(client: Client, server: Server) -> None:
    server.held = {"0"}
    results = client.map((request(str(n)) for n in range(4)), concurrency=2, ordered=False)
    assert sorted(names(list(islice(results, 3)))) == ["1", "2", "3"]
    server.held.clear()
    assert names(list(results)) == ["0"]


@pytest.mark.parametrize("ordered", [True, False])
def test_an_endless_input_is_read_no_further_than_the_bound(ordered: bool, client: Client, server: Server) -> None:
    read: list[int] = []

    def endless() -> Iterator[dict[str, Any]]:
        for n in count():
            read.append(n)
            yield request(str(n))

    results = client.map(endless(), concurrency=4, ordered=ordered)
    assert read == []
    for taken in range(1, 20):
        next(results)
        assert len(read) <= taken + 3
    server.held = {str(n) for n in range(1000)}
    results.close()  # type: ignore[attr-defined]  # it is a generator
    assert len(read) <= 19 + 4


def test_what_fails_ends_no_other(client: Client, server: Server) -> None:
    server.fails = {"broken"}
    server.refusals = {"refused": [problem(422, "unknown_model")]}
    asked = [request("good"), request("refused"), {"input": {}}, request("broken"), request("last")]
    good, refused, wrong, broken, last = client.map(asked, concurrency=2)
    assert (good.is_success, last.is_success) == (True, True)
    assert refused.job is None
    with pytest.raises(UnknownModel, match="why"):
        refused.result()
    assert isinstance(wrong.error, TypeError)
    assert (broken.error, broken.is_success) == (None, False)
    assert broken.job is not None
    assert broken.job.error == {"code": "generation_failed", "message": "it broke"}
    with pytest.raises(GenerationFailed, match="it broke"):
        broken.result()


def test_a_quota_and_a_server_that_is_away_are_waited_for_under_one_key(client: Client, server: Server) -> None:
    server.refusals = {"a": [
        problem(429, "limit_reached", retry_after="0"), problem(503, "store_unavailable"),
        problem(429, "limit_reached"),
    ]}  # fmt: skip
    (found,) = client.map([request("a")])
    assert found.is_success
    assert len(server.posts) == 4
    assert len(set(server.posts)) == 1
    (own,) = client.map([request("b", idempotency_key="mine")])
    assert (own.is_success, server.posts[-1]) == (True, ("b", '"mine"'))


@pytest.mark.parametrize(("status", "code"), [(429, "limit_reached"), (503, "store_unavailable")])
def test_the_pause_is_the_one_that_was_asked_for(
    status: int, code: str, client: Client, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float | None] = []

    class NoPause(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout)
            return self.is_set()

    monkeypatch.setattr("genmill.mapping.Event", NoPause)
    server.refusals = {"a": [problem(status, code, retry_after="7")]}
    (found,) = client.map([request("a")])
    assert found.is_success
    assert pauses == [7]


def test_patience_ends(client: Client, server: Server) -> None:
    server.refusals = {"a": [problem(429, "limit_reached", retry_after="1") for _ in range(100)]}
    first, second = client.map([request("a"), request("b")], patience_s=0.05)
    assert isinstance(first.error, LimitReached)
    assert second.is_success


@pytest.mark.parametrize("tries", [1, 6])
def test_the_timeout_holds_while_the_server_is_away(
    tries: int, client: Client, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("genmill.answers.TRIES", tries)
    server.away = [problem(503, "store_unavailable", retry_after="30")]
    begun = time.monotonic()
    (found,) = client.map([request("a")], timeout=0.2, patience_s=20)
    assert 0.2 <= time.monotonic() - begun < 5
    assert isinstance(found.error, TimeoutError)
    assert found.job is not None


def test_patience_may_end_before_the_timeout(client: Client, server: Server) -> None:
    server.away = [problem(503, "store_unavailable")]
    (found,) = client.map([request("a")], timeout=60, patience_s=0.1)
    assert isinstance(found.error, StoreUnavailable)


def test_a_job_that_takes_too_long_goes_on(client: Client, server: Server) -> None:
    server.held = {"slow"}
    slow, quick = client.map([request("slow"), request("quick")], timeout=0.1)
    assert isinstance(slow.error, TimeoutError)
    assert slow.job is not None
    assert quick.is_success


def test_an_input_that_breaks_ends_after_what_is_under_way(client: Client, server: Server) -> None:
    def breaks() -> Iterator[dict[str, Any]]:
        yield request("a")
        yield request("b")
        raise OSError("the file ended")

    results = client.map(breaks(), concurrency=8)
    assert names([next(results), next(results)]) == ["a", "b"]
    with pytest.raises(OSError, match="the file ended"):
        next(results)


def test_leaving_early_submits_no_more(client: Client, server: Server) -> None:
    server.held = {"0", "1"}
    results = client.map((request(str(n)) for n in count()), concurrency=3, ordered=False)
    assert names([next(results)]) == ["2"]
    results.close()  # type: ignore[attr-defined]  # it is a generator
    eventually(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("map-")])
    assert set(server.names()) <= {"0", "1", "2", "3"}


@pytest.mark.parametrize("concurrency", [0, 65])
def test_the_bound_has_bounds(concurrency: int, client: Client) -> None:
    with pytest.raises(InvalidRequest, match="concurrency must be between 1 and 64"):
        client.map([], concurrency=concurrency)


def test_nothing_in_nothing_out(client: Client) -> None:
    assert list(client.map([])) == []
