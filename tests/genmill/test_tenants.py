"""API keys: shown once, stored hashed."""

from __future__ import annotations

import pytest
from redis import Redis

from genmill import tenants
from genmill.errors import InvalidRequest, NotFound


def test_create_and_look_up(redis: Redis) -> None:
    key = tenants.create(redis, "alice", "laptop")
    assert key.startswith("gm_")
    assert len(key) > 40
    assert tenants.lookup(redis, key) == "alice"
    assert tenants.lookup(redis, key[:-1]) is None
    assert tenants.lookup(redis, "") is None


def test_the_key_itself_is_not_stored(redis: Redis) -> None:
    key = tenants.create(redis, "alice", "laptop")
    assert key not in str(redis.hgetall("gm:apikeys"))


def test_list_and_revoke(redis: Redis) -> None:
    one, two = tenants.create(redis, "alice", "one"), tenants.create(redis, "bob", "two")
    assert {(key.tenant, key.name) for key in tenants.list_keys(redis)} == {("alice", "one"), ("bob", "two")}
    assert tenants.revoke(redis, one).tenant == "alice"
    assert tenants.lookup(redis, one) is None
    (left,) = tenants.list_keys(redis)
    assert tenants.revoke(redis, left.key_id).name == "two"
    assert tenants.lookup(redis, two) is None
    with pytest.raises(NotFound):
        tenants.revoke(redis, one)


@pytest.mark.parametrize("tenant", ["", "Alice", "a b", "a:b", "host:x", "../x", "x" * 65])
def test_bad_tenant_names(tenant: str, redis: Redis) -> None:
    with pytest.raises(InvalidRequest):
        tenants.create(redis, tenant, "x")
    assert redis.dbsize() == 0
