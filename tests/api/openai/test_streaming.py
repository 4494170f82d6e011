"""Chunks of texts: what they say when a job is begun again, fails, or is no more; and what is left behind."""

from __future__ import annotations

import json
from typing import Any

import pytest
from redis import Redis

from api import streams
from api.seats import Seats
from genmill import keys
from genmill.errors import GenerationFailed
from genmill.events import Delta
from genmill.registry import load_registry
from genmill.store import Outcome, Settlement, Store, Want
from tests.api.conftest import Caller
from tests.api.streamed import Streamed

CAPTIONS = load_registry().get("captions").batch_key
BODY = {"model": "captions", "prompt": "a red", "stream": True}
TEXT = {"text": "a red circle", "finish_reason": "length", "prompt_tokens": 2, "completion_tokens": 3}


def begin(caller: Caller, headers: dict[str, str] | None = None, **options: Any) -> Streamed:
    return Streamed(caller("POST", "/v1/completions", json=BODY | options, headers=headers))


def claim(store: Store) -> tuple[str, int]:
    (taken,) = store.claim("w1", ["p1"], [Want(CAPTIONS, 1)]).claims
    return taken.job_id, taken.fence


def finish(store: Store, job_id: str, fence: int) -> None:
    done = Settlement(job_id, fence, Outcome.FINISHED, {"text": TEXT, "outputs": []})
    assert store.settle([done]) == [True]


def chunks(told: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in told.splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def text_of(told: str) -> str:
    parts = [chunk["choices"][0]["text"] for chunk in chunks(told) if chunk != "[DONE]" and chunk.get("choices")]
    return "".join(parts)


def test_a_job_that_is_begun_again_goes_on_where_it_broke_off(alice: Caller, store: Store, redis: Redis) -> None:
    stream = begin(alice)
    job_id, fence = claim(store)
    store.events.write([(job_id, Delta(fence, 0, "a red"))], [])
    stream.until("a red")
    redis.zadd(keys.run_scope("global"), {job_id: 1})  # its worker is dead
    store.reap()
    _, again = claim(store)
    store.events.write([(job_id, Delta(again, 0, "a ")), (job_id, Delta(again, 2, "red ci"))], [])
    stream.until(" ci")
    finish(store, job_id, again)
    told = stream.ended()
    assert text_of(told) == "a red circle"
    assert chunks(told)[-1] == "[DONE]"
    assert chunks(told)[-2]["choices"][0]["finish_reason"] == "length"


def test_another_text_than_was_told_is_an_error(alice: Caller, store: Store) -> None:
    stream = begin(alice)
    job_id, fence = claim(store)
    store.events.write([(job_id, Delta(fence, 0, "a blue"))], [])
    stream.until("a blue")
    finish(store, job_id, fence)
    last = chunks(stream.ended())[-1]
    assert (last["error"]["code"], last["error"]["type"]) == ("text_changed", "server_error")


def test_a_failure_and_a_deletion_end_the_stream_with_an_error(alice: Caller, store: Store, redis: Redis) -> None:
    failed = begin(alice)
    job_id, fence = claim(store)
    store.settle([Settlement(job_id, fence, Outcome.FAILED, error=GenerationFailed("it broke"))])
    assert chunks(failed.ended())[-1]["error"] == {
        "message": "it broke", "type": "server_error", "param": None, "code": "generation_failed"
    }  # fmt: skip
    deleted = begin(alice)
    job_id, _ = claim(store)
    redis.delete(keys.job(job_id))
    assert chunks(deleted.ended())[-1]["error"]["code"] == "job_deleted"


def test_usage_is_told_with_every_chunk_or_none(alice: Caller, store: Store) -> None:
    asked = begin(alice, stream_options={"include_usage": True})
    finish(store, *claim(store))
    *others, last, done = chunks(asked.ended())
    assert done == "[DONE]"
    assert [chunk["usage"] for chunk in others] == [None] * len(others)
    assert (last["choices"], last["usage"]["total_tokens"]) == ([], 5)
    plain = begin(alice)
    finish(store, *claim(store))
    assert all("usage" not in chunk for chunk in chunks(plain.ended())[:-1])


def test_a_retry_hears_the_job_of_the_stream_that_was_lost(alice: Caller, store: Store, redis: Redis) -> None:
    alice("POST", "/v1/completions", json=BODY).close()
    stream = begin(alice, {"x-stainless-retry-count": "1"})
    job_id, fence = claim(store)
    finish(store, job_id, fence)
    assert chunks(stream.ended())[0]["job_id"] == job_id
    assert store.list_ids("alice", None, 9) == [job_id]
    assert not redis.keys("gm:held:*"), "its answer was given"


def test_no_seat_is_503_and_nothing_is_stored(
    alice: Caller, store: Store, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_seats", Seats(1))
    first = begin(alice)
    refused = alice("POST", "/v1/completions", json=BODY)
    assert (refused.status_code, refused.json["error"]["code"]) == (503, "too_many_streams")
    assert len(redis.keys("rq:job:*")) == 1  # type: ignore[arg-type]  # of a client that is not async
    finish(store, *claim(store))
    first.ended()
    assert alice("POST", "/v1/completions", json={**BODY, "max_tokens": 0}).status_code == 422
    assert streams._seats.take("bob") is None, "a refused body gives its seat back"
