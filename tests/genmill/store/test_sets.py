"""Sets of adapters in the queue: lanes of their own, found by a worker that knows only the model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from redis import Redis

from genmill import keys
from genmill.extras import AdapterSpec
from genmill.jobs import JobRequest, new_job_id
from genmill.keys import JobClass
from genmill.registry import ModelSpec
from genmill.store import Outcome, Settlement, Store, Want

CLASSES = [c.value for c in JobClass]
SubmitWith = Callable[..., str]


@pytest.fixture
def spec(shapes: ModelSpec) -> ModelSpec:
    names = ("ink", "neon")
    return shapes.model_copy(update={"adapters": {name: AdapterSpec(source="none") for name in names}})


@pytest.fixture
def submit_with(store: Store, spec: ModelSpec) -> SubmitWith:
    """Store a job with these adapters, by name and weight, and return its id."""

    def make(tenant: str = "a", job_class: JobClass = JobClass.P1, **loras: float) -> str:
        asked = [{"name": name, "weight": weight} for name, weight in loras.items()]
        job_input = spec.parse_input({"prompt": "x", "loras": asked})
        return store.submit(JobRequest(new_job_id(), tenant, spec, job_input, job_class))[0]

    return make


def claim(store: Store, *wants: Want) -> list[str]:
    return [one.job_id for one in store.claim("w", CLASSES, wants).claims]


def sets(spec: ModelSpec, slots: int = 8, **more: object) -> Want:
    return Want(spec.batch_key + "+", slots, **more)  # type: ignore[arg-type]


def test_a_claim_takes_jobs_of_one_set(store: Store, spec: ModelSpec, submit_with: SubmitWith) -> None:
    first, plain, again, other = (
        submit_with(ink=1.0), submit_with(), submit_with(ink=1), submit_with(neon=0.5, ink=1.0)
    )  # fmt: skip
    want = sets(spec, is_resident=True)
    assert claim(store, want) == [first, again]
    assert claim(store, want) == [other]
    assert claim(store, want) == []
    assert claim(store, Want(spec.batch_key, 8)) == [plain]


def test_the_model_and_its_sets_come_by_virtual_deadline(
    store: Store, spec: ModelSpec, submit_with: SubmitWith
) -> None:
    late, urgent = submit_with(), submit_with(job_class=JobClass.P0, ink=1.0)
    wants = [Want(spec.batch_key, 8, is_resident=True), sets(spec, is_resident=True)]
    assert [claim(store, *wants), claim(store, *wants)] == [[urgent], [late]]


def test_a_set_with_an_adapter_that_is_not_meant_waits(store: Store, spec: ModelSpec, submit_with: SubmitWith) -> None:
    inked, both, neon = submit_with(ink=1.0), submit_with(ink=0.5, neon=1.0), submit_with(neon=1.0)
    assert claim(store, sets(spec, but=("ink",))) == [neon]
    assert claim(store, sets(spec, but=("ink",))) == []
    assert {*claim(store, sets(spec)), *claim(store, sets(spec))} == {inked, both}


def test_a_worker_of_another_model_does_not_find_them(store: Store, spec: ModelSpec, submit_with: SubmitWith) -> None:
    submit_with(ink=1.0)
    assert claim(store, Want("shapes@2/auto+", 8), Want("shape@1/auto+", 8), Want(spec.batch_key, 8)) == []


def test_limits_of_the_model_hold_for_all_its_sets(store: Store, spec: ModelSpec, submit_with: SubmitWith) -> None:
    for weight in (0.1, 0.2, 0.3):
        submit_with(ink=weight)
    store.limits.set({"model:shapes": 2})
    assert [len(claim(store, sets(spec))) for _ in range(3)] == [1, 1, 0]


def test_many_sets_of_a_tenant_at_its_limit_hide_nobody(
    store: Store, spec: ModelSpec, submit_with: SubmitWith
) -> None:
    for number in range(40):
        submit_with("crowd", ink=0.01 * (number + 1))
    store.limits.set({"tenant:crowd": 1})
    assert len(claim(store, sets(spec))) == 1
    other = submit_with("other", neon=1.0)
    found: list[str] = []
    for _ in range(4):
        found += claim(store, sets(spec))
    assert found == [other]


def test_many_sets_of_a_tenant_take_no_more_of_the_gpu_than_its_share(
    store: Store, spec: ModelSpec, submit_with: SubmitWith
) -> None:
    for number in range(40):
        submit_with("crowd", ink=0.01 * (number + 1))
    submit_with("other", neon=1.0)
    served = []
    for _ in range(4):
        (one,) = store.claim("w", CLASSES, [sets(spec, is_resident=True)]).claims
        store.settle([Settlement(one.job_id, one.fence, Outcome.FINISHED, {}, gpu_ms=8000.0, run_ms=8000.0)])
        served.append(one.tenant)
    assert served == ["crowd", "crowd", "other", "crowd"]


def test_what_a_claim_costs_does_not_grow_with_the_number_of_sets(
    store: Store, spec: ModelSpec, submit_with: SubmitWith, redis: Redis
) -> None:
    def commands_of_a_claim(count: int) -> int:
        redis.flushall()
        for number in range(count):
            submit_with(ink=0.001 * (number + 1))
        redis.config_resetstat()
        assert len(store.claim("w", CLASSES, [sets(spec)]).claims) == 1
        return sum(stat["calls"] for stat in redis.info("commandstats").values())

    assert commands_of_a_claim(400) <= commands_of_a_claim(120) + 10


def test_sets_leave_nothing_behind_and_share_their_models_pace(
    store: Store, spec: ModelSpec, submit_with: SubmitWith, redis: Redis
) -> None:
    for number in range(5):
        submit_with(ink=0.1 * (number + 1))
        (one,) = store.claim("w", CLASSES, [sets(spec)]).claims
        store.settle([Settlement(one.job_id, one.fence, Outcome.FINISHED, {}, gpu_ms=5.0, run_ms=50.0)])
    assert redis.hkeys(keys.PREFIXES["pace"]) == [spec.batch_key.encode()]
    places = ("lane", "ready", "act", "parked", "bkhead")
    assert [key for place in places for key in redis.keys(keys.PREFIXES[place] + "*")] == []


def test_a_set_that_nobody_has_run_knows_its_models_pace(
    store: Store, spec: ModelSpec, submit_with: SubmitWith, redis: Redis
) -> None:
    submit_with()
    (one,) = store.claim("w", CLASSES, [Want(spec.batch_key, 1)]).claims
    store.settle([Settlement(one.job_id, one.fence, Outcome.FINISHED, {}, gpu_ms=5.0, run_ms=60_000.0)])
    redis.sadd("rq:workers:p1", "w")
    job_input = spec.parse_input({"prompt": "x", "loras": [{"name": "ink"}]})
    (late,) = store.submit_many([JobRequest(new_job_id(), "a", spec, job_input, deadline_s=1.0)])
    assert late.late is not None
