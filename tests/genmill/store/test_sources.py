"""What jobs make, as it is told before and after they have made it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from genmill import keys
from genmill.jobs import JobRequest, new_job_id
from genmill.registry import load_registry
from genmill.store import Made, Outcome, Settlement, Source, Store, Want

SPEC = load_registry().get("captions")
RESULT: dict[str, Any] = {
    "outputs": [], "text": {"text": "a", "tokens": [{"token": "a", "logprob": -0.5, "top": [{"token": "b"}] * 20}]}
}  # fmt: skip


@pytest.fixture
def job(store: Store) -> str:
    return store.submit(JobRequest(new_job_id(), "alice", SPEC, SPEC.parse_input({"prompt": "a red"})))[0]


@pytest.fixture
def end(store: Store) -> Callable[[], None]:
    def make() -> None:
        (claim,) = store.claim("w", ["p1"], [Want(SPEC.batch_key, 1)]).claims
        assert store.settle([Settlement(claim.job_id, claim.fence, Outcome.FINISHED, RESULT)]) == [True]

    return make


def test_what_a_job_will_make_is_told_before_and_after(store: Store, job: str, end: Callable[[], None]) -> None:
    before = store.sources.sources([job, "nobody"])
    assert [*before] == [job]
    assert before[job][:4] == (job, "alice", SPEC.batch_key, 1)
    assert before[job].request["input"]["prompt"] == "a red"
    end()
    assert store.sources.sources([job]) == before


def test_the_result_is_not_read_to_tell_what_a_job_makes(
    store: Store, redis: Redis, job: str, end: Callable[[], None]
) -> None:
    end()
    redis.delete(keys.results(job))
    redis.set(keys.results(job), "no stream: reading it as one is an error", ex=60)
    assert isinstance(store.sources.sources([job])[job], Source)


def test_what_was_made_is_told_once_it_is_made(store: Store, redis: Redis, job: str, end: Callable[[], None]) -> None:
    assert store.sources.made([job, "nobody"]) == {job: Made("alice", None)}
    end()
    assert store.sources.made(["nobody", job]) == {job: Made("alice", RESULT)}
    redis.delete(keys.results(job))
    assert store.sources.made([job]) == {job: Made("alice", None)}


def test_the_trace_of_a_collected_line_is_no_source(store: Store, redis: Redis, job: str) -> None:
    redis.hset(keys.job(job), "collected", 1)
    assert store.sources.sources([job]) == {}
    assert store.sources.made([job]) == {}
