"""Batches through a scheduler that cannot go on: its storage fails, its view is old, its lead is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from redis import Redis

from genmill import keys
from genmill.batches import BatchRecord, BatchState, Ledger, LineParts
from genmill.errors import StorageUnavailable
from genmill.registry import load_registry
from genmill.settings import Settings
from genmill.storage import Storage
from genmill.store import Store
from scheduler.batch_round import REST_S, BatchRound
from tests.batches import Create, lines_of
from tests.conftest import SettingsFactory

Work = Callable[..., list[str]]


@pytest.fixture
def settings(make_settings: SettingsFactory) -> Settings:
    return make_settings(batch_window=8)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        self.now += REST_S  # no batch rests
        return self.now


@pytest.fixture
def round_of(store: Store, storage: Storage, settings: Settings) -> Callable[..., BatchRound]:
    """A scheduler's round; each call is another scheduler."""

    def make(leads: Callable[[], bool] = lambda: True) -> BatchRound:
        return BatchRound(store, storage, load_registry(), settings, leads=leads, clock=Clock(), collect_every_s=0)

    return make


def now(ledger: Ledger, batch: BatchRecord) -> BatchRecord:
    found = ledger.read(batch.batch_id)
    assert found is not None
    return found


def _die(*_: object) -> bool:
    raise RuntimeError("killed here")


@pytest.mark.parametrize("is_expired", [True, False])
def test_a_batch_whose_storage_fails_expires_and_cancels_all_the_same(
    is_expired: bool, create: Create, round_of: Callable[..., BatchRound], work: Work, ledger: Ledger,
    storage: Storage, redis: Redis, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    batch, turns = create(lines_of(20)), round_of()
    turns.turn()
    work(most=2)
    if is_expired:
        redis.hset(keys.batch(batch.batch_id), "expires_ms", 1)
    else:
        ledger.cancel(batch.batch_id)

    def fail(*_: object) -> None:
        raise StorageUnavailable

    with monkeypatch.context() as patch:
        patch.setattr(storage, "put", fail)
        turns.turn()
        turns.turn()
        assert now(ledger, batch).state is (BatchState.EXPIRING if is_expired else BatchState.CANCELLING)
        assert work() == []  # what waited is canceled
    turns.turn()
    turns.turn()
    ended = now(ledger, batch)
    assert ended.state is (BatchState.EXPIRED if is_expired else BatchState.CANCELLED)
    assert (ended.succeeded, ended.canceled) == (2, 6)


def test_a_batch_whose_keys_are_broken_holds_no_other_up(
    create: Create, round_of: Callable[..., BatchRound], work: Work, ledger: Ledger, redis: Redis
) -> None:
    broken, whole = create(lines_of(2)), create(lines_of(3, first=50))
    redis.delete(keys.batch_open(broken.batch_id))
    redis.set(keys.batch_open(broken.batch_id), "x", ex=60)
    turns = round_of()
    for _ in range(3):
        turns.turn()
        work()
    assert now(ledger, whole).succeeded == 3
    redis.delete(keys.batch_open(broken.batch_id))


def test_what_is_stored_beyond_the_cursor_is_taken_up_before_the_end(
    create: Create, round_of: Callable[..., BatchRound], work: Work, ledger: Ledger, redis: Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Eight jobs are stored, none is open, and the time is over."""
    batch, dying = create(lines_of(20)), round_of()
    redis.hset(keys.batch(batch.batch_id), "expires_ms", 1)
    with monkeypatch.context() as patch:
        patch.setattr(dying.ledger, "feed", _die)
        dying.turn()
    assert now(ledger, batch).state is BatchState.EXPIRING
    (ran,) = work(most=1)
    assert ran
    for _ in range(3):
        round_of().turn()
    ended = now(ledger, batch)
    assert (ended.state, ended.fed, ended.succeeded, ended.canceled) == (BatchState.EXPIRED, 8, 1, 7)


def test_a_round_with_an_old_view_stores_no_jobs(
    create: Create, round_of: Callable[..., BatchRound], ledger: Ledger, redis: Redis
) -> None:
    """The batch was called off, or fed by another, since it was read."""
    called_off, fed, turns = create(lines_of(20)), create(lines_of(9, first=50)), round_of()
    old = ledger.active()
    ledger.cancel(called_off.batch_id)
    ledger.feed(fed.batch_id, 0, 3, {})
    for batch in old:
        turns.step(batch)
    assert redis.keys("rq:job:*") == []


def test_a_lead_that_is_lost_while_the_lines_are_read_stores_no_jobs(
    create: Create, round_of: Callable[..., BatchRound], ledger: Ledger, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, is_leading = create(lines_of(20)), True
    read = LineParts.read

    def read_slowly(parts: LineParts, batch_id: str, after: int, most: int) -> object:
        nonlocal is_leading
        is_leading = False
        return read(parts, batch_id, after, most)

    monkeypatch.setattr(LineParts, "read", read_slowly)
    round_of(leads=lambda: is_leading).turn()
    assert redis.keys("rq:job:*") == []
    assert now(ledger, batch).fed == 0
