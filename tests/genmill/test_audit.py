"""The log of what operators did."""

from __future__ import annotations

import json

import pytest
from redis import Redis

from genmill import api_keys, audit, keys, tenants
from genmill.audit import Actor
from genmill.errors import InvalidRequest
from genmill.store import Store
from genmill.tenants import TenantFacts

BY = Actor("0123456789ab", "203.0.113.7")


def test_every_change_is_told_with_before_and_after(redis: Redis, store: Store) -> None:
    key = api_keys.create(redis, "acme", "ci", by=BY)
    tenants.change(redis, "acme", TenantFacts(weight=2, classes=("p2", "p1")), by=BY)
    tenants.change(redis, "acme", TenantFacts(weight=None, max_queued=5), by=BY)
    store.limits.set({"all": 4, "weight:acme": 3}, by=BY)
    store.limits.unset(["all"], by=BY)
    new = api_keys.rotate(redis, key, by=BY)
    api_keys.revoke(redis, new, by=BY)

    log = list(reversed(audit.entries(redis)))
    assert {(entry.who, entry.where) for entry in log} == {BY}
    assert [(entry.action, entry.target) for entry in log] == [
        ("key.create", api_keys.key_id_of(key)),
        ("tenant.change", "acme"),
        ("tenant.change", "acme"),
        ("limits.change", "all weight:acme"),
        ("limits.change", "all"),
        ("key.rotate", api_keys.key_id_of(key)),
        ("key.create", api_keys.key_id_of(new)),
        ("key.revoke", api_keys.key_id_of(new)),
    ]
    assert (log[1].before, log[1].after) == (
        {"weight": None, "classes": None},
        {"weight": 2.0, "classes": ["p1", "p2"]},
    )
    assert (log[2].before, log[2].after) == ({"weight": 2.0, "max_queued": None}, {"weight": None, "max_queued": 5})
    assert log[3].before == {"all": None, "weight:acme": None}
    assert (log[4].before, log[4].after) == ({"all": 4.0}, {"all": None})
    assert (log[0].before, log[0].after["tenant"]) == (None, "acme")
    assert log[5].after["rotated_to"] == api_keys.key_id_of(new)
    assert (log[7].before["tenant"], log[7].after) == ("acme", None)


def test_no_secret_is_in_it(redis: Redis) -> None:
    key = api_keys.create(redis, "acme", "")
    new = api_keys.rotate(redis, key)
    text = json.dumps([entry._asdict() for entry in audit.entries(redis)])
    for secret in (key, new):
        assert secret not in text
        assert api_keys.digest_of(secret) not in text


def test_without_a_key_it_is_the_user_at_this_machine(redis: Redis) -> None:
    api_keys.create(redis, "acme", "")
    (entry,) = audit.entries(redis)
    assert entry.who == "cli"
    assert "@" in entry.where


def test_it_is_bounded_and_ends(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "AUDIT_MAXLEN", 100)
    with redis.pipeline() as pipe:
        for number in range(500):
            audit.note(pipe, BY, "x", f"{number}", None, None)
        pipe.execute()
    assert 100 <= redis.xlen("gm:audit") < 300
    assert 0 < redis.ttl("gm:audit") <= keys.AUDIT_TTL_S


def test_pages(redis: Redis) -> None:
    with redis.pipeline() as pipe:
        for number in range(5):
            audit.note(pipe, BY, "x", f"{number}", None, None)
        pipe.execute()
    first = audit.entries(redis, limit=3)
    rest = audit.entries(redis, limit=3, after=first[-1].entry_id)
    assert [entry.target for entry in first + rest] == ["4", "3", "2", "1", "0"]
    assert audit.entries(redis, after="0-0") == []
    assert len(audit.entries(redis, after=f"{2**64 - 1}-{2**64 - 1}")) == 5
    with pytest.raises(InvalidRequest, match="after must be the id of an entry"):
        audit.entries(redis, after="-; FLUSHALL")
