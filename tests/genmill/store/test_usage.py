"""What tenants use, by day."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis
from rq.job import Job
from rq.serializers import JSONSerializer

from genmill import keys
from genmill.errors import InvalidJob, InvalidRequest
from genmill.registry import ModelSpec
from genmill.store import Outcome, Settlement, Store, Want
from genmill.store.encoding import output_bytes
from genmill.store.usage import DayUse
from genmill.usage import period, usage_csv, usage_view
from tests.conftest import SettingsFactory
from tests.genmill.store.conftest import Submit

CLASSES = ["p0", "p1", "p2", "p3"]
RESULT = {"outputs": [{"key": "k", "bytes": 1000}, {"key": "l", "bytes": 500}]}


def today() -> date:
    return datetime.now(UTC).date()


def uses(store: Store, tenant: str | None = None) -> dict[str, tuple[Any, ...]]:
    """By tenant: GPU ms, succeeded, failed, canceled, expired, bytes; summed, so that midnight does no harm."""
    sums: dict[str, tuple[Any, ...]] = {}
    for use in store.usage.days(today() - timedelta(days=1), today(), tenant):
        sums[use.tenant] = tuple(a + b for a, b in zip(sums.get(use.tenant, (0,) * 6), use[2:], strict=True))
    return sums


def settle_all(store: Store, spec: ModelSpec, outcome: Outcome, **facts: Any) -> int:
    claims = store.claim("w", CLASSES, [Want(spec.batch_key, 48)]).claims
    store.settle([Settlement(c.job_id, c.fence, outcome, **facts) for c in claims])
    return len(claims)


def test_every_end_counts_once_for_its_tenant(
    make_settings: SettingsFactory, redis: Redis, submit: Submit, shapes: ModelSpec
) -> None:
    store = Store(redis, make_settings(lease_s=0.002, renew_s=0.001, max_crashes=1))
    for tenant in ("a", "a", "b"):
        submit(tenant, store=store)
    assert settle_all(store, shapes, Outcome.FINISHED, result=RESULT, gpu_ms=250.5) == 3
    submit("a", store=store)
    settle_all(store, shapes, Outcome.FAILED, error=InvalidJob(), gpu_ms=10)
    store.cancel(submit("a", store=store))
    submit("a", store=store)
    settle_all(store, shapes, Outcome.CANCELED, gpu_ms=5)
    assert uses(store) == {"a": (516.0, 2, 1, 2, 0, 3000), "b": (250.5, 1, 0, 0, 0, 1500)}
    assert uses(store, "b") == {"b": (250.5, 1, 0, 0, 0, 1500)}
    assert uses(store, "nobody") == {}


def test_what_the_scheduler_ends_counts_too(
    make_settings: SettingsFactory, redis: Redis, submit: Submit, shapes: ModelSpec
) -> None:
    store = Store(redis, make_settings(max_crashes=1))
    job_id = submit("a", store=store)
    store.claim("w", CLASSES, [Want(shapes.batch_key, 1)])
    redis.zadd("gm:run:global", {job_id: 0})  # the lease ran out
    late = submit("a", store=store, ttl_s=60)
    redis.zadd("gm:ttl", {late: 0})
    reaped = store.reap()
    assert (reaped.poisoned, reaped.expired) == (1, 1)
    assert uses(store) == {"a": (0, 0, 1, 0, 1, 0)}


def test_what_rq_cancels_counts_once(store: Store, redis: Redis, submit: Submit) -> None:
    Job.fetch(submit("a"), connection=redis, serializer=JSONSerializer).cancel()
    for _ in range(2):
        store.reap()
    assert uses(store) == {"a": (0, 0, 0, 1, 0, 0)}


def test_what_goes_back_or_is_told_twice_counts_nothing(store: Store, submit: Submit, shapes: ModelSpec) -> None:
    submit("a")
    settle_all(store, shapes, Outcome.RETURNED, gpu_ms=9)
    assert uses(store) == {}
    (claim,) = store.claim("w", CLASSES, [Want(shapes.batch_key, 1)]).claims
    for _ in range(2):
        store.settle([Settlement(claim.job_id, claim.fence, Outcome.FINISHED, {}, gpu_ms=7)])
    assert uses(store) == {"a": (7.0, 1, 0, 0, 0, 0)}


def test_deliveries_are_nobodys_use(store: Store, submit: Submit, shapes: ModelSpec) -> None:
    submit("a", webhook="https://hooks.example/x")
    settle_all(store, shapes, Outcome.FINISHED, result={})
    (delivery,) = store.claim("w", ["callbacks"], [Want("callbacks", 1)]).claims
    store.settle([Settlement(delivery.job_id, delivery.fence, Outcome.FINISHED, {})])
    assert set(uses(store)) == {"a"}


def test_a_batch_costs_two_commands_whatever_is_in_it(
    store: Store, redis: Redis, submit: Submit, shapes: ModelSpec
) -> None:
    for wanted in (["HMGET", "HSET", "EXPIRE"], ["HMGET", "HSET"]):
        for number in range(8):
            submit(f"t{number % 4}")
        with redis.monitor() as monitor:
            settle_all(store, shapes, Outcome.FINISHED, result=RESULT, gpu_ms=1)
            redis.echo("all is said")
            said = iter(lambda: monitor.next_command()["command"], "ECHO all is said")
            assert [command.split()[0] for command in said if "gm:usage:" in command] == wanted


def test_a_day_is_kept_for_400_days(store: Store, redis: Redis, submit: Submit, shapes: ModelSpec) -> None:
    submit("a")
    settle_all(store, shapes, Outcome.FINISHED, result={})
    (name,) = redis.keys("gm:usage:*")
    assert keys.USAGE_TTL_S - 60 <= redis.ttl(name) <= keys.USAGE_TTL_S == 400 * 86400


ANYTHING = st.recursive(
    st.none() | st.integers(min_value=0) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["outputs", "text", "bytes"]), inner, max_size=3)
    ),
)


@given(ANYTHING)
def test_any_result_has_a_size(result: Any) -> None:
    assert output_bytes(result) >= 0


def test_a_text_counts_as_utf_8() -> None:
    assert output_bytes({"outputs": [], "text": {"text": "über"}}) == 5


def test_the_days_that_are_asked_for() -> None:
    now = date(2026, 3, 31)
    assert period(None, None, now) == (date(2026, 3, 2), now)
    assert period(date(2026, 3, 31), None, now) == (now, now)
    assert period(None, date(2026, 1, 30), now) == (date(2026, 1, 1), date(2026, 1, 30))
    assert period(None, date(1, 1, 15), now) == (date(1, 1, 1), date(1, 1, 15))
    for first, last in ((date(2026, 4, 1), None), (date(2020, 1, 1), None)):
        with pytest.raises(InvalidRequest, match=r"1 to 400"):
            period(first, last, now)


def test_json_and_csv_tell_the_same() -> None:
    day = date(2026, 3, 1)
    rows = [DayUse(day, "a", 1500.0, 2, 1, 0, 0, 10), DayUse(day, "b", 500.0, 1, 0, 3, 1, 5)]
    view = usage_view(rows, day, day)
    assert view["data"][0] == {
        "day": "2026-03-01", "tenant": "a", "succeeded": 2, "failed": 1, "canceled": 0, "expired": 0,
        "gpu_seconds": 1.5, "output_bytes": 10,
    }  # fmt: skip
    assert view["total"] == {
        "succeeded": 3, "failed": 1, "canceled": 3, "expired": 1, "gpu_seconds": 2.0, "output_bytes": 15,
    }  # fmt: skip
    assert usage_csv(rows).splitlines() == [
        "day,tenant,succeeded,failed,canceled,expired,gpu_seconds,output_bytes",
        "2026-03-01,a,2,1,0,0,1.5,10",
        "2026-03-01,b,1,0,3,1,0.5,5",
    ]
