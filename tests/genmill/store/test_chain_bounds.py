"""Jobs that many wait for: no script ends more than have so many between them, or one alone, whoever ends them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest
from redis import Redis

from genmill import keys
from genmill.jobs import JobRequest, JobState, new_job_id
from genmill.registry import ModelSpec
from genmill.store import Store, Want
from tests.genmill.store.conftest import Submit
from tests.genmill.store.test_chains import BATCH_KEY, CLASSES, claim, end, faults, leftovers, look_at_all, status

MOST_DEPENDENTS, MOST_MARKS = 10_000, 2000


@pytest.fixture
def fan(store: Store, shapes: ModelSpec) -> tuple[str, dict[str, int]]:
    """A job, and how many wait for each of the 32 that wait for it: 32,000 in all, but for 2,000 jobs."""
    job_input = shapes.parse_input({"prompt": "x"})

    def asked(parents: Iterable[str]) -> JobRequest:
        depends_on = dict.fromkeys(parents, "/depends_on/0")
        return JobRequest(new_job_id(), "a", shapes, job_input, depends_on=depends_on)

    top = asked(())
    store.submit(top)
    middle = [stored.job_id for stored in store.submit_many([asked([top.job_id]) for _ in range(32)])]
    for _ in range(5):
        store.submit_many([asked(middle[16 * (n % 2) : 16 * (n % 2) + 16]) for n in range(400)])
    return top.job_id, dict.fromkeys(middle, 1000)


def crowd(redis: Redis, *job_ids: str) -> None:
    """As many as may wait for one, of which none is there any more."""
    for job_id in job_ids:
        redis.sadd(f"{keys.job(job_id)}:dependents", *range(MOST_DEPENDENTS))


def ended_of(redis: Redis, sizes: Mapping[str, int]) -> set[str]:
    return {job_id for job_id in sizes if status(redis, job_id) not in ("queued", "deferred", "started")}


def test_no_script_ends_jobs_that_too_many_wait_for(
    redis: Redis, store: Store, fan: tuple[str, dict[str, int]]
) -> None:
    top, sizes = fan
    assert {redis.scard(f"{keys.job(one)}:dependents") for one in sizes} == {1000}
    assert store.cancel(top) == "dequeued"
    seen = ended_of(redis, sizes)
    assert sum(sizes[one] for one in seen) in range(1, MOST_MARKS + 1)
    assert redis.zcount(keys.PREFIXES["chained"], 0, 0) > 0
    assert faults(store) == [], "the rest is on its way"
    while store.revisit(100):
        now = ended_of(redis, sizes)
        marked = sum(redis.scard(f"{keys.job(one)}:dependents") for one in now - seen)  # but those that ended as well
        assert marked <= MOST_MARKS
        seen = now
    assert seen == set(sizes)
    assert leftovers(redis) <= {f"{keys.job(one)}:dependents" for one in (top, *sizes)}
    assert redis.exists(keys.PREFIXES["chained"], keys.PREFIXES["waiting"]) == 0


def test_jobs_that_as_many_as_may_wait_for_end_one_a_script(redis: Redis, store: Store, submit: Submit) -> None:
    top = submit()
    middle = [submit(depends_on={top: "/depends_on/0"}) for _ in range(3)]
    crowd(redis, *middle)
    sizes = dict.fromkeys(middle, MOST_DEPENDENTS)
    store.cancel(top)
    counts = [len(ended_of(redis, sizes))]
    while store.revisit(100):
        counts.append(len(ended_of(redis, sizes)))
    assert counts == [0, 1, 2, 3]


def test_the_doctor_leaves_to_the_scheduler_what_is_too_many_for_one_script(
    redis: Redis, store: Store, submit: Submit
) -> None:
    top = submit()
    middle = [submit(depends_on={top: "/depends_on/0"}) for _ in range(2)]
    crowd(redis, *middle)
    redis.delete(keys.job(top))
    assert [fault for _, fault in store.upkeep.examine(middle, mend=True)] == ["waits for what has ended"] * 2
    assert len(ended_of(redis, dict.fromkeys(middle, 1))) == 1
    assert store.revisit() == 1
    assert len(ended_of(redis, dict.fromkeys(middle, 1))) == 2


@pytest.mark.parametrize("end_of", ["time to live", "lease", "RQ's cancel"])
def test_the_reaper_leaves_to_its_next_run_what_is_too_many_for_one(
    end_of: str, redis: Redis, store: Store, submit: Submit
) -> None:
    ids = [submit(ttl_s=600) for _ in range(3)]
    crowd(redis, *ids)
    match end_of:
        case "time to live":
            redis.zadd(keys.PREFIXES["ttl"], dict.fromkeys(ids, 1))
        case "lease":
            store.claim("w", CLASSES, [Want(BATCH_KEY, 3)])
            for one in ids:
                redis.hset(keys.job(one), "crashes", store.settings.max_crashes)
            redis.zadd(keys.PREFIXES["run"] + "global", dict.fromkeys(ids, 1))
        case _:
            for one in ids:
                redis.hset(keys.job(one), "status", "canceled")
            redis.zadd("rq:canceled:p1", dict.fromkeys(ids, 1))
    counts = []
    for _ in range(4):
        store.reap()
        counts.append(sum(redis.hexists(keys.job(one), "ended_ms") for one in ids))
    assert counts == [1, 2, 3, 3]


@pytest.mark.parametrize("is_gone", [True, False])
def test_those_left_of_a_job_that_succeeded_go_on_when_its_hash_has_expired(
    is_gone: bool, redis: Redis, store: Store, submit: Submit
) -> None:
    top = submit()
    ids = [submit(depends_on={top: "/depends_on/0"}) for _ in range(210)]
    end(store, claim(store))
    left = [one for one in ids if status(redis, one) == "deferred"]
    assert len(left) == 10
    if is_gone:
        redis.delete(keys.job(top))
    assert store.cancel(left[0]) == "dequeued"
    assert faults(store) == []
    assert store.revisit() == 9
    assert {status(redis, one) for one in ids if one != left[0]} == {"queued"}
    assert leftovers(redis) == {"gm:waiting"}
    assert redis.hget(keys.PREFIXES["waiting"], "a") == b"209"


def test_one_left_of_a_job_that_succeeded_still_waits_for_its_others(
    redis: Redis, store: Store, submit: Submit
) -> None:
    top = submit()
    other = submit()
    for _ in range(200):
        submit(depends_on={top: "/depends_on/0"})
    child = submit(depends_on=dict.fromkeys((top, other), "/depends_on/0"))
    last = [submit(depends_on=dict.fromkeys((top, other), "/depends_on/0")) for _ in range(5)]
    end(store, claim(store))
    while store.revisit():
        pass
    assert {status(redis, one) for one in (child, *last)} == {"deferred"}
    look_at_all(redis)
    assert store.revisit() == 6
    assert store.cancel(other) == "dequeued"
    assert {(found.state if (found := store.get(one)) else None) for one in (child, *last)} == {JobState.CANCELED}
