"""Jobs that wait for others: they go on once, when all have succeeded, and end with the first that does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis
from rq import Queue
from rq.job import Job
from rq.registry import DeferredJobRegistry
from rq.serializers import JSONSerializer

from genmill import doctor, keys
from genmill.errors import DependencyUnusable, JobCanceled, JobFailure
from genmill.jobs import Claim, JobRecord, JobRequest, JobState, new_job_id
from genmill.registry import ModelSpec, load_registry
from genmill.store import Outcome, Settlement, Store, Waiting, Want
from scheduler.loop import Scheduler
from tests.genmill.store.conftest import Submit

CLASSES = ["p0", "p1", "p2", "p3"]
HOOK = "https://example.org/h"
BATCH_KEY = load_registry().get("shapes").batch_key

Chain = Callable[..., str]


@pytest.fixture
def chain(submit: Submit) -> Chain:
    """Store one job that depends on these."""
    return lambda *parents, **options: submit(depends_on=dict.fromkeys(parents, "/depends_on/0"), **options)


def claim(store: Store, slots: int = 1) -> list[Claim]:
    return list(store.claim("w", CLASSES, [Want(BATCH_KEY, slots)]).claims)


def end(store: Store, claims: list[Claim], outcome: Outcome = Outcome.FINISHED) -> None:
    error = None if outcome is Outcome.FINISHED else JobFailure("it broke")
    assert all(store.settle([Settlement(one.job_id, one.fence, outcome, {}, error) for one in claims]))


def record(store: Store, job_id: str) -> JobRecord:
    found = store.get(job_id)
    assert found is not None
    return found


def waiting(store: Store, job_id: str) -> Waiting:
    standing = store.standing(job_id)
    assert standing is not None
    assert standing.waiting is not None
    return standing.waiting


def state(store: Store, job_id: str) -> JobState:
    return record(store, job_id).state


def status(redis: Redis, job_id: str) -> str:
    raw: Any = redis.hget(keys.job(job_id), "status")
    return str(raw.decode())


def leftovers(redis: Redis) -> set[str]:
    """Of those that wait for others, nothing is left once nobody does."""
    names = [*redis.scan_iter("rq:deferred:*"), *redis.scan_iter("*:depend*"), *redis.scan_iter("gm:chained")]
    names += [*redis.scan_iter("gm:waiting"), *redis.scan_iter("gm:ttl")]
    return {name.decode() for name in names}


def mended(store: Store, job_id: str) -> list[str]:
    """What the doctor finds with one job, and mends."""
    return [fault for _, fault in store.upkeep.examine([job_id], mend=True)]


def faults(store: Store) -> list[str]:
    found = doctor.examine(store, load_registry(), mend=False)
    return [finding.fault for finding in found if not finding.what.startswith(("setting", "scheduler"))]


# ------------------------------------------------------------------------------------------------------------- success


def test_a_chained_job_waits_where_rq_keeps_those_that_wait(redis: Redis, store: Store, chain: Chain) -> None:
    parent = chain()
    child = chain(parent)
    assert (state(store, child), status(redis, child)) == (JobState.QUEUED, "deferred")
    assert DeferredJobRegistry("p1", connection=redis, serializer=JSONSerializer).get_job_ids() == [child]
    rq_job = Job.fetch(child, connection=redis, serializer=JSONSerializer)
    assert (rq_job.dependency_ids, [one.id for one in rq_job.fetch_dependencies()]) == ([parent], [parent])
    assert Job.fetch(parent, connection=redis, serializer=JSONSerializer).dependent_ids == [child]
    assert record(store, child).depends_on == (parent,)
    assert waiting(store, child) == Waiting(None, "dependency", jobs=(parent,))
    assert [one.job_id for one in claim(store, 8)] == [parent]
    assert faults(store) == []


def test_it_goes_into_its_lane_once_when_the_last_has_succeeded(redis: Redis, store: Store, chain: Chain) -> None:
    parents = [chain() for _ in range(3)]
    child = chain(*parents)
    vd = redis.hget(keys.job(child), "vd")
    end(store, claim(store))
    assert waiting(store, child).jobs == tuple(parents[1:])
    (second, third) = claim(store, 2)
    last = [Settlement(one.job_id, one.fence, Outcome.FINISHED, {}) for one in (second, third)]
    assert store.settle([*last, *last]) == [True] * 4
    assert store.settle(last) == [True, True], "an end that is committed again, such as after a lost answer"
    assert (status(redis, child), store.queue_depths()["p1"]) == ("queued", 1)
    assert redis.hget(keys.job(child), "vd") == vd, "it keeps the place that it got when it was submitted"
    (claimed,) = claim(store, 8)
    assert claimed.job_id == child
    assert leftovers(redis) == set()
    end(store, [claimed])
    assert leftovers(redis) == set()


def test_a_diamond_runs_in_its_order(redis: Redis, store: Store, chain: Chain) -> None:
    top = chain()
    left, right = chain(top), chain(top)
    bottom = chain(left, right)
    order = []
    while claims := claim(store, 8):
        order.append({one.job_id for one in claims})
        end(store, claims)
    assert order == [{top}, {left, right}, {bottom}]
    assert leftovers(redis) == set()


def test_what_has_succeeded_already_is_not_waited_for(store: Store, redis: Redis, chain: Chain) -> None:
    done, running = chain(), chain()
    (first,) = claim(store)
    end(store, [first])
    assert first.job_id == done
    assert status(redis, chain(done)) == "queued"
    child = chain(done, running)
    assert waiting(store, child).jobs == (running,)
    assert record(store, child).depends_on == (done, running)


def test_a_run_that_is_returned_or_put_off_or_lost_releases_nobody(redis: Redis, store: Store, chain: Chain) -> None:
    parent = chain()
    child = chain(parent)
    for outcome in (Outcome.RETURNED, Outcome.SCHEDULED):
        end(store, claim(store), outcome)
        redis.zrem("rq:scheduled:p1", parent)
        redis.rpush("rq:queue:p1", parent)  # as RQ's scheduler does
        redis.hset(keys.job(parent), "status", "queued")
    claim(store)
    redis.zadd(keys.run_scope("global"), {parent: 1})
    assert store.reap().requeued == 1
    assert status(redis, child) == "deferred"
    end(store, claim(store))
    assert status(redis, child) == "queued"


def test_jobs_of_one_call_may_depend_on_each_other(store: Store, redis: Redis, shapes: ModelSpec) -> None:
    first, second = new_job_id(), new_job_id()
    asked = [
        JobRequest(job_id, "a", shapes, shapes.parse_input({"prompt": "x"}), depends_on=depends_on)
        for job_id, depends_on in ((first, {}), (second, {first: "/depends_on/0"}))
    ]
    assert [one.job_id for one in store.submit_many(asked)] == [first, second]
    assert [one.job_id for one in store.submit_many(asked)] == [first, second], "stored once"
    assert (status(redis, first), status(redis, second)) == ("queued", "deferred")
    assert redis.hget(keys.PREFIXES["waiting"], "a") == b"2"


# ------------------------------------------------------------------------------------------------------------- failure


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.CANCELED, Outcome.STOPPED])
def test_it_ends_with_the_first_that_does_not_succeed_and_so_do_those_behind_it(
    redis: Redis, store: Store, chain: Chain, outcome: Outcome
) -> None:
    other, parent = chain(), chain()
    child = chain(parent, other, webhook=HOOK)
    grandchild = chain(child)
    last = chain(grandchild)
    claims = {one.job_id: one for one in claim(store, 2)}
    end(store, [claims[parent]], outcome)
    how, word = (JobState.FAILED, "failed") if outcome is Outcome.FAILED else (JobState.CANCELED, "was canceled")
    root = f"job:{parent} {'was stopped' if outcome is Outcome.STOPPED else word}: it broke"
    wanted = {child: root, grandchild: f"job:{child} {word}: {root}", last: f"job:{grandchild} {word}: {root}"}
    for job_id, message in wanted.items():
        ended = record(store, job_id)
        assert (ended.state, ended.error) == (how, {"code": "dependency_failed", "message": message})
        assert redis.xlen(keys.results(job_id)) == 1
    callbacks = store.claim("w", ["callbacks"], [Want(keys.CALLBACKS, 64)]).claims
    assert [one.call[1] for one in callbacks] == [[child, how.value]]
    end(store, [claims[other]])
    assert claim(store, 8) == []
    assert leftovers(redis) == set()
    (use,) = redis.hvals(keys.usage(today(redis)))
    _, succeeded, failed, canceled, *_ = use.split()
    assert (int(succeeded), int(failed) + int(canceled)) == (1, 4)


def today(redis: Redis) -> str:
    (name,) = redis.scan_iter(keys.usage("*"))
    return str(name.decode().removeprefix(keys.usage("")))


def test_a_canceled_job_takes_those_that_wait_for_it_along(redis: Redis, store: Store, chain: Chain) -> None:
    parent = chain()
    child = chain(parent)
    grandchild = chain(child)
    assert store.cancel(child) == "dequeued"
    assert [state(store, one) for one in (parent, child, grandchild)] == [
        JobState.QUEUED, JobState.CANCELED, JobState.CANCELED,
    ]  # fmt: skip
    assert record(store, child).error == {"code": "canceled", "message": JobCanceled().detail}
    assert redis.smembers(f"{keys.job(parent)}:dependents") == set()
    end(store, claim(store))
    assert claim(store) == []
    assert leftovers(redis) == set()
    assert store.cancel(grandchild) == "too_late"


def test_one_that_waits_too_long_for_others_expires_with_those_behind_it(
    redis: Redis, store: Store, chain: Chain
) -> None:
    parent = chain()
    child = chain(parent, ttl_s=600)
    late = chain(parent, deadline_s=600.0, is_best_effort=False)
    behind = chain(child)
    assert redis.zcard(keys.PREFIXES["ttl"]) == 2
    redis.zadd(keys.PREFIXES["ttl"], {child: 1, late: 1})
    assert store.reap().expired == 2
    assert (redis.exists(keys.PREFIXES["chained"]), redis.hget(keys.PREFIXES["waiting"], "a")) == (0, b"1")
    assert [state(store, one) for one in (child, late, behind)] == [
        JobState.EXPIRED, JobState.EXPIRED, JobState.FAILED,
    ]  # fmt: skip
    message = (record(store, behind).error or {})["message"]
    assert message.startswith(f"job:{child} expired: The job waited longer")
    end(store, claim(store))
    assert leftovers(redis) == set()


def test_a_poisoned_job_and_one_that_rq_cancels_take_theirs_along(redis: Redis, store: Store, chain: Chain) -> None:
    poisoned, canceled = chain(), chain()
    after_poisoned, after_canceled = chain(poisoned), chain(canceled)
    (first,) = claim(store)
    assert first.job_id == poisoned
    redis.hset(keys.job(poisoned), "crashes", store.settings.max_crashes - 1)
    redis.zadd(keys.run_scope("global"), {poisoned: 1})
    Job.fetch(canceled, connection=redis, serializer=JSONSerializer).cancel()
    store.reap()
    assert [state(store, one) for one in (after_poisoned, after_canceled)] == [JobState.FAILED, JobState.CANCELED]
    assert leftovers(redis) == set()


def test_what_rq_itself_ends_or_deletes_while_it_waits_is_forgotten(redis: Redis, store: Store, chain: Chain) -> None:
    parent = chain()
    canceled, deleted = chain(parent), chain(parent)
    behind = chain(canceled)
    for job_id, act in ((canceled, "cancel"), (deleted, "delete")):
        getattr(Job.fetch(job_id, connection=redis, serializer=JSONSerializer), act)()
    store.reap()
    assert redis.zrange(keys.PREFIXES["chained"], 0, -1) == [f"a/{deleted}".encode()], "the delete is seen later"
    look_at_all(redis)
    store.revisit()
    assert (state(store, canceled), state(store, behind), store.get(deleted)) == (
        JobState.CANCELED, JobState.CANCELED, None,
    )  # fmt: skip
    end(store, claim(store))
    assert claim(store) == []
    (left,) = leftovers(redis)
    assert 0 < redis.ttl(left) == redis.ttl(keys.job(parent)), "RQ's delete leaves the id with the parent"


def look_at_all(redis: Redis) -> None:
    """A minute has passed."""
    for name in redis.zrange(keys.PREFIXES["chained"], 0, -1):
        redis.zadd(keys.PREFIXES["chained"], {name: 1})


def test_a_failed_job_that_is_queued_again_has_lost_those_that_waited_for_it(
    redis: Redis, store: Store, chain: Chain
) -> None:
    parent = chain()
    child = chain(parent)
    end(store, claim(store), Outcome.FAILED)
    for job_id in (child, parent):
        Job.fetch(job_id, connection=redis, serializer=JSONSerializer).requeue()
    assert sorted(one.job_id for one in claim(store, 8)) == sorted([parent, child]), "each as its operator wishes"
    assert leftovers(redis) == set()


# ------------------------------------------------------------------------------------------------------------- refusal


def test_what_cannot_be_waited_for_is_refused_and_nothing_is_stored(
    redis: Redis, store: Store, chain: Chain, submit: Submit
) -> None:
    failed, others = chain(), submit("b")
    end(store, [one for one in claim(store, 8) if one.job_id == failed], Outcome.FAILED)
    before = {key: redis.dump(key) for key in redis.keys("*")}
    wanted = {
        failed: f"job:{failed} failed: it broke",
        others: "is not a job of yours",
        "nope": "is not a job of yours",
    }
    for job_id, words in wanted.items():
        with pytest.raises(DependencyUnusable, match=words) as raised:
            chain(job_id)
        (fault,) = raised.value.faults
        assert (fault.pointer, fault.value) == ("/depends_on/0", job_id)
    assert {key: redis.dump(key) for key in redis.keys("*")} == before


def test_a_repeated_request_gets_its_job_however_its_dependency_has_ended(store: Store, chain: Chain) -> None:
    parent = chain()
    child = chain(parent, idempotency_key="k", body_hash="h")
    end(store, claim(store), Outcome.FAILED)
    assert chain(parent, idempotency_key="k", body_hash="h") == child


def test_those_that_wait_for_others_count_among_the_waiting_jobs(redis: Redis, store: Store, chain: Chain) -> None:
    store.limits.set({"queued:a": 2})
    parent = chain()
    chain(parent)
    with pytest.raises(Exception, match=r"queued:a is 2, it stands at 2"):
        chain(parent)
    assert redis.hget(keys.PREFIXES["waiting"], "a") == b"2"
    claim(store)
    chain()


def test_more_dependents_than_one_script_can_mark_are_refused(redis: Redis, store: Store, chain: Chain) -> None:
    parent = chain()
    redis.sadd(f"{keys.job(parent)}:dependents", *range(10_000))
    with pytest.raises(DependencyUnusable, match="10000 jobs wait for"):
        chain(parent)


# ---------------------------------------------------------------------------------------------------------- many, lost


@pytest.mark.parametrize("outcome", [Outcome.FINISHED, Outcome.FAILED])
def test_a_thousand_dependents_are_moved_on_by_scripts_of_bounded_work(
    redis: Redis, store: Store, shapes: ModelSpec, outcome: Outcome
) -> None:
    parent = new_job_id()
    job_input = shapes.parse_input({"prompt": "x"})
    store.submit(JobRequest(parent, "a", shapes, job_input))
    asked = [
        JobRequest(new_job_id(), "a", shapes, job_input, depends_on={parent: "/depends_on/0"}) for _ in range(1000)
    ]
    ids = [one.job_id for one in store.submit_many(asked)]
    claims = claim(store)
    redis.config_resetstat()
    end(store, claims, outcome)
    commands = sum(stat["calls"] for stat in redis.info("commandstats").values())
    moved = [job_id for job_id in ids if status(redis, job_id) != "deferred"]
    assert 0 < len(moved) <= 200
    assert commands < 6000
    assert faults(store) == [], "the rest is on its way"
    looks = 0
    while store.revisit(100):
        looks += 1
        assert looks <= 8
    wanted = "queued" if outcome is Outcome.FINISHED else "failed"
    assert {status(redis, job_id) for job_id in ids} == {wanted}
    assert sum(store.queue_depths().values()) == (1000 if outcome is Outcome.FINISHED else 0)
    assert leftovers(redis) == ({"gm:waiting"} if outcome is Outcome.FINISHED else set())
    assert redis.hget(keys.PREFIXES["waiting"], "a") == (b"1000" if outcome is Outcome.FINISHED else None)


def test_a_long_chain_ends_within_scripts_of_bounded_work(redis: Redis, store: Store, chain: Chain) -> None:
    ids = [chain()]
    for _ in range(250):
        ids.append(chain(ids[-1]))
    assert store.cancel(ids[0]) == "dequeued"
    assert status(redis, ids[-1]) == "deferred"
    while store.revisit(100):
        pass
    assert {state(store, one) for one in ids} == {JobState.CANCELED}
    longest = max(len((record(store, one).error or {})["message"]) for one in ids)
    assert longest < 200, "it tells of the one before and of the first, not of all"
    assert leftovers(redis) == set()


def test_two_schedulers_and_two_settlers_release_once(redis: Redis, store: Store, chain: Chain) -> None:
    parents = [chain(), chain()]
    child = chain(*parents)
    claims = claim(store, 2)
    for one in claims:
        end(store, [one])
        look_at_all(redis)
        store.revisit(), store.revisit()
    assert redis.zrange(keys.ready("p1", BATCH_KEY), 0, -1) == [child.encode()]
    assert redis.hget(keys.PREFIXES["waiting"], "a") == b"1"


def test_one_whose_dependency_is_deleted_ends_within_a_minute(redis: Redis, store: Store, chain: Chain) -> None:
    parent = chain()
    child = chain(parent)
    behind = chain(child)
    Job.fetch(parent, connection=redis, serializer=JSONSerializer).delete()
    assert claim(store) == [], "what RQ deleted leaves its lane"
    assert store.revisit() == 0
    assert "waits for what has ended" in faults(store)
    look_at_all(redis)
    Scheduler(store, "s").tick()
    assert record(store, child).error == {"code": "dependency_failed", "message": f"job:{parent} is gone"}
    assert state(store, behind) is JobState.FAILED
    assert leftovers(redis) == set()
    assert faults(store) == []


def test_a_lost_release_is_found_and_mended_by_the_doctor(redis: Redis, store: Store, chain: Chain) -> None:
    parent = chain()
    child = chain(parent)
    redis.delete(f"{keys.job(parent)}:dependents")
    end(store, claim(store))
    assert status(redis, child) == "deferred"
    assert faults(store) == ["waits for what has ended"]
    assert mended(store, child) == ["waits for what has ended"]
    assert (faults(store), status(redis, child)) == ([], "queued")
    assert [one.job_id for one in claim(store)] == [child]
    assert leftovers(redis) == set()


def test_one_that_nobody_would_look_at_is_found_and_mended(redis: Redis, store: Store, chain: Chain) -> None:
    parent = chain()
    child = chain(parent, ttl_s=600)
    redis.delete(keys.PREFIXES["chained"], "rq:deferred:p1", keys.PREFIXES["ttl"])
    redis.hincrby(keys.PREFIXES["waiting"], "a", -1)
    assert mended(store, child) == ["waits for others unseen"]
    assert faults(store) == []
    end(store, claim(store))
    assert [one.job_id for one in claim(store)] == [child]
    assert leftovers(redis) == set()


def test_a_job_of_rq_alone_may_be_waited_for_and_waits_by_rqs_rules(
    redis: Redis, make_settings: Any, store: Store, submit: Submit, chain: Chain
) -> None:
    queue = Queue("p1", connection=redis, serializer=JSONSerializer)
    plain = queue.enqueue("worker.tasks.ping")
    child = submit("default", depends_on={plain.id: "/depends_on/0"})
    ours = chain()
    plain_child = queue.enqueue("worker.tasks.ping", depends_on=ours)
    (call,) = store.claim("w", CLASSES, [Want(keys.CALL_BATCH_KEY, 1)]).claims
    end(store, [call])
    assert status(redis, child) == "queued"
    end(store, [one for one in claim(store, 8) if one.job_id == ours], Outcome.FAILED)
    assert status(redis, plain_child.id) == "deferred"


def test_jobs_without_dependents_cost_no_command_more(redis: Redis, store: Store, chain: Chain) -> None:
    def commands_of(act: Callable[[], object]) -> dict[str, int]:
        redis.config_resetstat()
        act()
        return {name: stat["calls"] for name, stat in redis.info("commandstats").items()}

    chain(), chain()
    end(store, claim(store))  # the scripts are known to the server from here on
    claims = claim(store)
    for used in (commands_of(lambda: end(store, claims)), commands_of(chain)):
        assert not {"cmdstat_smembers", "cmdstat_zmscore", "cmdstat_scard"} & set(used)
