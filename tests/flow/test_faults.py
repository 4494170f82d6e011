"""Kills, outages and shutdowns with real processes: nothing is lost, nothing is done twice."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer
from redis import Redis

from genmill.jobs import JobState
from genmill.store import Store
from tests.fleet import Fleet, Valkey, eventually, free_port
from tests.flow.conftest import Submit
from tests.receiver import receiving


def states(store: Store, ids: list[str]) -> list[JobState | None]:
    return [record and record.state for record in store.get_many(ids)]


def have_all(store: Store, ids: list[str], state: JobState) -> Callable[[], bool]:
    return lambda: all(found is state for found in states(store, ids))


def some_run(store: Store, ids: list[str]) -> bool:
    records = [record for record in store.get_many(ids) if record]
    return any(record.state is JobState.RUNNING and (record.progress or {}).get("step", 0) > 0 for record in records)


def no_slot_is_taken(redis: Redis) -> bool:
    return not list(redis.scan_iter("gm:run:*")) and not list(redis.scan_iter("gm:parked:*"))


def test_jobs_of_a_killed_worker_finish_once_on_another(
    fleet: Fleet, store: Store, submit: Submit, redis: Redis, tmp_path: Path
) -> None:
    with receiving() as receiver:
        ids = [submit(steps=40 + n % 7, webhook=receiver.url, seed=n) for n in range(24)]
        first = fleet.worker(queues="p0 p1 p2 p3", name="first")
        eventually(lambda: some_run(store, ids), within_s=60)
        first.kill()
        fleet.scheduler()
        fleet.worker(name="second")
        eventually(have_all(store, ids, JobState.SUCCEEDED), within_s=90)
        eventually(lambda: len({d.message_id for d in receiver.deliveries}) >= len(ids))
        told = [delivery.message_id for delivery in receiver.deliveries]
    records = [record for record in store.get_many(ids) if record]
    assert any(record.fence > 1 for record in records), "the kill came too late to show anything"
    assert sorted({message.split("_")[1] for message in told}) == sorted(ids)
    assert len(set(told)) == len(ids)
    for record in records:
        folder = tmp_path / "outputs" / "outputs" / record.job_id
        assert eventually(lambda folder=folder: [p.name for p in folder.iterdir()]) == [str(record.fence)]
        assert [p.name for p in folder.glob("*/*.png")] == ["0.png"]
        assert record.result["outputs"][0]["key"] == f"outputs/{record.job_id}/{record.fence}/0.png"
    assert eventually(lambda: no_slot_is_taken(redis))


def test_a_frozen_workers_late_commit_is_refused(fleet: Fleet, store: Store, submit: Submit) -> None:
    ids = [submit(steps=80, seed=n) for n in range(8)]
    frozen = fleet.worker(queues="p0 p1", name="frozen")
    eventually(lambda: some_run(store, ids), within_s=60)
    frozen.signal(signal.SIGSTOP)
    fleet.scheduler()
    fleet.worker(queues="p0 p1", name="other")
    eventually(have_all(store, ids, JobState.SUCCEEDED), within_s=90)
    before = [record and (record.fence, record.result) for record in store.get_many(ids)]
    frozen.signal(signal.SIGCONT)
    eventually(lambda: "leaves the batch" in frozen.log.read_text() or "no longer ours" in frozen.log.read_text())
    assert frozen.stop() == 0
    assert [record and (record.fence, record.result) for record in store.get_many(ids)] == before


def test_sigterm_gives_work_back_with_nothing_charged(fleet: Fleet, store: Store, submit: Submit) -> None:
    ids = [submit(steps=100, num_images=4, seed=n) for n in range(16)]
    worker = fleet.worker(queues="p1", name="leaving", GENMILL_GRACE_S="0")
    eventually(lambda: some_run(store, ids), within_s=60)
    assert worker.stop() == 0
    found = states(store, ids)
    assert set(found) <= {JobState.QUEUED, JobState.SUCCEEDED}
    assert JobState.QUEUED in found
    assert store.reap().requeued == 0, "a lease was left to run out"
    assert sum(store.queue_depths().values()) == found.count(JobState.QUEUED)


def test_within_the_grace_a_leaving_worker_finishes_its_batch(fleet: Fleet, store: Store, submit: Submit) -> None:
    ids = [submit(steps=30, seed=n) for n in range(4)]
    worker = fleet.worker(queues="p1", name="leaving", GENMILL_GRACE_S="30")
    eventually(lambda: some_run(store, ids), within_s=60)
    assert worker.stop(within_s=40) == 0
    assert set(states(store, ids)) == {JobState.SUCCEEDED}


def test_redis_killed_and_started_again(
    fleet: Fleet, server: Valkey, store: Store, submit: Submit, redis: Redis
) -> None:
    fleet.scheduler(), fleet.worker()
    ids = [submit(steps=20, seed=n) for n in range(4)]
    eventually(have_all(store, ids, JobState.SUCCEEDED), within_s=60)
    more = [submit(steps=60, seed=n) for n in range(8)]
    server.kill()
    time.sleep(2)  # an outage has a length
    server.start()
    back = time.monotonic()
    probe = submit(steps=1)
    eventually(have_all(store, [probe], JobState.SUCCEEDED), within_s=10)
    assert time.monotonic() - back < 10
    eventually(have_all(store, more, JobState.SUCCEEDED), within_s=60)
    assert all(process.is_alive() for process in fleet.processes)
    assert eventually(lambda: no_slot_is_taken(redis))


def test_a_redis_that_comes_back_empty_knows_its_workers_again(
    fleet: Fleet, store: Store, submit: Submit, redis: Redis
) -> None:
    fleet.scheduler(), fleet.worker("--name", "loyal")
    eventually(lambda: redis.sismember("rq:workers", "rq:worker:loyal"), within_s=30)
    redis.flushall()
    job_id = submit(steps=1)
    eventually(have_all(store, [job_id], JobState.SUCCEEDED), within_s=60)
    eventually(lambda: redis.sismember("rq:workers", "rq:worker:loyal"))
    assert "loyal" in fleet.rq("info")


@pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow:DeprecationWarning")
def test_a_storage_outage_costs_waiting_not_gpu_work(
    fleet: Fleet, store: Store, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    import boto3

    port = free_port()
    access = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1"}
    for name, value in access.items():
        monkeypatch.setenv(name, value)
    endpoint = f"http://127.0.0.1:{port}"
    worker = fleet.worker(
        **access, GENMILL_STORAGE_URL="s3://outputs/x", GENMILL_STORAGE_ENDPOINT_URL=endpoint, GENMILL_RENEW_S="0.5"
    )
    job_id = submit(steps=5)
    eventually(lambda: "is not stored yet" in worker.log.read_text(), within_s=60)
    s3 = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    s3.start()
    try:
        boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket="outputs")
        eventually(have_all(store, [job_id], JobState.SUCCEEDED), within_s=30)
    finally:
        s3.stop()
    record = store.get(job_id)
    assert record is not None
    assert record.fence == 1
    assert record.result["receipt"]["forwards"] == 5


def test_a_receiver_that_was_down_gets_the_same_message_later(fleet: Fleet, store: Store, submit: Submit) -> None:
    from standardwebhooks import Webhook

    from genmill.links import Links

    fleet.scheduler()
    fleet.worker(GENMILL_CALLBACK_DELAYS_S="[0, 1, 1]")
    with receiving(503, 302) as receiver:
        job_id = submit("captions", prompt="a red", webhook=receiver.url)
        eventually(lambda: len(receiver.deliveries) >= 3, within_s=60)
        eventually(lambda: len(store.redis.lrange(f"gm:deliveries:{job_id}", 0, -1)) == 3)
    assert len({d.message_id for d in receiver.deliveries}) == 1
    assert len({d.body for d in receiver.deliveries}) == 1
    secret = Links(store.settings).webhook_secret("a")
    for delivery in receiver.deliveries:
        event = Webhook(secret).verify(delivery.body, delivery.headers)
        assert (event["type"], event["data"]["id"]) == ("job.succeeded", job_id)


def test_one_leader_and_a_standby_that_takes_over(fleet: Fleet, store: Store, redis: Redis) -> None:
    first = fleet.scheduler()
    eventually(lambda: redis.get("gm:leader"), within_s=20)
    leader = redis.get("gm:leader")
    fleet.scheduler()
    threading.Event().wait(1.5)  # the standby has had its chance to take over
    assert redis.get("gm:leader") == leader
    first.kill()
    eventually(lambda: redis.get("gm:leader") not in (None, leader), within_s=15)
    assert redis.get("gm:epoch") == b"2"
