"""API keys: shown once, stored hashed; scopes, ends, rotation, last use."""

from __future__ import annotations

import json
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from genmill import api_keys, audit
from genmill.api_keys import Scope
from genmill.errors import InvalidRequest, NotFound

NOW_S = 1_800_000_000.0
HOUR_S = 3600


def tenant_of(redis: Redis, key: str, now_s: float = NOW_S) -> str | None:
    found = api_keys.identify(redis, key, now_s)
    return found and found.tenant


def test_create_and_look_up(redis: Redis) -> None:
    key = api_keys.create(redis, "alice", "laptop")
    assert key.startswith("gm_")
    assert len(key) > 40
    assert tenant_of(redis, key) == "alice"
    assert tenant_of(redis, key[:-1]) is None
    assert tenant_of(redis, "") is None
    assert tenant_of(redis, api_keys.key_id_of(key)) is None


def test_the_key_itself_is_not_stored(redis: Redis) -> None:
    key = api_keys.create(redis, "alice", "laptop")
    api_keys.identify(redis, key)
    new = api_keys.rotate(redis, key)
    api_keys.revoke(redis, new)
    kept = str([redis.hgetall("gm:apikeys"), redis.keys("*"), redis.xrange("gm:audit")])
    assert key not in kept
    assert new not in kept


def test_list_and_revoke(redis: Redis) -> None:
    one, two = api_keys.create(redis, "alice", "one"), api_keys.create(redis, "bob", "two")
    assert {(key.tenant, key.name) for key in api_keys.list_keys(redis)} == {("alice", "one"), ("bob", "two")}
    tenant_of(redis, one)
    assert api_keys.revoke(redis, one).tenant == "alice"
    assert tenant_of(redis, one) is None
    (left,) = api_keys.list_keys(redis)
    assert api_keys.revoke(redis, left.key_id).name == "two"
    assert tenant_of(redis, two) is None
    with pytest.raises(NotFound):
        api_keys.revoke(redis, one)
    assert redis.keys("gm:key*") == redis.keys("gm:apikeys") == []


def test_scopes_are_a_set_in_one_order(redis: Redis) -> None:
    key = api_keys.create(redis, "alice", "", scopes=["admin", "submit", "admin"])
    found = api_keys.identify(redis, key)
    assert found is not None
    assert found.scopes == (Scope.SUBMIT, Scope.ADMIN)


def test_a_key_that_was_stored_before_there_were_scopes_submits_and_reads(redis: Redis) -> None:
    key = "gm_of_an_earlier_version"
    old = {"tenant": "alice", "name": "x", "created_at": "2026-01-01T00:00:00+00:00"}
    redis.hset("gm:apikeys", api_keys.digest_of(key), json.dumps(old))
    found = api_keys.identify(redis, key)
    assert found is not None
    assert (found.tenant, found.scopes) == ("alice", (Scope.SUBMIT, Scope.READ))
    new = api_keys.identify(redis, api_keys.rotate(redis, key))
    assert new is not None
    assert (new.tenant, new.scopes, new.expires_at) == ("alice", (Scope.SUBMIT, Scope.READ), None)


def test_a_key_ends_with_its_life(redis: Redis) -> None:
    key = api_keys.create(redis, "alice", "", lifetime_s=HOUR_S, now_s=NOW_S)
    assert tenant_of(redis, key, NOW_S + HOUR_S - 1) == "alice"
    assert tenant_of(redis, key, NOW_S + HOUR_S) is None
    with pytest.raises(InvalidRequest, match="has expired at"):
        api_keys.rotate(redis, key, now_s=NOW_S + HOUR_S)
    (listed,) = api_keys.list_keys(redis)
    assert listed.is_expired(NOW_S + HOUR_S)


def test_after_a_rotation_both_work_until_the_grace_ends(redis: Redis) -> None:
    old = api_keys.create(redis, "alice", "ci", scopes=["read"], lifetime_s=100 * HOUR_S, now_s=NOW_S)
    new = api_keys.rotate(redis, old, grace_s=2 * HOUR_S, now_s=NOW_S + HOUR_S)
    end_s = NOW_S + 3 * HOUR_S
    assert tenant_of(redis, old, end_s - 1) == tenant_of(redis, new, end_s - 1) == "alice"
    assert (tenant_of(redis, old, end_s), tenant_of(redis, new, end_s)) == (None, "alice")
    facts = api_keys.find(redis, api_keys.key_id_of(new))
    assert (facts.name, facts.scopes) == ("ci", (Scope.READ,))
    assert tenant_of(redis, new, NOW_S + 101 * HOUR_S) is None
    assert api_keys.find(redis, api_keys.key_id_of(old)).rotated_to == api_keys.key_id_of(new)


