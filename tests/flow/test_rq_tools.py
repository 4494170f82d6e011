"""RQ's own tools against the running fleet: they tell the truth and their commands work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from redis import Redis
from rq import Callback, Queue, Repeat, Retry
from rq.command import send_stop_job_command
from rq.job import Job, JobStatus
from rq.registry import DeferredJobRegistry, FailedJobRegistry, ScheduledJobRegistry
from rq.serializers import JSONSerializer

from genmill.jobs import JobState
from genmill.queues import PriorityQueue
from genmill.store import Store
from tests.fleet import Fleet, eventually
from tests.flow.conftest import Submit
from tests.flow.test_faults import have_all, some_run, states
from tests.receiver import receiving


def test_info_shows_workers_and_waiting_jobs(fleet: Fleet, store: Store, submit: Submit, redis: Redis) -> None:
    submit(), submit(), submit(job_class="p3")
    text = fleet.rq("info", "--raw")
    assert "queue p1 2" in text
    assert "queue p3 1" in text
    fleet.worker("--name", "shown")
    eventually(lambda: "shown" in fleet.rq("info", "--only-workers"), within_s=30, every_s=0.5)


def test_burst_and_max_jobs_end_by_themselves(fleet: Fleet, store: Store, submit: Submit) -> None:
    ids = [submit(steps=2, seed=n) for n in range(5)]
    assert fleet.worker("--max-jobs", "2", queues="p1").wait(60) == 0
    assert states(store, ids).count(JobState.SUCCEEDED) == 2
    assert fleet.worker("--burst", queues="p0 p1").wait(60) == 0
    assert states(store, ids).count(JobState.SUCCEEDED) == 5


def test_a_burst_delivers_the_callbacks_of_its_own_jobs(fleet: Fleet, store: Store, submit: Submit) -> None:
    with receiving() as receiver:
        job_id = submit("captions", prompt="a red", webhook=receiver.url)
        assert fleet.worker("--burst").wait(60) == 0
        assert [json.loads(d.body)["data"]["id"] for d in receiver.deliveries] == [job_id]


def test_garbage_on_the_command_channel_is_survived(fleet: Fleet, store: Store, submit: Submit, redis: Redis) -> None:
    worker = fleet.worker("--name", "w1", queues="p1")
    eventually(lambda: redis.hget("rq:worker:w1", "state") == b"idle", within_s=30)
    for message in ("garbage", "[]", "{}", '{"command": "stop-job"}'):
        redis.publish("rq:pubsub:w1", message)
    redis.publish("rq:pubsub:w1", '{"command": "shutdown"}')
    assert worker.wait(30) == 0


def test_requeue_runs_a_failed_job_again(fleet: Fleet, store: Store, submit: Submit, redis: Redis) -> None:
    job_id = submit("captions", prompt="a red")
    redis.hset(f"rq:job:{job_id}", "data", json.dumps(["worker.tasks.generate", None, [{"model": "captions"}], {}]))
    fleet.worker(queues="p1")
    eventually(have_all(store, [job_id], JobState.FAILED), within_s=60)
    redis.hset(
        f"rq:job:{job_id}",
        "data",
        json.dumps(["worker.tasks.generate", None, [{"model": "captions", "input": {"prompt": "a red"}}], {}]),
    )
    fleet.rq("requeue", "--queue", "p1", "--all", "-S", "json")
    eventually(have_all(store, [job_id], JobState.SUCCEEDED), within_s=60)
    assert job_id not in FailedJobRegistry("p1", connection=redis, serializer=JSONSerializer).get_job_ids()


def test_suspend_and_resume(fleet: Fleet, store: Store, submit: Submit, redis: Redis) -> None:
    fleet.worker("--name", "w1")
    eventually(lambda: redis.hget("rq:worker:w1", "state") == b"idle", within_s=30)
    fleet.rq("suspend")
    eventually(lambda: redis.hget("rq:worker:w1", "state") == b"suspended")
    job_id = submit(steps=1)
    assert states(store, [job_id]) == [JobState.QUEUED]
    fleet.rq("resume")
    eventually(have_all(store, [job_id], JobState.SUCCEEDED), within_s=60)


def test_the_stop_command_and_our_cancel_reach_a_running_job(
    fleet: Fleet, store: Store, submit: Submit, redis: Redis
) -> None:
    by_rq, by_us, left = (submit(steps=100, num_images=4, seed=n) for n in range(3))
    fleet.worker(queues="p1")
    eventually(lambda: some_run(store, [by_rq]) and some_run(store, [by_us]), within_s=60)
    send_stop_job_command(redis, by_rq, serializer=JSONSerializer)
    assert store.cancel(by_us) == "interrupting"
    eventually(have_all(store, [by_rq, by_us], JobState.CANCELED))
    for job_id, status in ((by_rq, JobStatus.STOPPED), (by_us, JobStatus.CANCELED)):
        assert Job.fetch(job_id, connection=redis, serializer=JSONSerializer).get_status() == status
        record = store.get(job_id)
        assert record is not None
        assert record.error is not None
        assert record.error["message"].startswith("interrupted at step")
    eventually(have_all(store, [left], JobState.SUCCEEDED), within_s=60)


def test_jobs_put_by_a_plain_rq_queue_run(fleet: Fleet, store: Store, redis: Redis) -> None:
    fleet.worker()
    queue = Queue("p1", connection=redis, serializer=JSONSerializer)
    plain = queue.enqueue("worker.tasks.ping", "hello")
    full = queue.enqueue(
        "worker.tasks.generate", {"model": "captions", "input": {"prompt": "a red", "max_tokens": 12}}
    )
    bad = queue.enqueue("worker.tasks.generate", {"model": "nope", "input": {}})
    evil = Queue("p1", connection=redis).enqueue("os.getcwd")
    eventually(lambda: plain.get_status(refresh=True) == JobStatus.FINISHED, within_s=30)
    assert plain.return_value() == "hello"
    eventually(have_all(store, [full.id], JobState.SUCCEEDED), within_s=60)
    record = store.get(full.id)
    assert record is not None
    assert record.result["text"]["text"]
    eventually(have_all(store, [bad.id, evil.id], JobState.FAILED))
    reasons = [record.error["message"] for record in store.get_many([bad.id, evil.id]) if record and record.error]
    assert "nope" in reasons[0]
    assert "GENMILL_FUNCTIONS" in reasons[1]


def test_retries_callbacks_dependents_and_repeats_work_as_in_rq(fleet: Fleet, redis: Redis, tmp_path: Path) -> None:
    names = [f"tests.flow.functions.{name}" for name in ("flaky", "tell_success", "tell_failure")]
    flaky, on_success, on_failure = names
    fleet.scheduler()
    fleet.worker(GENMILL_FUNCTIONS=json.dumps([*names, "worker.tasks.ping"]))
    queue = Queue("p1", connection=redis, serializer=JSONSerializer)
    parent = queue.enqueue(
        flaky,
        str(tmp_path / "runs"),
        2,
        retry=Retry(max=2, interval=[0, 1]),
        on_success=Callback(on_success),
        on_failure=Callback(on_failure),
    )
    child = queue.enqueue("worker.tasks.ping", "after", depends_on=parent)
    repeated = queue.enqueue("worker.tasks.ping", "again", repeat=Repeat(times=2, interval=[0, 1]))
    eventually(lambda: child.get_status(refresh=True) == JobStatus.FINISHED, within_s=60)
    assert (parent.return_value(), child.return_value()) == (3, "after")
    assert [line.decode().removeprefix(parent.id) for line in redis.lrange("told", 0, -1)] == [
        " raised run 1",
        " raised run 2",
        " returned 3",
    ]
    eventually(lambda: len(repeated.results()) == 3, within_s=60)
    assert repeated.get_status(refresh=True) == JobStatus.FINISHED
    for kind in (DeferredJobRegistry, FailedJobRegistry, ScheduledJobRegistry):
        assert kind("p1", connection=redis, serializer=JSONSerializer).count == 0


def test_rqs_own_cancel_of_a_waiting_job_reaches_its_webhook(
    fleet: Fleet, store: Store, submit: Submit, redis: Redis
) -> None:
    with receiving() as receiver:
        canceled, deleted = submit(webhook=receiver.url), submit(webhook=receiver.url)
        Job.fetch(canceled, connection=redis, serializer=JSONSerializer).cancel()
        Job.fetch(deleted, connection=redis, serializer=JSONSerializer).delete()
        fleet.scheduler()
        fleet.worker(queues="callbacks")
        eventually(lambda: receiver.deliveries, within_s=30)
        assert fleet.worker("--burst", queues="p1 callbacks", name="w2").wait(60) == 0
        told = [json.loads(delivery.body) for delivery in receiver.deliveries]
        assert [(one["type"], one["data"]["id"]) for one in told] == [("job.canceled", canceled)]


def test_the_queue_counts_lists_and_empties_lanes(
    store: Store, submit: Submit, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GENMILL_REDIS_URL", store.settings.redis_url)
    ids = [submit() for _ in range(3)]
    queue = PriorityQueue("p1", connection=redis)
    assert (queue.count, queue.get_job_ids(), queue.get_job_position(ids[2])) == (3, ids, 2)
    assert queue.get_job_ids(1, 1) == [ids[1]]
    assert queue.empty() == 3
    assert set(states(store, ids)) == {JobState.CANCELED}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_rq_dashboard_shows_the_fleet(
    fleet: Fleet, store: Store, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flask import Flask
    from rq_dashboard import blueprint
    from rq_dashboard.web import setup_rq_connection

    job_id = submit("captions", prompt="a red")
    fleet.worker("--name", "seen", queues="p1")
    eventually(have_all(store, [job_id], JobState.SUCCEEDED), within_s=60)
    app = Flask("dashboard")
    app.config.update(RQ_DASHBOARD_REDIS_URL=[store.settings.redis_url])
    monkeypatch.setattr("rq_dashboard.web.config.serializer", JSONSerializer)  # what `rq-dashboard --json` sets
    setup_rq_connection(app)
    app.register_blueprint(blueprint)
    client = app.test_client()
    queues = client.get("/0/data/queues.json").get_json()["queues"]
    assert {"name": "p1", "finished_job_registry_count": 1}.items() <= next(
        q for q in queues if q["name"] == "p1"
    ).items()
    assert "seen" in client.get("/0/data/workers.json").get_data(as_text=True)
    job = client.get(f"/0/data/job/{job_id}.json").get_json()
    assert job["status"] == "finished"
