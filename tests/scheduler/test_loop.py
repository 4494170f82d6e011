"""The scheduler's tick with a real store and an injected clock."""

from __future__ import annotations

import threading

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from rq.registry import ScheduledJobRegistry
from rq.serializers import JSONSerializer

from genmill import keys
from genmill.jobs import JobRequest, JobState, new_job_id
from genmill.keys import JobClass
from genmill.registry import load_registry
from genmill.store import Outcome, Settlement, Store, Want
from scheduler.loop import LEAST_LEAD_S, LEAST_PAUSE_S, Scheduler
from tests.conftest import SettingsFactory
from tests.fleet import eventually

SPEC = load_registry().get("shapes")
WANTS = [Want(SPEC.batch_key, 8, False)]


def submit(store: Store) -> str:
    return store.submit(JobRequest(new_job_id(), "a", SPEC, SPEC.parse_input({"prompt": "x"}), job_class=JobClass.P1))[
        0
    ]


def state(store: Store, job_id: str) -> JobState:
    record = store.get(job_id)
    assert record is not None
    return record.state


def test_only_one_leads_and_the_epoch_grows(store: Store, redis: Redis) -> None:
    first, second = Scheduler(store, "one"), Scheduler(store, "two")
    first.tick()
    second.tick()
    assert redis.get("gm:leader") == b"one"
    store.resign("one")
    second.tick()
    assert (redis.get("gm:leader"), redis.get("gm:epoch")) == (b"two", b"2")


def test_a_tick_forgets_tenants_that_have_nothing_here(store: Store, redis: Redis) -> None:
    redis.hset("gm:vt", mapping={"gone": 1, "ahead": 3})
    redis.set("gm:vclock", 2)
    Scheduler(store, "one").tick()
    assert redis.hkeys("gm:vt") == [b"ahead"]


def test_who_leads_anew_moves_delayed_jobs_at_once_also_after_a_leader_that_was_killed(
    store: Store, redis: Redis
) -> None:
    killed, standby = Scheduler(store, "one"), Scheduler(store, "two")
    killed.tick()
    job_id = submit(store)
    (claim,) = store.claim("w", ["p1"], WANTS).claims
    store.settle([Settlement(job_id, claim.fence, Outcome.SCHEDULED, delay_ms=0)])
    redis.zadd("rq:scheduled:p1", {job_id: 1})
    redis.delete("gm:leader")  # its lead has run out, its locks have not
    standby.tick()
    assert [one.job_id for one in store.claim("w", ["p1"], WANTS).claims] == [job_id]


def test_a_leader_that_is_not_confirmed_does_not_count_on_its_lead(store: Store) -> None:
    now = [100.0]
    leader, other = Scheduler(store, "one", clock=lambda: now[0]), Scheduler(store, "two", clock=lambda: now[0])
    assert not leader.leads()
    leader.tick()
    other.tick()
    assert (leader.leads(), other.leads()) == (True, False)
    now[0] += keys.SCHEDULER_LOCK_TTL_S - LEAST_LEAD_S
    assert not leader.leads()


def test_one_tick_moves_on_all_whose_dependency_has_ended(store: Store, redis: Redis) -> None:
    parent, job_input = submit(store), SPEC.parse_input({"prompt": "x"})
    depends_on = {parent: "/depends_on/0"}
    asked = [JobRequest(new_job_id(), "a", SPEC, job_input, depends_on=depends_on) for _ in range(450)]
    store.submit_many(asked)
    (claim,) = store.claim("w", ["p1"], WANTS).claims
    store.settle([Settlement(claim.job_id, claim.fence, Outcome.FINISHED, {})])
    assert store.queue_depths()["p1"] < 450
    Scheduler(store, "one").tick()
    assert store.queue_depths()["p1"] == 450
    assert redis.exists(keys.PREFIXES["chained"]) == 0


STEPS = [keys.PREFIXES["chained"], keys.PREFIXES["ttl"], "rq:scheduled:p1"]


