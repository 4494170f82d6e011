"""An urgent job in a fleet that is full of bulk, with the real engine."""

from __future__ import annotations

from genmill.jobs import JobState
from genmill.registry import load_registry
from genmill.store import Store
from tests.fleet import Fleet, eventually
from tests.flow.conftest import Submit

SLOTS = load_registry().get("shapes").max_batch


def states(store: Store, ids: list[str]) -> list[JobState]:
    return [record.state for record in store.get_many(ids) if record]


def test_an_urgent_job_does_not_wait_for_a_full_batch_of_bulk(fleet: Fleet, store: Store, submit: Submit) -> None:
    bulk = [submit(job_class="p3", steps=40, num_images=4, seed=n) for n in range(SLOTS // 4 + 2)]
    fleet.worker("--burst")
    eventually(lambda: states(store, bulk).count(JobState.RUNNING) == SLOTS // 4, within_s=60)

    urgent = submit(job_class="p0", steps=10)
    eventually(lambda: states(store, [urgent]) == [JobState.SUCCEEDED], within_s=30, every_s=0.01)
    assert JobState.SUCCEEDED not in states(store, bulk), "it waited for a slot"

    eventually(lambda: set(states(store, bulk)) == {JobState.SUCCEEDED}, within_s=120)
    assert {record.fence for record in store.get_many(bulk) if record} == {1}, "nobody ran twice"
