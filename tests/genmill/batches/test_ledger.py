"""Transitions of a batch that are made twice, because the first one's reply was lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Connection, Redis
from redis.exceptions import ConnectionError  # noqa: A004 - redis's own

from genmill import keys
from genmill.batches import BatchRecord, BatchState, Ledger
from genmill.batches.ledger import Collected
from genmill.connections import connect
from genmill.settings import Settings
from tests.batches import Create, lines_of


class LosesOneReply(Connection):
    """Once `is_armed`, it breaks between the server's next answer and its reader."""

    is_armed = False

    def read_response(self, *args: Any, **options: Any) -> Any:
        answer = super().read_response(*args, **options)
        if type(self).is_armed:
            type(self).is_armed = False
            self.disconnect()
            raise ConnectionError("the reply got lost")
        return answer


@pytest.fixture
def lossy(settings: Settings, redis: Redis) -> Iterator[Ledger]:
    """Its next command is made twice."""
    client = connect(settings)
    client.connection_pool.connection_class = LosesOneReply
    ledger = Ledger(client, settings)
    for script in ledger._scripts.values():
        client.script_load(script.script)
    LosesOneReply.is_armed = True
    yield ledger
    assert not LosesOneReply.is_armed, "no reply was lost"
    client.close()


def part(name: str, *lines: int) -> Collected:
    return Collected(name, lines, succeeded=len(lines), failed=0, canceled=0)


def test_a_part_that_is_entered_twice_counts_once_and_is_the_callers_own(
    create: Create, ledger: Ledger, redis: Redis
) -> None:
    batch = create(lines_of(3))
    ledger.feed(batch.batch_id, 0, 3, {})
    assert ledger.collect(batch.batch_id, 0, part("one", 1, 2))
    assert ledger.collect(batch.batch_id, 0, part("one", 1, 2))
    assert not ledger.collect(batch.batch_id, 0, part("other", 1, 2))
    found = ledger.read(batch.batch_id)
    assert found is not None
    assert (found.done, found.succeeded, ledger.part_name(batch.batch_id, 0)) == (2, 2, "one")


def test_a_part_whose_commit_is_repeated_is_not_thrown_away(create: Create, ledger: Ledger, lossy: Ledger) -> None:
    batch = create(lines_of(3))
    ledger.feed(batch.batch_id, 0, 3, {})
    assert lossy.collect(batch.batch_id, 0, part("one", 1, 2))
    assert ledger.part_name(batch.batch_id, 0) == "one"


def _feed(ledger: Ledger, batch: BatchRecord) -> object:
    return ledger.feed(batch.batch_id, 0, 2, {2: "{}"})


def _conclude(ledger: Ledger, batch: BatchRecord) -> object:
    return ledger.conclude(batch.batch_id, BatchState.IN_PROGRESS)


def _cancel(ledger: Ledger, batch: BatchRecord) -> object:
    return ledger.cancel(batch.batch_id)


@pytest.mark.parametrize(
    ("call", "answer"), [(_feed, True), (_conclude, BatchState.IN_PROGRESS), (_cancel, "cancelling")]
)
def test_a_repeat_says_that_it_is_done(
    call: Callable[[Ledger, BatchRecord], object], answer: object, create: Create, lossy: Ledger
) -> None:
    assert call(lossy, create(lines_of(3))) == answer


def test_an_enrolment_that_is_repeated_is_new(ledger: Ledger, lossy: Ledger) -> None:
    batch_id = "batch_" + "0" * 26
    ledger.reserve(batch_id)
    made = lossy.enroll(batch_id, "a", "digest", {"total": 1}, expires_in_s=60)
    assert (made.batch_id, made.is_new) == (batch_id, True)


def test_an_ended_batch_takes_no_more_lines(create: Create, ledger: Ledger, redis: Redis) -> None:
    batch = create(lines_of(3))
    redis.hset(keys.batch(batch.batch_id), "state", "cancelled")
    assert not ledger.feed(batch.batch_id, 0, 2, {})
    assert ledger.open_count(batch.batch_id) == 0


def test_the_round_reads_no_metadata(create: Create, ledger: Ledger) -> None:
    batch = create(lines_of(3), metadata={"for": "you"}, about={"endpoint": "x"})
    (active,) = ledger.active()
    assert (active.metadata, active.about) == ({}, {})
    assert (active.batch_id, active.total, active.body, active.kind) == (batch.batch_id, 3, batch.body, "native")
