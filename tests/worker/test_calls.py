"""Plain calls on a real floor and store: RQ's callbacks, what they may be, and when they run."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis
from rq import Callback, Queue, Retry
from rq.job import Job
from rq.serializers import JSONSerializer

from genmill import keys
from genmill.jobs import JobState
from genmill.registry import load_registry
from genmill.store import Outcome, Store
from tests.conftest import SettingsFactory
from tests.fleet import eventually
from tests.worker import calls
from tests.worker.doubles import FakeEngine
from tests.worker.test_floor import claim_into, run_dry
from worker.floor import Floor

HERE = "tests.worker.calls"
NAMES = ("double", "fail", "unstorable", "wait", "on_success", "on_failure", "on_stopped", "bad_success",
    "bad_failure", "slow_success")  # fmt: skip


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    calls.heard.clear()
    calls.GATE.clear()
    yield
    calls.GATE.set()


@pytest.fixture
def floor(store: Store, make_settings: SettingsFactory) -> Iterator[Floor]:
    settings = make_settings(functions=("worker.tasks.ping", *(f"{HERE}.{name}" for name in NAMES)))
    floor = Floor(store, load_registry(), settings, load=lambda _spec: FakeEngine())
    yield floor
    floor.close()


def enqueue(redis: Redis, function: str, *args: object, **options: Any) -> Job:
    """Callbacks by their names in the module of functions, with a timeout each if it is given."""
    for event in ("on_success", "on_failure", "on_stopped"):
        if event in options:
            name, timeout = options[event] if isinstance(options[event], tuple) else (options[event], None)
            options[event] = Callback(f"{HERE}.{name}", timeout=timeout)
    queue = Queue("p1", connection=redis, serializer=JSONSerializer)
    return queue.enqueue(function if "." in function else f"{HERE}.{function}", *args, **options)


def run(floor: Floor) -> None:
    assert claim_into(floor) == 1
    run_dry(floor)


def message(store: Store, job: Job) -> tuple[str, str]:
    """Of its error: code and message."""
    record = store.get(job.id)
    assert record is not None
    assert record.error is not None
    return record.error["code"], record.error["message"]


def test_a_success_is_told_in_the_functions_thread_before_it_is_recorded(floor: Floor, redis: Redis) -> None:
    job = enqueue(redis, "double", 4, on_success="on_success", on_failure="on_failure")
    run(floor)
    assert job.return_value() == 8
    thread = f"call {job.id}"
    assert calls.heard == [("double", thread), ("success", job.id, True, 8, thread, "finished")]


def test_a_failure_is_told_with_what_was_raised(floor: Floor, store: Store, redis: Redis) -> None:
    job = enqueue(redis, "fail", on_success="on_success", on_failure="on_failure")
    run(floor)
    assert calls.heard == [("failure", job.id, True, "ValueError", "it broke", True)]
    assert message(store, job) == ("job_failed", "ValueError: it broke")


def test_a_success_callback_that_raises_fails_the_job_as_in_rq(floor: Floor, store: Store, redis: Redis) -> None:
    job = enqueue(redis, "double", 1, on_success="bad_success", on_failure="on_failure")
    run(floor)
    assert calls.heard[1:] == [("failure", job.id, True, "LookupError", "no success", True)]
    assert message(store, job) == ("job_failed", "LookupError: no success")
    latest = job.latest_result()
    assert latest is not None
    assert "bad_success" in str(latest.exc_string)


def test_what_a_failure_callback_raises_is_recorded_as_in_rq(floor: Floor, store: Store, redis: Redis) -> None:
    job = enqueue(redis, "fail", on_failure="bad_failure")
    run(floor)
    assert message(store, job) == ("job_failed", "LookupError: no failure")


def test_a_result_that_cannot_be_stored_is_a_failure_and_no_success(floor: Floor, store: Store, redis: Redis) -> None:
    job = enqueue(redis, "unstorable", on_success="on_success", on_failure="on_failure")
    run(floor)
    assert [kind for kind, *_ in calls.heard] == ["failure"]
    assert message(store, job)[1].startswith("TypeError")


@pytest.mark.parametrize("event", ["on_success", "on_failure", "on_stopped"])
def test_a_job_whose_callback_is_not_allowed_does_not_run(
    floor: Floor, store: Store, redis: Redis, event: str
) -> None:
    job = enqueue(redis, "double", 1, retry=Retry(max=3), **{event: "heard"})
    run(floor)
    code, text = message(store, job)
    assert code == "function_not_allowed"
    assert text.startswith(f"callback '{HERE}.heard' is not in GENMILL_FUNCTIONS")
    assert calls.heard == []
    assert job.get_status(refresh=True) == "failed"


def test_a_failure_that_is_tried_again_is_told_each_time(floor: Floor, store: Store, redis: Redis) -> None:
    job = enqueue(redis, "fail", retry=Retry(max=1), on_failure="on_failure")
    run(floor)
    assert job.get_status(refresh=True) == "queued"
    run(floor)
    assert [kind for kind, *_ in calls.heard] == ["failure", "failure"]
    assert job.get_status(refresh=True) == "failed"


def test_a_stopped_job_hears_of_it_when_its_function_has_returned(floor: Floor, store: Store, redis: Redis) -> None:
    options = dict.fromkeys(("on_success", "on_failure", "on_stopped"))
    job = enqueue(redis, "wait", **{event: event for event in options})
    assert claim_into(floor) == 1
    floor.stop_job(job.id, Outcome.STOPPED)
    run_dry(floor)
    assert job.get_status(refresh=True) == "stopped"
    assert calls.heard == []
    assert keys.CALL_BATCH_KEY not in {want.batch_key for want in floor.wants(["p1"], None)}
    calls.GATE.set()
    eventually(lambda: calls.heard == [("wait",), ("stopped", job.id, True)])


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_job_that_is_canceled_or_no_longer_ours_hears_nothing(
    floor: Floor, store: Store, redis: Redis, is_lost: bool
) -> None:
    job = enqueue(redis, "wait", on_success="on_success", on_failure="on_failure", on_stopped="on_stopped")
    assert claim_into(floor) == 1
    if is_lost:
        floor.drop_job(job.id, 1)
    else:
        floor.stop_job(job.id, Outcome.CANCELED)
    run_dry(floor)
    calls.GATE.set()
    eventually(lambda: keys.CALL_BATCH_KEY in {want.batch_key for want in floor.wants(["p1"], None)})
    assert calls.heard == [("wait",)]


def test_a_job_past_its_timeout_fails_and_hears_of_it_when_its_function_has_returned(
    floor: Floor, store: Store, redis: Redis
) -> None:
    job = enqueue(redis, "wait", job_timeout=1, on_success="on_success", on_failure="on_failure")
    run(floor)
    assert message(store, job) == ("job_failed", "the function ran longer than its timeout")
    calls.GATE.set()
    late = ("failure", job.id, True, "JobTimeoutException", "the function ran longer than its timeout", False)
    eventually(lambda: calls.heard == [("wait",), late])


def test_a_callback_has_a_timeout_of_its_own(floor: Floor, store: Store, redis: Redis) -> None:
    job = enqueue(redis, "double", 1, on_success=("slow_success", 1), on_failure="on_failure")
    run(floor)
    assert message(store, job) == ("job_failed", "the success callback ran longer than its timeout")
    calls.GATE.set()
    eventually(lambda: [kind for kind, *_ in calls.heard] == ["double", "failure"])


def test_a_generate_call_with_callbacks_is_refused(floor: Floor, store: Store, redis: Redis) -> None:
    request = {"model": "captions", "input": {"prompt": "a red"}}
    job = enqueue(redis, "worker.tasks.generate", request, on_success="on_success")
    run(floor)
    assert message(store, job)[0] == "invalid_job"


def test_a_bad_generate_call_is_not_tried_again(floor: Floor, store: Store, redis: Redis) -> None:
    job = enqueue(redis, "worker.tasks.generate", {"model": "nope", "input": {}}, retry=Retry(max=3))
    run(floor)
    assert message(store, job)[0] == "invalid_job"
    assert job.get_status(refresh=True) == "failed"


@pytest.mark.parametrize(
    ("name", "given"),
    [("init_image", "inputs/x"), ("mask_image", "inputs/x"), ("control", {"name": "canny", "image": "inputs/x"})],
)
def test_a_generate_call_may_not_name_a_place_in_the_storage(
    name: str, given: object, floor: Floor, store: Store, redis: Redis
) -> None:
    job = enqueue(redis, "worker.tasks.generate", {"model": "shapes", "input": {"prompt": "a", name: given}})
    run(floor)
    assert message(store, job) == ("invalid_job", f"{name} can only be given through the API")


def test_a_generate_call_keeps_its_retries_as_a_full_job(floor: Floor, store: Store, redis: Redis) -> None:
    request = {"model": "shapes", "input": {"prompt": "bad", "steps": 1}}
    job = enqueue(redis, "worker.tasks.generate", request, retry=Retry(max=1))
    child = enqueue(redis, "double", 1, depends_on=job.id)
    run(floor)
    run(floor)
    record = store.get(job.id)
    assert record is not None
    assert (record.state, record.model, record.error) == (
        JobState.QUEUED,
        "shapes",
        {"code": "generation_failed", "message": "bad prompt"},
    )
    request["input"]["prompt"] = "good"  # type: ignore[index]
    redis.hset(job.key, "data", JSONSerializer.dumps(("worker.tasks.generate", None, [request], {})))
    run(floor)
    record = store.get(job.id)
    assert record is not None
    assert (record.state, record.error) == (JobState.SUCCEEDED, None)
    run(floor)
    assert child.return_value() == 2


def unpickled() -> None:
    calls.heard.append(("unpickled",))


class Trap:
    """Calls `unpickled` when somebody unpickles it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return unpickled, ()