def test_a_rotation_never_prolongs_the_old_key(redis: Redis) -> None:
    old = api_keys.create(redis, "alice", "", lifetime_s=HOUR_S, now_s=NOW_S)
    api_keys.rotate(redis, old, grace_s=10 * HOUR_S, now_s=NOW_S)
    assert tenant_of(redis, old, NOW_S + HOUR_S) is None


@pytest.mark.parametrize("lifetime_s", [None, 100 * HOUR_S])
def test_a_second_rotation_makes_a_key_of_the_same_length_of_life(lifetime_s: float | None, redis: Redis) -> None:
    """As who repeats a call whose answer was lost."""
    old = api_keys.create(redis, "alice", "", lifetime_s=lifetime_s, now_s=NOW_S)
    for _ in range(2):
        new = api_keys.rotate(redis, old, grace_s=HOUR_S, now_s=NOW_S)
        again = api_keys.rotate(redis, new, grace_s=HOUR_S, now_s=NOW_S)
        for key in (new, again):
            ends_s = NOW_S + HOUR_S if key == new else NOW_S + (lifetime_s or 1e9)
            assert tenant_of(redis, key, ends_s - 1) == "alice"
    assert tenant_of(redis, old, NOW_S + HOUR_S) is None


def test_a_rotation_without_grace_revokes(redis: Redis) -> None:
    old = api_keys.create(redis, "alice", "")
    new = api_keys.rotate(redis, api_keys.key_id_of(old), grace_s=0)
    assert (tenant_of(redis, old), tenant_of(redis, new)) == (None, "alice")
    assert [key.key_id for key in api_keys.list_keys(redis)] == [api_keys.key_id_of(new)]


def test_the_last_use_is_written_once_a_minute_and_does_not_outlive_its_key_for_ever(redis: Redis) -> None:
    key = api_keys.create(redis, "alice", "")
    assert api_keys.list_keys(redis)[0].last_used_at is None
    for after_s in (0, 59, 60, 61):
        api_keys.identify(redis, key, NOW_S + after_s)
    used = api_keys.find(redis, api_keys.key_id_of(key)).last_used_at
    assert used == api_keys._iso(NOW_S + 60)
    (name,) = redis.keys("gm:keyuse:*")
    assert redis.ttl(name) > 0


def test_a_full_redis_refuses_no_key(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    key = api_keys.create(redis, "alice", "")

    def fail(*_: Any, **__: Any) -> None:
        raise ResponseError("OOM command not allowed")

    monkeypatch.setattr(redis, "set", fail)
    assert tenant_of(redis, key) == "alice"


@pytest.mark.parametrize("tenant", ["", "Alice", "a b", "a:b", "host:x", "../x", "x" * 65])
def test_bad_tenant_names(tenant: str, redis: Redis) -> None:
    with pytest.raises(InvalidRequest):
        api_keys.create(redis, tenant, "x")
    assert redis.dbsize() == 0


@pytest.mark.parametrize(
    ("facts", "pointer", "limit"),
    [
        ({"scopes": ["root"]}, "/scopes", "submit, read, admin"),
        ({"scopes": []}, "/scopes", "submit, read, admin"),
        ({"lifetime_s": 0}, "/lifetime_s", "1.."),
        ({"lifetime_s": float("nan")}, "/lifetime_s", "1.."),
        ({"lifetime_s": 1e12}, "/lifetime_s", "1.."),
        ({"name": "x" * 201}, "/name", "200"),
        ({"name": "a\nb"}, "/name", "200"),
    ],
)
def test_bad_facts(facts: dict[str, Any], pointer: str, limit: str, redis: Redis) -> None:
    with pytest.raises(InvalidRequest) as caught:
        api_keys.create(redis, "alice", **{"name": "", **facts})
    (fault,) = caught.value.faults
    assert fault.pointer == pointer
    assert limit in (fault.limit or "")
    assert redis.dbsize() == 0


@pytest.mark.parametrize("grace_s", [-1, float("inf")])
def test_a_grace_that_cannot_be_changes_nothing(grace_s: float, redis: Redis) -> None:
    key = api_keys.create(redis, "alice", "")
    with pytest.raises(InvalidRequest):
        api_keys.rotate(redis, key, grace_s=grace_s)
    assert len(api_keys.list_keys(redis)) == 1
    assert [entry.action for entry in audit.entries(redis)] == ["key.create"]
