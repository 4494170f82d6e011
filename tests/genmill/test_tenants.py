"""Tenants: facts that are limits, classes, and who is one."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from redis import Redis

from genmill import api_keys, tenants
from genmill.errors import ClassNotAllowed, InvalidRequest, NotFound
from genmill.jobs import JobRequest, new_job_id
from genmill.keys import JobClass
from genmill.registry import ModelSpec, load_registry
from genmill.store import Store
from genmill.tenants import TenantFacts
from tests.conftest import SettingsFactory

SHAPES: ModelSpec = load_registry().get("shapes")


def job(tenant: str, job_class: JobClass) -> JobRequest:
    return JobRequest(new_job_id(), tenant, SHAPES, SHAPES.parse_input({"prompt": "x"}), job_class=job_class)


def test_the_numbers_are_limits_and_are_stored_as_such_only(redis: Redis, store: Store) -> None:
    facts = TenantFacts(weight=2, max_running=4, max_queued=1000, rate_per_minute=100, gpu_seconds_per_day=3600)
    tenants.change(redis, "acme", facts)
    assert store.limits.by_operator() == {
        "weight:acme": 2, "tenant:acme": 4, "queued:acme": 1000, "rate:acme": 100, "budget:acme": 3600,
    }  # fmt: skip
    store.limits.set({"rate:acme": 50})
    assert tenants.read(redis, store.limits, "acme")["rate_per_minute"] == 50
    assert set(redis.keys("*")) == {b"gm:lim:set", b"gm:audit"}


def test_what_is_not_named_stays_and_none_takes_back(redis: Redis, store: Store) -> None:
    tenants.change(redis, "acme", TenantFacts(weight=2, max_queued=10, classes=("p2",)))
    tenants.change(redis, "acme", TenantFacts(weight=None, max_running=1))
    assert store.limits.by_operator() == {"queued:acme": 10, "tenant:acme": 1}
    tenants.change(redis, "acme", TenantFacts(classes=None, max_queued=None, max_running=None))
    assert redis.keys("gm:lim:set") == redis.keys("gm:classes") == []


def test_a_view_has_what_holds_for_all_tenants_too(redis: Redis, make_settings: SettingsFactory) -> None:
    store = Store(redis, make_settings(limits={"tenant:*": 3, "rate:acme": 60, "tc:acme:p0": 1}))
    store.limits.set({"queued:*": 100})
    assert tenants.read(redis, store.limits, "acme") == {
        "tenant": "acme", "weight": 1.0, "classes": ["p0", "p1", "p2", "p3"], "max_running": 3, "max_queued": 100,
        "rate_per_minute": 60, "gpu_seconds_per_day": None, "max_running_by_class": {"p0": 1},
    }  # fmt: skip


def test_whoever_has_a_key_a_limit_or_classes_is_a_tenant(redis: Redis, make_settings: SettingsFactory) -> None:
    store = Store(redis, make_settings(limits={"tc:of-settings:p0": 1, "tenant:*": 3, "host:*": 8, "model:shapes": 2}))
    api_keys.create(redis, "with-key", "")
    store.limits.set({"budget:with-limit": 1})
    tenants.change(redis, "with-classes", TenantFacts(classes=("p3",)))
    names = ["of-settings", "with-classes", "with-key", "with-limit"]
    assert [view["tenant"] for view in tenants.list_tenants(redis, store.limits)] == names
    with pytest.raises(NotFound, match="'nobody'"):
        tenants.read(redis, store.limits, "nobody")


def test_a_tenant_submits_only_to_its_classes(redis: Redis, store: Store) -> None:
    tenants.change(redis, "acme", TenantFacts(classes=("p3", "p1")))
    store.submit(job("acme", JobClass.P1))
    with pytest.raises(ClassNotAllowed, match="priority p0 is not open to this tenant; it may use p1, p3") as caught:
        store.submit(job("acme", JobClass.P0))
    (fault,) = caught.value.faults
    assert (fault.pointer, fault.limit, fault.value) == ("/priority", "p1, p3", "p0")
    store.submit(job("other", JobClass.P0))
    told = store.submit_many([job("acme", JobClass.P0), job("acme", JobClass.P3)])
    assert [one.barred and one.barred.allowed for one in told] == [("p1", "p3"), None]
    assert sum(store.queue_depths().values()) == 3


def test_a_job_that_is_known_is_replayed_after_its_class_was_closed(redis: Redis, store: Store) -> None:
    request = job("acme", JobClass.P0)
    store.submit(request)
    tenants.change(redis, "acme", TenantFacts(classes=("p1",)))
    assert store.submit(request)[0] == request.job_id


@pytest.mark.parametrize(
    "facts",
    [
        {"weight": 0},
        {"classes": []},
        {"classes": ["p9"]},
        {"max_queued": -1},
        {"gpu_seconds_per_day": float("nan")},
        {"x": 1},
    ],
)
def test_facts_that_cannot_be(facts: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        TenantFacts.model_validate(facts)


def test_a_bad_name_stores_nothing(redis: Redis) -> None:
    with pytest.raises(InvalidRequest):
        tenants.change(redis, "a:b", TenantFacts(weight=1))
    assert redis.dbsize() == 0
