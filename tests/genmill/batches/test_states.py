"""Any sequence of events, in any order: every batch is in the state that the table says, and tells its end once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from redis import Redis

from genmill import keys
from genmill.batches import BatchState, Ledger
from genmill.batches.ledger import Collected
from genmill.batches.records import new_batch_id
from genmill.batches.states import TRANSITIONS
from genmill.store import Store, Want

LINES = 3
HOOK = "https://example.org/batch"


class Batches(RuleBasedStateMachine):
    """The ledger, and beside it what the table of transitions makes of the same events."""

    ledger: Ledger
    redis: Redis
    reached: set[str]

    batches = Bundle("batches")

    @initialize()
    def begin(self) -> None:
        self.redis.flushall()
        self.states: dict[str, BatchState] = {}
        self.fed: dict[str, int] = {}
        self.open: dict[str, set[int]] = {}
        self.overdue: set[str] = set()

    def move(self, batch_id: str, event: str) -> None:
        self.reached.add(event)
        self.states[batch_id] = TRANSITIONS[self.states.get(batch_id), event]

    @rule(target=batches)
    def enroll(self) -> str:
        batch_id = new_batch_id()
        self.ledger.reserve(batch_id)
        fields = {"total": LINES, "hook": HOOK}
        for _ in range(2):
            assert self.ledger.enroll(batch_id, batch_id[-3:], batch_id, fields, expires_in_s=3600).is_new
        self.fed[batch_id], self.open[batch_id] = 0, set()
        self.move(batch_id, "enroll")
        return batch_id

    @rule(batch_id=batches, lines=st.integers(1, LINES))
    def feed_some(self, batch_id: str, lines: int) -> None:
        self.feed(batch_id, lines)

    def feed(self, batch_id: str, lines: int) -> None:
        to = min(LINES, self.fed[batch_id] + lines)
        is_fed = self.ledger.feed(batch_id, self.fed[batch_id], to, {})
        assert is_fed is not self.states[batch_id].is_terminal
        if is_fed:
            self.open[batch_id] |= set(range(self.fed[batch_id] + 1, to + 1))
            self.fed[batch_id] = to

    @rule(batch_id=batches)
    def collect_all(self, batch_id: str) -> None:
        self.collect(batch_id)

    def collect(self, batch_id: str) -> None:
        record, lines = self.ledger.read(batch_id), sorted(self.open[batch_id])
        assert record is not None
        if lines:
            assert self.ledger.collect(batch_id, record.done, Collected(f"part{record.done}", lines, len(lines), 0, 0))
            self.open[batch_id] = set()

    @rule(batch_id=batches)
    def cancel(self, batch_id: str) -> None:
        verdict, state = self.ledger.cancel(batch_id), self.states[batch_id]
        assert verdict == ("too_late" if state.is_terminal else "cancelling")
        if (state, "cancel") in TRANSITIONS:
            self.move(batch_id, "cancel")

    @rule(batch_id=batches)
    def run_to_the_end(self, batch_id: str) -> None:
        self.feed(batch_id, LINES)
        self.collect(batch_id)
        self.conclude(batch_id, is_stale=False)

    @rule(batch_id=batches)
    def let_time_pass(self, batch_id: str) -> None:
        self.redis.hset(keys.batch(batch_id), "expires_ms", 1)
        self.overdue.add(batch_id)

    @rule(batch_id=batches, is_stale=st.booleans())
    def conclude_it(self, batch_id: str, is_stale: bool) -> None:
        self.conclude(batch_id, is_stale=is_stale)

    def conclude(self, batch_id: str, *, is_stale: bool) -> None:
        state = self.states[batch_id]
        if is_stale:
            believed = BatchState.CANCELLING if state is BatchState.IN_PROGRESS else BatchState.IN_PROGRESS
            if believed is not state:
                assert self.ledger.conclude(batch_id, believed) is state
            return
        is_whole, is_open = self.fed[batch_id] == LINES, bool(self.open[batch_id])
        if state is BatchState.IN_PROGRESS and batch_id in self.overdue and (is_open or not is_whole):
            self.move(batch_id, "expire")
        elif state is BatchState.IN_PROGRESS and is_whole and not is_open:
            self.move(batch_id, "complete")
        elif state.is_draining and not is_open:
            self.move(batch_id, "drain")
        assert self.ledger.conclude(batch_id, state) is self.states[batch_id]

    @invariant()
    def all_is_as_the_table_says(self) -> None:
        for batch_id, state in getattr(self, "states", {}).items():
            assert self.ledger.standing(batch_id) == (state, self.fed[batch_id])
        running = {one for one, state in getattr(self, "states", {}).items() if not state.is_terminal}
        assert {record.batch_id for record in self.ledger.active()} == running

    @invariant()
    def every_end_is_told_once(self) -> None:
        told = {raw.decode() for raw in self.redis.zrange("gm:ready:callbacks:callbacks", 0, -1)}
        states: dict[str, BatchState] = getattr(self, "states", {})
        assert told == {f"cb_{one}_0_{state}" for one, state in states.items() if state.is_terminal}


@pytest.mark.usefixtures("redis")
def test_every_sequence_of_events_obeys_the_table(ledger: Ledger, redis: Redis) -> None:
    reached: set[str] = set()
    machine: Any = type("Machine", (Batches,), {"ledger": ledger, "redis": redis, "reached": reached})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
    assert reached >= {"enroll", "cancel", "complete", "drain"}


def test_the_end_of_a_batch_without_a_webhook_tells_nobody(ledger: Ledger, store: Store) -> None:
    batch_id = new_batch_id()
    ledger.reserve(batch_id)
    ledger.enroll(batch_id, "a", "body", {"total": 1, "hook": ""}, expires_in_s=60)
    ledger.cancel(batch_id)
    assert ledger.conclude(batch_id, BatchState.CANCELLING) is BatchState.CANCELLED
    assert store.claim("w", ["callbacks"], [Want(keys.CALLBACKS, 8)]).claims == ()


def test_states_that_end_are_those_that_lead_nowhere() -> None:
    leaving = {state for state, _ in TRANSITIONS}
    assert {state for state in BatchState if state.is_terminal} == set(BatchState) - leaving
    assert set(TRANSITIONS.values()) == set(BatchState)
