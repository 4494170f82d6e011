"""Inputs that refer to what other jobs made, filled in on the floor: with a fake engine and a real store."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ConnectionError  # noqa: A004 - redis's own
from rq import Queue
from rq.serializers import JSONSerializer

from genmill import keys
from genmill.images import as_png
from genmill.jobs import JobRecord, JobRequest, JobState, new_job_id, pack_call
from genmill.references import Reference, put, take_out
from genmill.registry import load_registry
from genmill.storage import open_storage
from genmill.store import Made, Outcome, Settlement, Store, Want
from tests.conftest import SettingsFactory
from tests.fleet import eventually
from tests.worker.doubles import FakeEngine
from tests.worker.test_floor import CLASSES, claim_into, run_dry
from worker.floor import Floor

REGISTRY = load_registry()
SHAPES, CAPTIONS = REGISTRY.get("shapes"), REGISTRY.get("captions")


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def floor(store: Store, engine: FakeEngine, make_settings: SettingsFactory) -> Iterator[Floor]:
    floor = Floor(store, REGISTRY, make_settings(), load=lambda _spec: engine)
    yield floor
    floor.close()


@pytest.fixture
def submit(store: Store) -> Callable[..., str]:
    """As the API does it: words stand where references are."""

    def make(model: str = "shapes", tenant: str = "a", **given: Any) -> str:
        spec = REGISTRY.get(model)
        filled, references = take_out(given)
        depends_on = {one.job_id: "/input" for one in references.values()}
        request = JobRequest(
            new_job_id(), tenant, spec, spec.parse_input(filled), depends_on=depends_on, references=references
        )
        return store.submit(request)[0]

    return make


def end_one(store: Store, batch_key: str, result: dict[str, Any]) -> None:
    (claim,) = store.claim("other", CLASSES, [Want(batch_key, 1)]).claims
    assert store.settle([Settlement(claim.job_id, claim.fence, Outcome.FINISHED, result)]) == [True]


def source(job_id: str, path: str = "text") -> dict[str, str]:
    return {"from": f"job:{job_id}", "path": path}


def record(store: Store, job_id: str) -> JobRecord:
    found = store.get(job_id)
    assert found is not None
    return found


def written(text: str) -> dict[str, Any]:
    return {"outputs": [], "text": {"text": text}, "receipt": {}}


def test_a_text_becomes_the_prompt_of_a_picture(
    floor: Floor, store: Store, engine: FakeEngine, submit: Callable[..., str]
) -> None:
    text = submit("captions", prompt="a red")
    job = submit(prompt=source(text), negative_prompt=source(text), steps=2)
    plain = submit(prompt="as it is", steps=2)
    end_one(store, CAPTIONS.batch_key, written("a blue ring"))
    assert claim_into(floor) == 2
    run_dry(floor)
    inputs = {job_id: engine.jobs[job_id].input for job_id in (job, plain)}
    assert (inputs[job].prompt, inputs[job].negative_prompt) == ("a blue ring", "a blue ring")  # type: ignore[union-attr]
    assert inputs[plain].prompt == "as it is"
    assert record(store, job).state is JobState.SUCCEEDED


def test_a_picture_is_where_another_begins(
    floor: Floor, store: Store, engine: FakeEngine, submit: Callable[..., str], make_settings: SettingsFactory
) -> None:
    from PIL import Image

    open_storage(make_settings()).put("x/1/1.png", as_png(Image.new("RGB", (64, 64), "red")), "image/png")
    first = submit(prompt="x", num_images=2)
    job = submit(prompt="y", init_image=source(first, "outputs/1"), steps=2)
    end_one(store, SHAPES.batch_key, {"outputs": [{"key": "x/1/0.png"}, {"key": "x/1/1.png"}], "receipt": {}})
    assert claim_into(floor) == 1
    run_dry(floor)
    image = engine.jobs[job].init_image
    assert image is not None
    assert image.getpixel((0, 0)) == (255, 0, 0)
    assert record(store, job).state is JobState.SUCCEEDED


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [("", "invalid_job", "at least 1 character"), ("x" * 2001, "invalid_job", "2001 characters"),
     (None, "input_unavailable", "has no text, or has it no more")],
)  # fmt: skip
def test_what_cannot_be_used_fails_the_job_alone(
    text: str | None, code: str, words: str, floor: Floor, store: Store, submit: Callable[..., str]
) -> None:
    source_id = submit("captions", prompt="a red")
    bad, good = submit(prompt=source(source_id)), submit(prompt="good", steps=2)
    end_one(store, CAPTIONS.batch_key, {"outputs": [], "receipt": {}} if text is None else written(text))
    assert claim_into(floor) == 2
    run_dry(floor)
    failed = record(store, bad)
    assert (failed.state, (failed.error or {})["code"]) == (JobState.FAILED, code)
    assert words in (failed.error or {})["message"]
    assert record(store, good).state is JobState.SUCCEEDED


def test_a_result_that_has_expired_fails_the_job(
    floor: Floor, store: Store, redis: Redis, submit: Callable[..., str]
) -> None:
    text = submit("captions", prompt="a red")
    job = submit(prompt=source(text))
    end_one(store, CAPTIONS.batch_key, written("a blue ring"))
    redis.delete(keys.job(text), keys.results(text))
    claim_into(floor)
    run_dry(floor)
    assert record(store, job).error == {
        "code": "input_unavailable", "message": f"prompt: job:{text} has no text, or has it no more",
    }  # fmt: skip


def test_a_source_that_is_another_tenants_by_now_is_not_read(
    floor: Floor, store: Store, redis: Redis, submit: Callable[..., str]
) -> None:
    text = submit("captions", prompt="a red")
    job = submit(prompt=source(text))
    end_one(store, CAPTIONS.batch_key, written("a blue ring"))
    redis.hset(keys.job(text), "tenant", "b")
    claim_into(floor)
    run_dry(floor)
    assert (record(store, job).error or {})["code"] == "input_unavailable"


@pytest.mark.parametrize(
    "references",
    [[1], {"prompt": {"from": "j1"}}, {"colour": {"from": "job:j1", "path": "text"}}, {"prompt": 1},
     {"control/image": {"from": "job:j1", "path": "text"}}],
)  # fmt: skip
def test_references_that_nobody_of_ours_wrote_fail_their_job_alone(
    references: object, floor: Floor, store: Store, redis: Redis, submit: Callable[..., str]
) -> None:
    end = {"outputs": [], "text": {"text": "a"}}
    text = submit("captions", prompt="a red")
    end_one(store, CAPTIONS.batch_key, end)
    job, good = submit(prompt="x"), submit(prompt="good", steps=2)
    written = json.dumps(references).replace("j1", text)
    given = {"prompt": "x", "control": None}
    request = {"model": "shapes", "input": given, "references": json.loads(written)}
    redis.hset(keys.job(job), "data", pack_call(keys.GENERATE, [request], {}))
    assert claim_into(floor) == 2
    run_dry(floor)
    assert (record(store, job).error or {})["code"] == "invalid_job"
    assert record(store, good).state is JobState.SUCCEEDED


def test_what_a_plain_call_names_references_is_its_own(floor: Floor, store: Store, redis: Redis) -> None:
    queue = Queue("p1", connection=redis, serializer=JSONSerializer)
    job = queue.enqueue("worker.tasks.ping", {"references": ["a book"]})
    assert claim_into(floor) == 1
    run_dry(floor)
    assert record(store, job.id).result == {"references": ["a book"]}


def test_a_redis_that_is_away_puts_the_job_off(
    floor: Floor, store: Store, redis: Redis, submit: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = submit("captions", prompt="a red")
    job = submit(prompt=source(text), steps=2)
    end_one(store, CAPTIONS.batch_key, written("a blue ring"))

    def away(_ids: object) -> dict[str, Made]:
        raise ConnectionError("away")

    with monkeypatch.context() as patched:
        patched.setattr(store.sources, "made", away)
        claim_into(floor)
        run_dry(floor)
    assert record(store, job).state is JobState.QUEUED
    assert redis.zrem("rq:scheduled:p1", job) == 1  # as RQ's scheduler does when its time has come
    redis.hset(keys.job(job), "status", "queued")
    redis.rpush("rq:queue:p1", job)
    assert claim_into(floor) == 1
    run_dry(floor)
    assert record(store, job).state is JobState.SUCCEEDED


def test_jobs_without_references_cost_no_round_trip(
    floor: Floor, store: Store, submit: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(prompt="x")
    monkeypatch.setattr(store.sources, "made", None)
    assert claim_into(floor) == 1
    run_dry(floor)


def test_what_others_made_is_read_once_for_a_batch_and_not_by_the_loop(
    floor: Floor, store: Store, engine: FakeEngine, submit: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = submit("captions", prompt="a red")
    jobs = [submit(prompt=source(text), steps=2) for _ in range(3)]
    end_one(store, CAPTIONS.batch_key, written("a blue ring"))
    may_read, made, readers = threading.Event(), store.sources.made, list[str]()

    def late(ids: Sequence[str]) -> dict[str, Made]:
        readers.append(threading.current_thread().name)
        assert may_read.wait(10)
        return made(ids)

    monkeypatch.setattr(store.sources, "made", late)
    assert claim_into(floor) == 3
    plain = submit(prompt="as it is", steps=2)
    assert claim_into(floor) == 1

    def plain_is_done() -> bool:
        floor.step()
        return plain not in engine.on_board

    eventually(plain_is_done)
    assert not engine.jobs.keys() & set(jobs), "steps went on before anything was read"
    may_read.set()
    run_dry(floor)
    assert {record(store, job).state for job in [plain, *jobs]} == {JobState.SUCCEEDED}
    assert [name.partition("_")[0] for name in readers] == ["input"]


def test_put_changes_one_place_and_nothing_else() -> None:
    given = {"messages": ({"role": "user", "content": "a"}, {"role": "user", "content": "b"}), "seed": 1}
    assert put(given, "messages/1/content", "c") == {
        "messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "c"}], "seed": 1,
    }  # fmt: skip
    assert put({"control": {"name": "n", "image": "i"}}, "control/image", "k") == {
        "control": {"name": "n", "image": "k"}
    }
    assert given["messages"][1]["content"] == "b"


def test_a_reference_is_written_as_it_is_read() -> None:
    reference = Reference.model_validate(source("j1", "outputs/3"))
    assert reference.model_dump() == source("j1", "outputs/3")
    assert (reference.job_id, reference.index, str(reference)) == ("j1", 3, "job:j1/outputs/3")
