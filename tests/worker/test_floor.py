"""The floor with a fake engine and a real store: one event for each job, nothing lost between step and settle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis.client import Pipeline
from redis.exceptions import ConnectionError  # noqa: A004 - redis's own
from rq import Queue
from rq.job import Job
from rq.serializers import JSONSerializer

from genmill import keys
from genmill.errors import ModelUnavailable
from genmill.jobs import JobRecord, JobRequest, JobState, new_job_id
from genmill.registry import ModelSpec, load_registry
from genmill.settings import Settings
from genmill.storage import FolderStorage
from genmill.store import Outcome, Store
from tests.conftest import SettingsFactory
from tests.fleet import eventually
from tests.worker.doubles import FakeEngine
from worker.engines.base import Engine
from worker.floor import NOTHING, Floor
from worker.unavailable import MAX_POSTPONED

CLASSES = ["p0", "p1", "p2", "p3", "callbacks"]
SPEC = load_registry().get("shapes")


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def floor(store: Store, engine: FakeEngine, make_settings: SettingsFactory) -> Iterator[Floor]:
    floor = Floor(store, load_registry(), make_settings(), load=lambda _spec: engine)
    yield floor
    floor.close()


def submit(store: Store, prompt: str = "good", steps: int = 2) -> str:
    job_input = SPEC.parse_input({"prompt": prompt, "steps": steps})
    return store.submit(JobRequest(new_job_id(), "a", SPEC, job_input))[0]


def state(store: Store, job_id: str) -> JobState:
    record = store.get(job_id)
    assert record is not None
    return record.state


def claim_into(floor: Floor, most: int | None = None) -> int:
    claimed = floor.store.claim("w", CLASSES, floor.wants(CLASSES, most))
    floor.admit(claimed.claims)
    return len(claimed.claims)


def run_dry(floor: Floor) -> None:
    def turn() -> bool:
        floor.step()
        floor.settle()
        return floor.is_idle()

    eventually(turn, every_s=0.001)


def test_one_bad_job_fails_alone(floor: Floor, store: Store) -> None:
    good, bad, also_good = submit(store), submit(store, "bad"), submit(store)
    assert claim_into(floor) == 3
    run_dry(floor)
    assert [state(store, i) for i in (good, bad, also_good)] == [
        JobState.SUCCEEDED,
        JobState.FAILED,
        JobState.SUCCEEDED,
    ]


def test_it_asks_only_for_free_slots(floor: Floor, store: Store, engine: FakeEngine) -> None:
    for _ in range(6):
        submit(store, steps=3)
    assert claim_into(floor, most=2) == 2
    assert claim_into(floor) == 2
    assert SPEC.batch_key not in {want.batch_key for want in floor.wants(CLASSES, None)}
    assert claim_into(floor) == 0
    run_dry(floor)
    assert claim_into(floor) == 2


def test_a_canceled_job_leaves_before_the_next_step(floor: Floor, store: Store, engine: FakeEngine) -> None:
    job_id, other = submit(store, steps=50), submit(store, steps=3)
    claim_into(floor)
    floor.step()
    floor.stop_job(job_id, Outcome.CANCELED)
    floor.step()
    assert job_id not in engine.on_board
    run_dry(floor)
    record = store.get(job_id)
    assert record is not None
    assert (record.state, record.error) == (
        JobState.CANCELED,
        {"code": "canceled", "message": "interrupted at step 1"},
    )
    assert state(store, other) is JobState.SUCCEEDED


def test_a_lost_lease_records_nothing(floor: Floor, store: Store, engine: FakeEngine) -> None:
    job_id = submit(store, steps=50)
    claim_into(floor)
    floor.drop_job(job_id, 1)
    run_dry(floor)
    assert job_id not in engine.on_board
    assert state(store, job_id) is JobState.RUNNING


def test_giving_back_returns_what_has_not_ended(floor: Floor, store: Store) -> None:
    done, running = submit(store, steps=1), submit(store, steps=50)
    claim_into(floor)
    floor.step()
    eventually(lambda: floor.uploads_pending() == 0)
    floor.leave()
    floor.settle()
    assert (state(store, done), state(store, running)) == (JobState.SUCCEEDED, JobState.QUEUED)
    assert floor.is_idle()


def test_of_several_attempts_only_the_committed_outputs_stay(
    floor: Floor, store: Store, make_settings: SettingsFactory, redis: Redis, tmp_path: Path
) -> None:
    job_id, folder = submit(store, steps=1), tmp_path / "outputs"
    claim_into(floor)
    floor.step()
    eventually(lambda: floor.uploads_pending() == 0)
    redis.zadd("gm:run:global", {job_id: 1})  # the lease has run out
    store.reap()
    second = Floor(store, load_registry(), make_settings(), load=lambda _spec: FakeEngine())
    claim_into(second)
    run_dry(second)
    second.close()
    assert [path.name for path in (folder / "outputs" / job_id).iterdir()] == ["2"]

    FolderStorage(folder).put(f"outputs/{job_id}/1/0.png", b"", "image/png")  # the first is late
    floor.settle()
    eventually(lambda: [path.name for path in (folder / "outputs" / job_id).iterdir()] == ["2"])


def broken(_spec: ModelSpec) -> Engine:
    raise ModelUnavailable("no such file: unet")


def test_jobs_of_a_model_that_does_not_load_are_left_to_other_workers_with_the_reason(
    store: Store, engine: FakeEngine, make_settings: SettingsFactory, redis: Redis
) -> None:
    sick = Floor(store, load_registry(), make_settings(), load=broken)
    well = Floor(store, load_registry(), make_settings(), load=lambda _spec: engine)
    job_id = submit(store)
    claim_into(sick)
    run_dry(sick)
    record = store.get(job_id)
    assert record is not None
    assert record.state is JobState.QUEUED
    assert record.error is not None
    assert (record.error["code"], "no such file: unet" in record.error["message"]) == ("model_unavailable", True)
    redis.zrem("rq:scheduled:p1", job_id)  # as RQ's scheduler does when its time has come
    redis.hset(keys.job(job_id), "status", "queued")
    redis.rpush("rq:queue:p1", job_id)
    assert claim_into(sick) == 0
    assert claim_into(well) == 1
    run_dry(well)
    assert state(store, job_id) is JobState.SUCCEEDED
    for floor in (sick, well):
        floor.close()


def ended_where_nobody_loads(
    store: Store, redis: Redis, settings: Settings, load: Callable[[ModelSpec], Engine]
) -> JobRecord:
    """A job that was put off as often as may be, and comes to a worker that fails to load its model, too."""
    floor = Floor(store, load_registry(), settings, load=load)
    job_id = submit(store)
    redis.hset(keys.job(job_id), "postponed", MAX_POSTPONED)
    claim_into(floor)
    run_dry(floor)
    floor.close()
    record = store.get(job_id)
    assert record is not None
    return record


def test_a_job_whose_model_loads_nowhere_ends_with_the_reason(
    store: Store, make_settings: SettingsFactory, redis: Redis
) -> None:
    record = ended_where_nobody_loads(store, redis, make_settings(), broken)
    assert record.error is not None
    assert (record.state, record.error["code"]) == (JobState.FAILED, "model_unavailable")


@pytest.mark.parametrize("is_wrapped", [True, False])
def test_what_a_library_says_of_a_model_that_does_not_load_is_for_the_operator_alone(
    store: Store, make_settings: SettingsFactory, redis: Redis, *, is_wrapped: bool
) -> None:
    def load(_spec: ModelSpec) -> Engine:
        try:
            raise OSError("no file /srv/models/secret/unet")  # noqa: TRY301 - what a library does
        except OSError as error:
            if is_wrapped:
                raise ModelUnavailable(f"model shapes: {error}") from error
            raise

    record = ended_where_nobody_loads(store, redis, make_settings(), load)
    kept = Job.fetch(record.job_id, connection=redis, serializer=JSONSerializer).latest_result()
    assert record.error is not None
    assert record.error["message"].endswith(": it could not be loaded; the worker's log tells why")
    assert "/srv/models/secret" in str(kept and kept.exc_string)


def test_claim_and_settle_are_one_round_trip_each_or_one_together(
    floor: Floor, store: Store, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        submit(store, steps=1)
    claim_into(floor)  # the scripts are known to the server from here on
    run_dry(floor)
    for _ in range(4):
        submit(store, steps=1)
    calls = []
    send = redis.connection_pool.connection_class.send_packed_command
    monkeypatch.setattr(
        "redis.connection.AbstractConnection.send_packed_command",
        lambda self, command, check_health=True: calls.append(command) or send(self, command, check_health),
    )
    assert claim_into(floor) == 4
    assert len(calls) == 1
    floor.step()
    eventually(lambda: floor.uploads_pending() == 0)
    calls.clear()
    floor.settle()
    assert len(calls) == 1
    assert floor.is_idle()

    ids = [submit(store, steps=1) for _ in range(6)]
    assert len(floor.turn_over("w", CLASSES, 3, "first").claims) == 3
    floor.step()
    eventually(lambda: floor.uploads_pending() == 0)
    calls.clear()
    assert len(floor.turn_over("w", CLASSES, 3, "second").claims) == 3
    assert len(calls) == 1
    assert sorted(state(store, job_id) for job_id in ids) == ["running"] * 3 + ["succeeded"] * 3
    assert len(floor.board) == 3


def test_a_turn_over_that_got_no_answer_is_made_once(
    floor: Floor, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [submit(store, steps=1) for _ in range(4)]
    floor.turn_over("w", CLASSES, 2, "first")
    floor.step()
    eventually(lambda: floor.uploads_pending() == 0)
    execute = Pipeline.execute

    def lose(self: Pipeline, raise_on_error: bool = True) -> list[object]:
        execute(self, raise_on_error)
        monkeypatch.setattr(Pipeline, "execute", execute)
        raise ConnectionError("the answer got lost")

    monkeypatch.setattr(Pipeline, "execute", lose)
    with pytest.raises(ConnectionError):
        floor.turn_over("w", CLASSES, 2, "second")
    assert len(floor.turn_over("w", CLASSES, 2, "second").claims) == 2
    records = [record for record in store.get_many(ids) if record]
    assert sorted((record.state, record.fence) for record in records) == [("running", 1)] * 2 + [("succeeded", 1)] * 2
    assert len(floor.board) == 2


def test_a_suspect_that_has_ended_keeps_nobody_out(floor: Floor, store: Store, redis: Redis) -> None:
    suspect, other = submit(store, steps=1), submit(store, steps=1)
    redis.hset(keys.job(suspect), "crashes", store.settings.max_crashes - 1)
    assert [claim.job_id for claim in floor.turn_over("w", CLASSES, None, "first").claims] == [suspect]
    assert floor.turn_over("w", CLASSES, None, "second").claims == ()
    floor.step()
    eventually(lambda: floor.uploads_pending() == 0)
    assert [claim.job_id for claim in floor.turn_over("w", CLASSES, None, "third").claims] == [other]


def test_the_call_station_runs_beside_models(floor: Floor, store: Store, redis: Redis) -> None:
    job = Queue("p2", connection=redis, serializer=JSONSerializer).enqueue("worker.tasks.ping", {"a": [1]})
    claim_into(floor)
    run_dry(floor)
    assert job.return_value(refresh=True) == {"a": [1]}
    assert redis.zcard(keys.run_scope("global")) == 0


def test_a_claim_of_its_own_lost_job_replaces_the_old_one(floor: Floor, store: Store, engine: FakeEngine) -> None:
    job_id = submit(store, steps=3)
    claim_into(floor)
    floor.step()
    store.redis.zadd("gm:run:global", {job_id: 1})
    store.reap()
    floor.drop_job(job_id, 1)  # the renewal's report comes after the new claim
    (again,) = store.claim("w", CLASSES, floor.wants(CLASSES, None)).claims
    floor.admit([again])
    run_dry(floor)
    record = store.get(job_id)
    assert record is not None
    assert (record.state, record.fence) == (JobState.SUCCEEDED, 2)


def test_a_suspect_gets_no_company(floor: Floor, store: Store) -> None:
    job_id = submit(store, steps=3)
    for _ in range(2):
        store.claim("dead", CLASSES, floor.wants(CLASSES, None))
        store.redis.zadd("gm:run:global", {job_id: 1})
        store.reap()
    assert claim_into(floor) == 1
    submit(store)
    assert floor.wants(CLASSES, None) == []
    run_dry(floor)
    assert claim_into(floor) == 1


def enqueue_call(redis: Redis, function: str, *args: object, **options: int) -> Job:
    return Queue("p1", connection=redis, serializer=JSONSerializer).enqueue(function, *args, **options)


def test_a_call_past_its_timeout_fails_and_keeps_its_thread_out_of_the_way(
    store: Store, redis: Redis, make_settings: SettingsFactory
) -> None:
    settings = make_settings(functions=("worker.tasks.ping", "time.sleep"))
    floor = Floor(store, load_registry(), settings, load=lambda _spec: FakeEngine())
    slow = enqueue_call(redis, "time.sleep", 3, job_timeout=1)
    claim_into(floor)
    run_dry(floor)
    assert slow.get_status(refresh=True) == "failed"
    assert keys.CALL_BATCH_KEY not in {want.batch_key for want in floor.wants(CLASSES, None)}
    ping = enqueue_call(redis, "worker.tasks.ping", 1)
    eventually(lambda: claim_into(floor) == 1)
    run_dry(floor)
    assert ping.return_value(refresh=True) == 1
    floor.close()


def test_an_error_that_is_no_text_still_ends_its_job(floor: Floor, store: Store, redis: Redis) -> None:
    job = enqueue_call(redis, "worker.tasks.ping", description="x", kwargs={"\ud800": 1})
    claim_into(floor)
    run_dry(floor)
    assert job.get_status(refresh=True) == "failed"


def test_a_turn_that_asks_for_nothing_forgets_no_claim(
    floor: Floor, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.floor.MAX_PENDING_UPLOADS", 0)
    submit(store)
    assert floor.turn_over("w", CLASSES, None, "token") is NOTHING


def test_nothing_is_deleted_for_calls(floor: Floor, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    deleted: list[str] = []
    monkeypatch.setattr(FolderStorage, "delete_prefix", lambda _self, prefix: deleted.append(prefix))
    job = Queue("p2", connection=redis, serializer=JSONSerializer).enqueue("worker.tasks.ping", 1)
    redis.hset(keys.job(job.id), mapping={"fence": 3, "batch_key": "call", "tenant": "default", "model": "call"})
    claim_into(floor)
    run_dry(floor)
    assert job.return_value(refresh=True) == 1
    floor.close()
    assert deleted == []


def test_what_a_run_took_is_told_without_the_loading_of_its_model(
    store: Store, make_settings: SettingsFactory, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [100.0]
    monkeypatch.setattr("worker.ends.time.monotonic", lambda: now_s[0])

    def slow(_spec: ModelSpec) -> Engine:
        now_s[0] += 60
        return FakeEngine()

    floor = Floor(store, load_registry(), make_settings(), load=slow)
    submit(store, steps=1)
    claim_into(floor)
    now_s[0] += 2
    run_dry(floor)
    floor.close()
    jobs, _cost, _gpu_ms, run_ms, *_ = map(float, redis.hget("gm:pace", SPEC.batch_key).split())
    assert (jobs, run_ms) == (1, 2000)
    assert floor._ends._begun_s == {}


def test_how_loaded_models_batch_is_told_at_once_and_remembered(floor: Floor, store: Store, redis: Redis) -> None:
    floor.report()
    assert store.forwards.batching() == {}
    submit(store)
    claim_into(floor)
    floor.report()
    assert store.forwards.batching() == {SPEC.batch_key: "step"}
    assert 0 < redis.ttl(keys.PREFIXES["batching"]) <= keys.CURVES_TTL_S
