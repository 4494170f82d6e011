"""Every fault that the doctor knows, made by hand on a real server: found, mended, and gone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from redis import Redis
from rq import Queue
from rq.serializers import JSONSerializer

from genmill import doctor, keys
from genmill.cli.app import cli
from genmill.extras import AdapterSpec
from genmill.jobs import JobRequest, new_job_id
from genmill.registry import Registry, load_registry
from genmill.store import Outcome, Settlement, Store, Want
from scheduler.loop import Scheduler
from tests.genmill.store.test_submit import requests

REGISTRY = load_registry()
SPEC = REGISTRY.get("shapes")
CLASSES = ["p0", "p1", "p2", "p3"]


@pytest.fixture(autouse=True)
def server_settings(redis: Redis) -> Iterator[None]:
    """The doctor mends the settings of a server that other tests share."""
    before = {name: redis.config_get(name)[name] for name in doctor.SAFE}
    yield
    for name, value in before.items():
        redis.config_set(name, value)


def claim_all(store: Store) -> list[str]:
    claims = store.claim("w", CLASSES, [Want(SPEC.batch_key, 48)]).claims
    store.settle([Settlement(c.job_id, c.fence, Outcome.FINISHED, {}) for c in claims])
    return [claim.job_id for claim in claims]


def leased(store: Store) -> str:
    (claim,) = store.claim("w", CLASSES, [Want(SPEC.batch_key, 1)]).claims
    return claim.job_id


def lose_place(store: Store, redis: Redis) -> str:
    job_id = leased(store)
    redis.hset(keys.job(job_id), "status", "queued")
    redis.hdel("gm:leases", job_id)
    redis.zrem("gm:run:global", job_id)
    for scope in redis.scan_iter("gm:run:*"):
        if scope != b"gm:run:global":
            redis.srem(scope, job_id)
    return "queued nowhere"


def lose_lease(store: Store, redis: Redis) -> str:
    redis.hdel("gm:leases", leased(store))
    return "running without a lease"


def keep_lease(store: Store, redis: Redis) -> str:
    job_id = leased(store)
    redis.hset(keys.job(job_id), "status", "finished")
    return "lease of a job that does not run"


def lose_job(store: Store, redis: Redis) -> str:
    redis.delete(keys.job(leased(store)))
    return "lease of no job"


def lose_schedule(store: Store, redis: Redis) -> str:
    job_id = leased(store)
    (claim,) = [record for record in store.get_many([job_id]) if record]
    store.settle([Settlement(job_id, claim.fence, Outcome.SCHEDULED, delay_ms=60_000)])
    redis.zrem("rq:scheduled:p1", job_id)
    redis.zrem("rq:scheduled:p2", job_id)
    return "scheduled nowhere"


def leak_slot(_store: Store, redis: Redis) -> str:
    redis.sadd("gm:run:tenant:a", "ghost")
    return "slot of ghost, which holds no lease"


def hide_lane(_store: Store, redis: Redis) -> str:
    redis.zrem(f"gm:act:p1:{SPEC.batch_key}", "a")
    return "lane that no claim would find"


@pytest.mark.parametrize("harm", [lose_place, lose_lease, keep_lease, lose_job, lose_schedule, leak_slot, hide_lane])
def test_a_fault_is_found_mended_and_gone(store: Store, redis: Redis, harm: Callable[[Store, Redis], str]) -> None:
    Scheduler(store, "s").tick()
    store.submit_many(requests(SPEC, 8))
    assert faults(store) == []
    fault = harm(store, redis)

    assert fault in faults(store)
    assert fault in faults(store), "looking mends nothing"
    assert fault in faults(store, mend=True)
    assert faults(store) == []
    claim_all(store)
    assert list(redis.scan_iter("gm:run:*")) == []
    assert sum(store.queue_depths().values()) == 0


def faults(store: Store, *, mend: bool = False) -> list[str]:
    """But for the settings, which this test's server has on purpose."""
    found = doctor.examine(store, REGISTRY, mend=mend)
    return [finding.fault for finding in found if not finding.what.startswith("setting")]


def test_jobs_that_wait_for_others_are_no_fault(store: Store, redis: Redis) -> None:
    Scheduler(store, "s").tick()
    queue = Queue("p1", connection=redis, serializer=JSONSerializer)
    queue.enqueue("worker.tasks.ping", depends_on=queue.enqueue("worker.tasks.ping"))

    assert faults(store) == []


def test_unsafe_settings_and_a_missing_scheduler_are_told(store: Store, redis: Redis) -> None:
    found = {finding.what: finding.fault for finding in doctor.examine(store, REGISTRY, mend=False)}

    assert "a restart of Redis loses every job" in found["setting appendonly"]
    assert "none leads" in found["scheduler"]
    assert redis.config_get("appendonly")["appendonly"] == "no"


def test_jobs_of_a_model_that_nobody_knows_are_told(store: Store) -> None:
    stray = SPEC.model_copy(update={"revision": "99"})
    store.submit_many(requests(stray, 2))

    assert "jobs wait for a model or an adapter that this fleet does not know" in faults(store)


def test_jobs_with_adapters_are_strays_only_where_the_model_has_them_not(store: Store) -> None:
    spec = SPEC.model_copy(update={"adapters": {"ink": AdapterSpec(source="none")}})
    job_input = spec.parse_input({"prompt": "x", "loras": [{"name": "ink"}]})
    store.submit(JobRequest(new_job_id(), "a", spec, job_input))
    wanted = "jobs wait for a model or an adapter that this fleet does not know"

    def told(registry: Registry) -> list[str]:
        found = doctor.examine(store, registry, mend=False)
        return [finding.what for finding in found if finding.fault == wanted]

    assert told(REGISTRY) == [f"{spec.batch_key}+ink=1.0"]
    assert told(Registry(models=(spec,))) == []


def test_the_command_shows_what_is_wrong_and_exits_with_1(
    store: Store, redis: Redis, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GENMILL_REDIS_URL", store.settings.redis_url)
    leak_slot(store, redis)

    assert cli.main(["doctor", "--json"], standalone_mode=False) == 1
    shown = json.loads(capsys.readouterr().out)
    assert {"what": "tenant:a", "fault": "slot of ghost, which holds no lease", "is_mended": False} in shown
