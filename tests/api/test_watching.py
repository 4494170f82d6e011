"""The hub: one thread and one connection for all watchers of a process."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ConnectionError  # noqa: A004 - redis's own

from api import watching
from api.watching import Heard, Hub, Watch, hub_of
from genmill import keys
from genmill.events import Delta
from genmill.jobs import JobRequest, JobState, new_job_id
from genmill.registry import load_registry
from genmill.store import Outcome, Settlement, Store, Want
from tests.fleet import eventually

SPEC = load_registry().get("captions")


def submit(store: Store) -> str:
    request = JobRequest(new_job_id(), "a", SPEC, SPEC.parse_input({"prompt": "a red"}), is_streamed=True)
    return store.submit(request)[0]


def finish(store: Store) -> None:
    (claim,) = store.claim("w", ["p1"], [Want(SPEC.batch_key, 1)]).claims
    store.settle([Settlement(claim.job_id, claim.fence, Outcome.FINISHED, {"outputs": []})])


def heard_until(watch: Watch, is_enough: Any) -> Heard:
    """All of it together."""
    whole = Heard()
    deadline = time.monotonic() + 10
    while not is_enough(whole):
        assert time.monotonic() < deadline, whole
        part = watch.take(1)
        if part is not None:
            whole.deltas += part.deltas
            whole.snapshot, whole.is_gone = part.snapshot or whole.snapshot, part.is_gone or whole.is_gone
            whole.error = part.error or whole.error
    return whole


def is_end(heard: Heard) -> bool:
    return heard.is_end


def test_an_end_is_heard_at_once_by_all(store: Store) -> None:
    job_id = submit(store)
    hub = hub_of(store)
    assert hub_of(store) is hub
    with ExitStack() as stack:
        watches = [stack.enter_context(hub.watching(Watch(job_id))) for _ in range(20)]
        for watch in watches:
            heard_until(watch, lambda heard: heard.snapshot is not None)
        assert sum(thread.name == "watch-hub" for thread in threading.enumerate()) == 1
        ended = time.monotonic()
        finish(store)
        for watch in watches:
            assert heard_until(watch, is_end).snapshot.state is JobState.SUCCEEDED  # type: ignore[union-attr]
        assert time.monotonic() - ended < watching.IDLE_LOOK_S
    eventually(lambda: not any(thread.name == "watch-hub" for thread in threading.enumerate()))


def test_who_comes_later_hears_the_text_from_its_start(store: Store) -> None:
    job_id = submit(store)
    hub = hub_of(store)
    with hub.watching(Watch(job_id, has_events=True, is_streamed=True)) as first:
        store.events.write([(job_id, Delta(1, 0, "a"))], [])
        heard_until(first, lambda heard: len(heard.deltas) == 1)
        with (
            hub.watching(Watch(job_id)) as plain,
            hub.watching(Watch(job_id, has_events=True, is_streamed=True)) as second,
        ):
            heard_until(plain, lambda heard: heard.snapshot is not None)
            heard_until(second, lambda heard: heard.deltas[:1] == [Delta(1, 0, "a")])
            store.events.write([(job_id, Delta(1, 1, "b"))], [])
            for watch in (first, second):
                assert heard_until(watch, lambda heard: heard.deltas[-1:] == [Delta(1, 1, "b")]).deltas


def test_an_end_without_a_result_is_found_by_looking(store: Store, redis: Redis) -> None:
    job_id = submit(store)
    with hub_of(store).watching(Watch(job_id)) as watch:
        heard_until(watch, lambda heard: heard.snapshot is not None)
        redis.hset(keys.job(job_id), "status", "canceled")
        heard_until(watch, is_end)
        redis.delete(keys.job(job_id))
        assert heard_until(watch, lambda heard: heard.is_gone)


def test_an_outage_is_told_and_waited_out(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "AWAY_S", 0.05)
    job_id = submit(store)
    hub = Hub(store.events)
    follow = store.events.follow
    is_down = threading.Event()

    def flaky(*args: Any) -> Any:
        if is_down.is_set():
            raise ConnectionError("down for the test")
        return follow(*args)

    monkeypatch.setattr(store.events, "follow", flaky)
    with hub.watching(Watch(job_id)) as watch:
        heard_until(watch, lambda heard: heard.snapshot is not None)
        is_down.set()
        assert heard_until(watch, lambda heard: heard.error is not None)
        finish(store)
        is_down.clear()
        heard_until(watch, is_end)