@pytest.mark.parametrize("key", STEPS)
def test_an_error_of_one_step_stops_no_other(
    key: str, store: Store, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    parent, job_input = submit(store), SPEC.parse_input({"prompt": "x"})
    depends_on = {parent: "/depends_on/0"}
    left = store.submit(JobRequest(new_job_id(), "a", SPEC, job_input, depends_on=depends_on))[0]
    redis.delete(f"{keys.job(parent)}:dependents")  # so that the scheduler has to see it
    (claim,) = store.claim("w", ["p1"], WANTS).claims
    store.settle([Settlement(parent, claim.fence, Outcome.FINISHED, {})])
    delayed, late = submit(store), submit(store)
    (claim,) = store.claim("w", ["p1"], [Want(SPEC.batch_key, 1, False)]).claims
    store.settle([Settlement(delayed, claim.fence, Outcome.SCHEDULED, delay_ms=0)])
    redis.zadd(keys.PREFIXES["ttl"], {late: 1})
    redis.zadd(keys.PREFIXES["chained"], {f"a/{left}": 1})
    redis.delete(key)
    redis.set(key, "of the wrong type", ex=60)
    Scheduler(store, "one").tick()
    statuses = [redis.hget(keys.job(one), "status") for one in (left, late, delayed)]
    done, undone = [b"queued", b"failed", b"queued"], [b"deferred", b"queued", b"scheduled"]
    assert statuses == [undone[at] if key == STEPS[at] else done[at] for at in range(3)]
    assert redis.hget("gm:lim", "epoch") == b"1"
    assert "WRONGTYPE" in caplog.text


def test_an_outage_ends_the_tick_and_an_error_of_a_script_is_none(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = Scheduler(store, "one")

    def fail_with(error: Exception) -> None:
        def fail(*_: object) -> int:
            raise error

        monkeypatch.setattr(store, "revisit", fail)

    fail_with(ResponseError("WRONGTYPE"))
    leader.tick()
    fail_with(RedisConnectionError("away"))
    with pytest.raises(RedisConnectionError):
        leader.tick()


def test_a_leader_cannot_publish_once_another_leads(store: Store) -> None:
    Scheduler(store, "one").tick()
    store.resign("one")
    assert store.lead("two", 10) == 2
    assert not store.publish_limits(1, {"all": 0}, ttl_s=60)
    assert store.publish_limits(2, {"all": 0}, ttl_s=60)


def test_a_leader_that_stops_resigns_at_once(store: Store, redis: Redis) -> None:
    stop = threading.Event()
    leader = Scheduler(store, "one")
    leader.tick()
    stop.set()
    leader.run(stop)
    assert redis.get("gm:leader") is None
    assert not redis.exists("rq:scheduler-lock:p1")


def test_after_an_outage_workers_may_renew_before_anything_is_reaped(
    redis: Redis, make_settings: SettingsFactory
) -> None:
    store = Store(redis, make_settings(lease_s=0.002, renew_s=0.001))
    now = [100.0]
    leader = Scheduler(store, "one", clock=lambda: now[0])
    job_id = submit(store)
    store.claim("w", ["p1"], WANTS)
    eventually(lambda: redis.zrangebyscore("gm:run:global", 0, redis.time()[0] * 1000 + redis.time()[1] / 1000 - 3))
    leader.note_outage()
    leader.tick()
    assert state(store, job_id) is JobState.RUNNING
    now[0] += LEAST_PAUSE_S
    leader.tick()
    assert state(store, job_id) is JobState.QUEUED


def test_a_scheduled_job_whose_time_has_come_is_claimable_again(store: Store, redis: Redis) -> None:
    job_id = submit(store)
    (claim,) = store.claim("w", ["p1"], WANTS).claims
    store.settle([Settlement(job_id, claim.fence, Outcome.SCHEDULED, delay_ms=0)])
    Scheduler(store, "one").tick()
    assert ScheduledJobRegistry("p1", connection=redis, serializer=JSONSerializer).get_job_ids() == []
    (again,) = store.claim("w", ["p1"], WANTS).claims
    assert (again.job_id, again.fence, again.call) == (job_id, 2, claim.call)


def test_static_limits_are_published_with_the_leaders_epoch(make_settings: SettingsFactory, redis: Redis) -> None:
    Scheduler(Store(redis, make_settings(limits={"all": 5})), "one").tick()
    assert (redis.hget("gm:lim", "epoch"), redis.hgetall("gm:lim:now")) == (b"1", {b"all": b"5.0"})
