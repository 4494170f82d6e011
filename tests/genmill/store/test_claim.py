"""Claims: what is taken, in which order, under which limits, and that RQ's keys tell the same story."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis
from rq.executions import Execution
from rq.job import Job, JobStatus
from rq.registry import StartedJobRegistry
from rq.serializers import JSONSerializer

from genmill import keys
from genmill.jobs import JobRequest, JobState, new_job_id
from genmill.registry import ModelSpec
from genmill.store import Outcome, Settlement, Store, Want
from tests.conftest import SettingsFactory
from tests.genmill.store.conftest import Submit

CLASSES = ["p0", "p1", "p2", "p3"]


def claim_ids(store: Store, slots: int, spec: ModelSpec, classes: list[str] = CLASSES) -> list[str]:
    return [c.job_id for c in store.claim("w", classes, [Want(spec.batch_key, slots, False)]).claims]


def test_a_claim_takes_urgent_classes_first_then_older_jobs(store: Store, submit: Submit, shapes: ModelSpec) -> None:
    late, early, urgent = submit(job_class="p2"), submit(job_class="p1"), submit(job_class="p0")
    assert claim_ids(store, 8, shapes) == [urgent, early, late]


def test_a_worker_of_some_queues_leaves_the_others(store: Store, submit: Submit, shapes: ModelSpec) -> None:
    submit(job_class="p0")
    mine = submit(job_class="p3")
    assert claim_ids(store, 8, shapes, ["p3"]) == [mine]


def test_slots_count_images_and_a_job_is_never_split(store: Store, submit: Submit, shapes: ModelSpec) -> None:
    first, _second = submit(num_images=3), submit(num_images=3)
    assert claim_ids(store, 4, shapes) == [first]


def test_a_job_larger_than_the_free_slots_goes_alone_rather_than_never(
    store: Store, submit: Submit, shapes: ModelSpec
) -> None:
    job_id = submit(num_images=4)
    assert claim_ids(store, 2, shapes) == [job_id]


def test_tenants_share_by_cost_not_by_number_of_jobs(store: Store, submit: Submit, shapes: ModelSpec) -> None:
    heavy = [submit("heavy", steps=40) for _ in range(8)]
    light = [submit("light", steps=10) for _ in range(8)]
    taken = claim_ids(store, 5, shapes)
    assert len(set(taken) & set(heavy)) == 1
    assert len(set(taken) & set(light)) == 4


def test_a_claimed_job_is_running_in_every_place_of_rq(
    redis: Redis, store: Store, submit: Submit, shapes: ModelSpec
) -> None:
    job_id = submit()
    (claim,) = store.claim("w", CLASSES, [Want(shapes.batch_key, 4, False)]).claims
    job = Job.fetch(job_id, connection=redis, serializer=JSONSerializer)
    assert job.get_status() == JobStatus.STARTED
    assert job.worker_name == "w"
    assert job.args[0]["input"]["prompt"] == "a red circle"
    registry = StartedJobRegistry("p1", connection=redis, serializer=JSONSerializer)
    assert registry.get_job_and_execution_ids() == [(job_id, f"f{claim.fence}")]
    assert Execution.fetch(f"f{claim.fence}", job_id, redis).worker_name == "w"


def test_rqs_own_cleanup_leaves_running_jobs_alone(
    redis: Redis, store: Store, submit: Submit, shapes: ModelSpec
) -> None:
    job_id = submit()
    claim_ids(store, 1, shapes)
    StartedJobRegistry("p1", connection=redis, serializer=JSONSerializer).cleanup(timestamp=2**40)
    record = store.get(job_id)
    assert record is not None
    assert record.state is JobState.RUNNING
    assert redis.llen("rq:queue:p1") == 0


def test_the_same_token_returns_the_same_batch(store: Store, submit: Submit, shapes: ModelSpec) -> None:
    submit(), submit()
    wants = [Want(shapes.batch_key, 1, False)]
    first = store.claim("w", CLASSES, wants, token="t1")
    again = store.claim("w", CLASSES, wants, token="t1")
    assert first == again
    assert store.claim("w", CLASSES, wants, token="t2").claims[0].job_id != first.claims[0].job_id


def test_a_tenant_at_its_cap_is_parked_and_comes_back(
    make_settings: SettingsFactory, redis: Redis, submit: Submit, shapes: ModelSpec
) -> None:
    store = Store(redis, make_settings(limits={"tenant:a": 2}))
    for _ in range(4):
        submit("a", store=store)
    other = submit("b", store=store)
    claims = store.claim("w", CLASSES, [Want(shapes.batch_key, 8, False)]).claims
    assert sorted(c.tenant for c in claims) == ["a", "a", "b"]
    blocked = store.claim("w", CLASSES, [Want(shapes.batch_key, 8, False)])
    assert (blocked.claims, blocked.why) == ((), "empty")
    done = next(c for c in claims if c.tenant == "a")
    store.settle([Settlement(done.job_id, done.fence, Outcome.FINISHED, {})])
    assert [c.tenant for c in store.claim("w", CLASSES, [Want(shapes.batch_key, 8, False)]).claims] == ["a"]
    assert other in {c.job_id for c in claims}


def test_limits_of_class_model_and_fleet_hold_and_are_named(
    make_settings: SettingsFactory, redis: Redis, submit: Submit, shapes: ModelSpec
) -> None:
    for _ in range(3):
        submit()
    wants = [Want(shapes.batch_key, 8, False)]
    for scope, why in {"class:p1": "class:p1", "model:shapes": "model:shapes", "all": "all"}.items():
        claimed = Store(redis, make_settings(limits={scope: 0})).claim("w", CLASSES, wants)
        assert (claimed.claims, claimed.why) == ((), f"limit {why}")
    assert len(Store(redis, make_settings(limits={"model:shapes": 2})).claim("w", CLASSES, wants).claims) == 2


def test_published_limits_override_until_they_expire_and_older_epochs_are_refused(
    store: Store, submit: Submit, shapes: ModelSpec
) -> None:
    submit()
    assert store.publish_limits(7, {"all": 0}, ttl_s=60)
    assert not store.publish_limits(6, {}, ttl_s=60)
    assert claim_ids(store, 1, shapes) == []
    assert store.publish_limits(7, {"all": 0}, ttl_s=-1)
    assert len(claim_ids(store, 1, shapes)) == 1


def test_a_suspended_fleet_claims_nothing(redis: Redis, store: Store, submit: Submit, shapes: ModelSpec) -> None:
    submit()
    redis.set("rq:suspended", 1)
    assert store.claim("w", CLASSES, [Want(shapes.batch_key, 1, False)]).why == "suspended"


def test_a_resident_model_keeps_its_turn_until_another_is_overdue(
    redis: Redis, store: Store, submit: Submit, shapes: ModelSpec
) -> None:
    submit(job_class="p3")
    other = submit(job_class="p1")
    # The other job is moved to a batch key of another model, first fresh, then overdue.
    redis.zrem(keys.ready("p1", shapes.batch_key), other)
    redis.zrem(f"gm:lane:p1:{shapes.batch_key}:a", other)
    redis.zrem(f"gm:act:p1:{shapes.batch_key}", "a")
    redis.zrem(keys.batch_key_heads("p1"), shapes.batch_key)
    far = 10**15
    for vd, expected in ((far, shapes.batch_key), (1, "captions@1/auto")):
        redis.hset(keys.job(other), mapping={"batch_key": "captions@1/auto", "vd": vd})
        redis.zadd("gm:lane:p1:captions@1/auto:a", {other: vd})
        redis.zadd(keys.ready("p1", "captions@1/auto"), {other: vd})
        redis.zadd("gm:act:p1:captions@1/auto", {"a": 0})
        redis.zadd(keys.batch_key_heads("p1"), {"captions@1/auto": vd})
        wants = [Want(shapes.batch_key, 1, is_resident=True), Want("captions@1/auto", 1)]
        (claim,) = store.claim("w", CLASSES, wants).claims
        assert claim.batch_key == expected
        store.settle([Settlement(claim.job_id, claim.fence, Outcome.RETURNED)])


def test_a_foreign_push_of_a_plain_function_is_adopted(redis: Redis, store: Store) -> None:
    from rq import Queue

    job = Queue("p1", connection=redis, serializer=JSONSerializer).enqueue("worker.tasks.ping", "x")
    (claim,) = store.claim("w", CLASSES, [Want(keys.CALL_BATCH_KEY, 1, True)]).claims
    assert claim.job_id == job.id
    assert claim.call == ("worker.tasks.ping", ["x"], {})


def test_raised_limits_free_a_parked_tenant_that_runs_nothing(
    make_settings: SettingsFactory, redis: Redis, submit: Submit, shapes: ModelSpec
) -> None:
    store, strict = Store(redis, make_settings()), Store(redis, make_settings(limits={"tenant:a": 0}))
    job_id = submit()
    for free in (store.reap, lambda: store.publish_limits(1, {"tenant:b": 1}, ttl_s=60)):
        assert claim_ids(strict, 1, shapes) == []
        assert claim_ids(store, 1, shapes) == []
        free()
        (claim,) = store.claim("w", CLASSES, [Want(shapes.batch_key, 1, False)]).claims
        assert claim.job_id == job_id
        store.settle([Settlement(job_id, claim.fence, Outcome.RETURNED)])


def die_with_all(store: Store, spec: ModelSpec, redis: Redis) -> None:
    """Workers take all that they can get, and die."""
    while claims := store.claim("dead", CLASSES, [Want(spec.batch_key, 32)]).claims:
        redis.zadd("gm:run:global", {claim.job_id: 1 for claim in claims})
    store.reap()


def test_before_its_last_crash_a_job_runs_alone(redis: Redis, store: Store, submit: Submit, shapes: ModelSpec) -> None:
    suspects = {submit() for _ in range(3)}
    wants = [Want(shapes.batch_key, 8)]
    die_with_all(store, shapes, redis)
    assert {c.job_id for c in store.claim("w", CLASSES, wants, token="t").claims} == suspects
    redis.zadd("gm:run:global", dict.fromkeys(suspects, 1))
    store.reap()
    fresh = {submit() for _ in range(3)}
    assert store.claim("w", CLASSES, wants, is_empty=False).why == "suspect"
    seen = []
    while len(seen) < 3:
        (claim,) = store.claim("w", CLASSES, wants).claims
        assert claim.is_suspect
        seen.append(claim.job_id)
        store.settle([Settlement(claim.job_id, claim.fence, Outcome.FINISHED, {})])
    assert set(seen) == suspects
    assert {c.job_id for c in store.claim("w", CLASSES, wants, is_empty=False).claims} == fresh


def test_one_deadly_job_takes_no_innocent_with_it(
    redis: Redis, store: Store, submit: Submit, shapes: ModelSpec
) -> None:
    deadly, innocent = submit(), {submit() for _ in range(5)}
    while claims := store.claim("w", CLASSES, [Want(shapes.batch_key, 8)]).claims:
        if deadly in {claim.job_id for claim in claims}:
            redis.zadd("gm:run:global", {claim.job_id: 1 for claim in claims})
            store.reap()
        else:
            store.settle([Settlement(c.job_id, c.fence, Outcome.FINISHED, {}) for c in claims])
    states = {record.job_id: record.state for record in store.get_many([deadly, *innocent]) if record}
    assert states.pop(deadly) is JobState.FAILED
    assert set(states.values()) == {JobState.SUCCEEDED}


def test_a_token_replays_only_leases_that_still_hold(store: Store, submit: Submit, shapes: ModelSpec) -> None:
    submit(), submit()
    wants = [Want(shapes.batch_key, 2)]
    first, second = store.claim("w", CLASSES, wants, token="t").claims
    store.settle([Settlement(first.job_id, first.fence, Outcome.RETURNED)])
    store.claim("other", CLASSES, wants)
    assert store.claim("w", CLASSES, wants, token="t").claims == (second,)


def test_a_big_job_waits_for_an_idle_station_and_blocks_it_until_then(
    store: Store, submit: Submit, shapes: ModelSpec
) -> None:
    big, _small = submit(num_images=4), submit()
    assert store.claim("w", CLASSES, [Want(shapes.batch_key, 3, is_resident=True, is_idle=False)]).claims == ()
    (claim,) = store.claim("w", CLASSES, [Want(shapes.batch_key, 3, is_resident=True)]).claims
    assert claim.job_id == big


def test_a_job_that_rq_moves_to_another_queue_stands_in_one_lane(
    redis: Redis, store: Store, submit: Submit, shapes: ModelSpec
) -> None:
    from rq import Queue

    job_id = submit(job_class="p2")
    job = Job.fetch(job_id, connection=redis, serializer=JSONSerializer)
    Queue("p1", connection=redis, serializer=JSONSerializer).enqueue_job(job)
    (claim,) = store.claim("w", CLASSES, [Want(shapes.batch_key, 8)]).claims
    assert (claim.job_id, claim.origin) == (job_id, "p1")
    store.settle([Settlement(job_id, claim.fence, Outcome.FINISHED, {})])
    assert list(redis.scan_iter("gm:run:*")) == []
    assert sum(store.queue_depths().values()) == 0


def test_an_entry_pushed_twice_does_not_run_an_ended_job_again(
    redis: Redis, store: Store, submit: Submit, shapes: ModelSpec
) -> None:
    job_id = submit()
    (claim,) = store.claim("w", CLASSES, [Want(shapes.batch_key, 8)]).claims
    redis.rpush("rq:queue:p1", job_id)
    store.settle([Settlement(job_id, claim.fence, Outcome.FINISHED, {})])
    assert store.claim("w", CLASSES, [Want(shapes.batch_key, 8)]).claims == ()
    assert redis.llen("rq:queue:p1") == 0


def test_data_that_cannot_be_read_comes_back_as_an_empty_call(redis: Redis, store: Store, submit: Submit) -> None:
    for data in ("[" * 100_000, b"\x80\x04K\x01.", "null", "{}"):
        redis.hset(keys.job("odd"), mapping={"status": "queued", "data": data, "origin": "p1"})
        redis.rpush("rq:queue:p1", "odd")
        (claim,) = store.claim("w", CLASSES, [Want(keys.CALL_BATCH_KEY, 1)]).claims
        assert claim.call == ("", [], {})
        store.settle([Settlement("odd", claim.fence, Outcome.FAILED, exc="\ud800")])


def test_weights_share_gpu_time_also_when_the_estimate_is_wrong(
    make_settings: SettingsFactory, redis: Redis, submit: Submit, shapes: ModelSpec
) -> None:
    store = Store(redis, make_settings(limits={"weight:b": 2, "weight:c": 4}))
    tenants = {"a": 1.0, "b": 2.0, "c": 4.0}
    for tenant in tenants:
        for _ in range(130):
            submit(tenant, store=store)
    served = dict.fromkeys(tenants, 0)
    for _ in range(56):
        for claim in store.claim("w", CLASSES, [Want(shapes.batch_key, 4)]).claims:
            served[claim.tenant] += 1
            store.settle([Settlement(claim.job_id, claim.fence, Outcome.FINISHED, {}, gpu_ms=claim.cost_ms / 5)])
    shares = {tenant: count / sum(served.values()) * 7 for tenant, count in served.items()}
    assert shares == {tenant: pytest.approx(weight, rel=0.1) for tenant, weight in tenants.items()}


def test_slots_reserved_for_a_class_are_kept_from_the_others(
    make_settings: SettingsFactory, redis: Redis, submit: Submit, shapes: ModelSpec
) -> None:
    store = Store(redis, make_settings(limits={"all": 5, "reserve:p0": 2}))
    for _ in range(8):
        submit(job_class="p3", store=store)
    wants = [Want(shapes.batch_key, 8)]
    assert len(store.claim("w", CLASSES, wants).claims) == 3
    assert store.claim("w", CLASSES, wants).why == "limit all"
    urgent = {submit(job_class="p0", store=store) for _ in range(3)}
    assert {c.job_id for c in store.claim("w", CLASSES, wants).claims} < urgent
    assert len(redis.smembers("gm:run:class:p0")) == 2


def test_a_limit_set_by_an_operator_goes_before_the_workers_own(
    make_settings: SettingsFactory, redis: Redis, submit: Submit, shapes: ModelSpec
) -> None:
    store = Store(redis, make_settings(limits={"tenant:*": 1}))
    for _ in range(4):
        submit(store=store)
    redis.hset("gm:lim:set", "tenant:a", 3)
    assert len(store.claim("w", CLASSES, [Want(shapes.batch_key, 8)]).claims) == 3


def test_jobs_that_rq_deleted_do_not_hide_the_rest_of_their_lane(
    redis: Redis, store: Store, submit: Submit, shapes: ModelSpec
) -> None:
    gone, kept = [submit() for _ in range(20)], [submit(), submit("b")]
    for job_id in gone:
        redis.delete(keys.job(job_id))
    assert set(claim_ids(store, 2, shapes)) == set(kept)


def test_a_job_that_was_put_off_keeps_its_place_its_ttl_and_its_history(
    redis: Redis, store: Store, submit: Submit, shapes: ModelSpec
) -> None:
    job_id = submit(ttl_s=600)
    (claim,) = store.claim("w", CLASSES, [Want(shapes.batch_key, 1)]).claims
    redis.hset(keys.job(job_id), "crashes", 2)
    store.settle([Settlement(job_id, claim.fence, Outcome.SCHEDULED, delay_ms=1)])
    redis.zrem("rq:scheduled:p1", job_id)
    redis.hset(keys.job(job_id), "status", "queued")
    redis.rpush("rq:queue:p1", job_id)
    (again,) = store.claim("w", CLASSES, [Want(shapes.batch_key, 1)]).claims
    assert (again.vd_ms, again.postponed, again.is_suspect) == (claim.vd_ms, 1, True)
    store.settle([Settlement(job_id, again.fence, Outcome.RETURNED)])
    assert redis.zscore("gm:ttl", job_id) is not None


def test_what_a_claim_costs_does_not_grow_with_the_number_of_tenants(
    redis: Redis, store: Store, shapes: ModelSpec
) -> None:
    def commands_of_a_claim(tenants: int) -> int:
        redis.flushall()
        job_input = shapes.parse_input({"prompt": "x"})
        for number in range(tenants):
            store.submit_many([JobRequest(new_job_id(), f"t{number}", shapes, job_input) for _ in range(2)])
        redis.config_resetstat()
        assert len(store.claim("w", CLASSES, [Want(shapes.batch_key, 8)]).claims) == 8
        return sum(stat["calls"] for stat in redis.info("commandstats").values())

    assert commands_of_a_claim(400) <= commands_of_a_claim(20) + 5


def test_thousands_of_dead_jobs_in_a_lane_stop_no_claim(
    redis: Redis, store: Store, shapes: ModelSpec, submit: Submit
) -> None:
    job_input = shapes.parse_input({"prompt": "x"})
    dead = store.submit_many([JobRequest(new_job_id(), "a", shapes, job_input) for _ in range(1200)])
    alive = submit()
    for one in dead:
        redis.delete(keys.job(one.job_id))
    whys = []
    while not (claimed := store.claim("w", CLASSES, [Want(shapes.batch_key, 4)])).claims:
        whys.append(claimed.why)
    assert ([claim.job_id for claim in claimed.claims], whys) == ([alive], ["paused", "paused"])
    assert redis.hgetall("gm:waiting") == {}


def test_a_reserve_is_met_within_one_claim(
    make_settings: SettingsFactory, redis: Redis, submit: Submit, shapes: ModelSpec
) -> None:
    store = Store(redis, make_settings(limits={"all": 10, "reserve:p0": 4}))
    for _ in range(4):
        submit(job_class="p0", store=store)
    for _ in range(10):
        submit(job_class="p1", store=store)
    claims = store.claim("w", CLASSES, [Want(shapes.batch_key, 12)]).claims
    assert sorted(claim.origin for claim in claims) == ["p0"] * 4 + ["p1"] * 6


def test_parked_tenants_hide_nobody_behind_them(
    make_settings: SettingsFactory, redis: Redis, submit: Submit, shapes: ModelSpec
) -> None:
    store = Store(redis, make_settings(limits={f"tenant:t{number}": 0 for number in range(20)}))
    for number in range(20):
        submit(f"t{number}", store=store)
    redis.hset("gm:vt", mapping={f"u{number}": 100 for number in range(5)})
    free = {submit(f"u{number}", store=store) for number in range(5)}
    assert {c.job_id for c in store.claim("w", CLASSES, [Want(shapes.batch_key, 8)]).claims} == free


def test_tenants_that_come_and_go_leave_nothing_and_lose_nothing(
    redis: Redis, store: Store, submit: Submit, shapes: ModelSpec
) -> None:
    """Who has had more than the others, or waits, is remembered."""
    for number in range(300):
        submit(f"t{number}")
    while claims := store.claim("w", CLASSES, [Want(shapes.batch_key, 32)]).claims:
        store.settle([Settlement(claim.job_id, claim.fence, Outcome.FINISHED, gpu_ms=5.0) for claim in claims])
    clock = float(redis.get("gm:vclock") or 0)  # type: ignore[arg-type]  # replies are not decoded
    redis.hset(
        "gm:vt", mapping={"ahead": clock + 1, "waits": clock / 2} | {f"long ago {n}": n / 1e6 for n in range(600)}
    )
    submit("waits")
    kept = redis.hmget("gm:vt", "ahead", "waits")

    cursor, looks = store.upkeep.forget_idle(0, 20), 1
    while cursor:
        cursor, looks = store.upkeep.forget_idle(cursor, 20), looks + 1
    assert looks > 1, "a look has an end"
    left: Any = redis.hgetall("gm:vt")
    assert redis.hmget("gm:vt", "ahead", "waits") == kept
    assert all(float(time_) > clock for tenant, time_ in left.items() if tenant != b"waits")
    submit("t0")
    assert float(redis.hget("gm:vt", "t0") or 0) >= clock, "one that comes again begins at the clock"  # type: ignore[arg-type]  # as above


def test_who_runs_is_charged_by_what_it_took_whoever_was_forgotten_meanwhile(
    redis: Redis, store: Store, submit: Submit, shapes: ModelSpec
) -> None:
    submit("long")
    (claim,) = store.claim("w", CLASSES, [Want(shapes.batch_key, 1)]).claims
    estimate_ms = float(redis.hget("gm:vt", "long") or 0)  # type: ignore[arg-type]  # replies are not decoded
    redis.set("gm:vclock", estimate_ms + 1_000)
    assert store.upkeep.forget_idle(0) == 0
    store.settle([Settlement(claim.job_id, claim.fence, Outcome.FINISHED, gpu_ms=100_000.0)])
    assert float(redis.hget("gm:vt", "long") or 0) >= 100_000  # type: ignore[arg-type]  # as above


def test_a_key_whose_tenants_are_all_full_leaves_the_turn_to_another(
    make_settings: SettingsFactory, redis: Redis, submit: Submit, shapes: ModelSpec
) -> None:
    from rq import Queue

    store = Store(redis, make_settings(limits={"tenant:a": 0}))
    submit("a", store=store, job_class="p0")
    job = Queue("p1", connection=redis, serializer=JSONSerializer).enqueue("worker.tasks.ping", "x")
    wants = [Want(shapes.batch_key, 4, is_resident=True), Want(keys.CALL_BATCH_KEY, 1, is_resident=True)]
    assert [claim.job_id for claim in store.claim("w", CLASSES, wants).claims] == [job.id]


def test_a_model_limit_counts_jobs_and_slots_count_rows(
    make_settings: SettingsFactory, redis: Redis, submit: Submit, shapes: ModelSpec
) -> None:
    store = Store(redis, make_settings(limits={"model:shapes": 2}))
    for _ in range(3):
        submit(num_images=2, store=store)
    assert len(store.claim("w", CLASSES, [Want(shapes.batch_key, 8)]).claims) == 2


def test_an_entry_pushed_several_times_waits_once(redis: Redis, store: Store, submit: Submit) -> None:
    job_id = submit()
    redis.rpush("rq:queue:p1", job_id, job_id, job_id)
    store.claim("w", CLASSES, [Want("another@1/auto", 1)])
    assert redis.hgetall("gm:waiting") == {b"a": b"1"}


def test_an_id_that_was_deleted_while_it_ran_gets_a_fence_of_its_own(
    redis: Redis, store: Store, submit: Submit, shapes: ModelSpec
) -> None:
    submit(job_id="fixed")
    (old,) = store.claim("w1", CLASSES, [Want(shapes.batch_key, 1)]).claims
    redis.delete(keys.job("fixed"))
    submit(job_id="fixed")
    (new,) = store.claim("w2", CLASSES, [Want(shapes.batch_key, 1)]).claims
    assert store.settle([Settlement("fixed", old.fence, Outcome.FINISHED, {})]) == [False]
    assert store.settle([Settlement("fixed", new.fence, Outcome.FINISHED, {})]) == [True]
    assert list(redis.scan_iter("gm:run:*")) == []


def test_urgent_jobs_find_slots_where_none_is_free(store: Store, submit: Submit, shapes: ModelSpec) -> None:
    first, second, third, large = (
        submit("a", "p0"),
        submit("b", "p0"),
        submit("a", "p0"),
        submit("b", "p0", num_images=4),
    )
    submit("a", "p3"), submit("c", "p1")
    want = Want(shapes.batch_key, 0, is_resident=True, is_idle=False, urgent=2)
    assert sorted(claim.job_id for claim in store.claim("w", CLASSES, [want]).claims) == sorted([first, second])
    want = Want(shapes.batch_key, 0, is_resident=True, is_idle=False, urgent=8)
    assert sorted(claim.job_id for claim in store.claim("w", CLASSES, [want]).claims) == sorted([third, large])
    assert store.claim("w", CLASSES, [want]).claims == ()


def test_free_slots_come_before_those_of_others(store: Store, submit: Submit, shapes: ModelSpec) -> None:
    urgent = [submit("a", "p0") for _ in range(4)]
    others = [submit("b", "p1") for _ in range(4)]
    want = Want(shapes.batch_key, 2, is_resident=True, is_idle=False, urgent=1)
    taken = [claim.job_id for claim in store.claim("w", CLASSES, [want]).claims]
    assert len(taken) == len(set(taken)) == 3
    assert set(taken) <= set(urgent)
    (last,), later = set(urgent) - set(taken), [claim.job_id for claim in store.claim("w", CLASSES, [want]).claims]
    assert later[0] == last
    assert later[1:] == others[:1]


def test_a_suspect_runs_alone_also_where_others_would_rest(
    redis: Redis, store: Store, submit: Submit, shapes: ModelSpec
) -> None:
    suspect, other = submit("a", "p0"), submit("a", "p0")
    redis.hset(keys.job(suspect), "crashes", 2)
    taken = store.claim("w", CLASSES, [Want(shapes.batch_key, 1, is_resident=True, urgent=4)]).claims
    assert [claim.job_id for claim in taken] == [suspect]
    busy = Want(shapes.batch_key, 0, is_resident=True, is_idle=False, urgent=4)
    assert [claim.job_id for claim in store.claim("w2", CLASSES, [busy]).claims] == [other]


@pytest.mark.parametrize(("slots", "urgent"), [(2, 2), (0, 4), (3, 1)])
def test_free_and_urgent_slots_add_up_for_a_large_urgent_job(
    store: Store, submit: Submit, shapes: ModelSpec, slots: int, urgent: int
) -> None:
    large = submit("a", "p0", num_images=4)
    want = Want(shapes.batch_key, slots, is_resident=True, is_idle=False, urgent=urgent)
    assert [claim.job_id for claim in store.claim("w", CLASSES, [want]).claims] == [large]


def test_an_overdue_job_that_does_not_fit_keeps_no_urgent_one_out(
    redis: Redis, store: Store, submit: Submit, shapes: ModelSpec
) -> None:
    first, urgent = submit("a", "p1", num_images=4), submit("b", "p0")
    redis.zadd(keys.ready("p1", shapes.batch_key), {first: 1})
    want = Want(shapes.batch_key, 2, is_resident=True, is_idle=False, urgent=8)
    assert [claim.job_id for claim in store.claim("w", CLASSES, [want]).claims] == [urgent]


def test_a_reserve_holds_for_urgent_slots_too(
    make_settings: SettingsFactory, redis: Redis, submit: Submit, shapes: ModelSpec
) -> None:
    store = Store(redis, make_settings(limits={"all": 3, "reserve:p1": 2}))
    submit("a", "p1", store=store)
    for _ in range(3):
        submit("a", "p0", store=store)
    want = Want(shapes.batch_key, 1, is_resident=True, is_idle=False, urgent=8)
    taken = store.claim("w", CLASSES, [want]).claims + store.claim("w", CLASSES, [want]).claims
    assert sorted(claim.origin for claim in taken) == ["p0", "p1"], "one slot stays for a second job of p1"