def test_a_function_that_is_not_listed_is_refused(floor: Floor, store: Store, redis: Redis) -> None:
    jobs = [enqueue(redis, name, "touch x") for name in ("os.system", "subprocess.call", "heard.append")]
    for _ in jobs:
        run(floor)
    assert {message(store, job)[0] for job in jobs} == {"function_not_allowed"}


def test_a_pickled_call_is_refused_and_never_unpickled(floor: Floor, store: Store, redis: Redis) -> None:
    job = enqueue(redis, "double", 1)
    redis.hset(job.key, "data", zlib.compress(pickle.dumps(("double", None, (Trap(),), {}))))
    run(floor)
    assert message(store, job)[0] == "function_not_allowed"
    assert calls.heard == []
    pickle.loads(pickle.dumps(Trap()))  # noqa: S301 - the trap works
    assert calls.heard == [("unpickled",)]


def test_a_hash_that_rq_cannot_read_fails_its_own_job(floor: Floor, store: Store, redis: Redis) -> None:
    job = enqueue(redis, "double", 1)
    redis.hset(job.key, "success_callback_timeout", "soon")
    run(floor)
    assert message(store, job)[0] == "invalid_job"


def test_an_end_is_told_before_the_next_call_is_taken(floor: Floor, redis: Redis) -> None:
    jobs = [enqueue(redis, "double", number) for number in range(2)]
    assert claim_into(floor) == 1
    eventually(lambda: calls.heard)
    for _ in range(20):
        assert claim_into(floor) == 0
    run_dry(floor)
    run(floor)
    assert sorted(job.return_value() for job in jobs) == [0, 2]
