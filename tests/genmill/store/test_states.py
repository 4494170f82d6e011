"""Any sequence of events, in any order: every job is in the state that the table says, and in exactly one place."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)
from redis import Redis
from rq.job import Job
from rq.registry import CanceledJobRegistry, FailedJobRegistry
from rq.serializers import JSONSerializer

from genmill import doctor, keys
from genmill.errors import DependencyUnusable, JobFailure
from genmill.jobs import TRANSITIONS, Claim, JobRequest, JobState, new_job_id
from genmill.keys import JobClass
from genmill.registry import ModelSpec, load_registry
from genmill.store import Outcome, Settlement, Store, Want
from genmill.store.callbacks import Subject

LOST = (JobState.FAILED, JobState.EXPIRED, JobState.CANCELED)
LEASE_LEFT = "lease of a job that does not run"
"""The doctor's finding until the attempt ends, or its worker renews."""
CLASSES = [one.value for one in JobClass]
EVENTS = {
    Outcome.FINISHED: "succeed",
    Outcome.FAILED: "fail",
    Outcome.CANCELED: "cancel",
    Outcome.STOPPED: "cancel",
    Outcome.SCHEDULED: "schedule",
    Outcome.RETURNED: "return",
}


class Queue(RuleBasedStateMachine):
    """The store, and beside it what the table of transitions makes of the same events."""

    store: Store
    redis: Redis
    spec: ModelSpec
    reached: set[str]

    jobs = Bundle("jobs")
    claims = Bundle("claims")
    deliveries = Bundle("deliveries")

    def __init__(self) -> None:
        super().__init__()
        self.redis.flushall()
        self.states: dict[str, JobState] = {}
        self.fences: dict[str, int] = {}
        self.to_cancel: set[str] = set()
        self.to_retry: set[str] = set()
        self.tenants: dict[str, str] = {}
        self.waits: dict[str, set[str]] = {}
        self.sent: set[str] = set()
        self.canceled_by_rq: set[str] = set()

    def move(self, job_id: str, event: str) -> None:
        self.reached.add(event)
        self.states[job_id] = TRANSITIONS[self.states.get(job_id), event]

    def follow_up(self) -> None:
        """What the table makes of those that wait for others, after the end of one."""
        for job_id in [job_id for job_id in self.waits if self.states[job_id] is not JobState.QUEUED]:
            del self.waits[job_id]
        for job_id, parents in list(self.waits.items()):
            states = {self.states[parent] for parent in parents}
            if JobState.CANCELED in states:
                event = "cancel"
            elif states & {JobState.FAILED, JobState.EXPIRED}:
                event = "give_up"
            elif all(self.states[parent] is JobState.SUCCEEDED for parent in parents):
                event = "release"
            else:
                continue
            del self.waits[job_id]
            self.move(job_id, event)
            return self.follow_up()
        return None

    def is_running(self, claim: Claim) -> bool:
        return self.states[claim.job_id] is JobState.RUNNING and self.fences[claim.job_id] == claim.fence

    def is_put_off(self, job_id: str) -> bool:
        origin = self.redis.hget(keys.job(job_id), "origin").decode()
        return self.redis.zscore(keys.PREFIXES["scheduled"] + origin, job_id) is not None

    @rule(
        target=jobs, tenant=st.sampled_from("ab"), job_class=st.sampled_from(JobClass), images=st.integers(1, 2),
        ttl_s=st.sampled_from([None, 600]), webhook=st.sampled_from([None, "https://example.org/h"]),
    )  # fmt: skip
    def submit(self, tenant: str, job_class: JobClass, images: int, ttl_s: int | None, webhook: str | None) -> str:
        job_input = self.spec.parse_input({"prompt": "x", "num_images": images})
        request = JobRequest(new_job_id(), tenant, self.spec, job_input, job_class, webhook=webhook, ttl_s=ttl_s)
        self.store.submit(request)
        self.move(request.job_id, "submit")
        self.tenants[request.job_id] = tenant
        return request.job_id

    @rule(target=jobs, parents=st.lists(jobs, min_size=1, max_size=2), ttl_s=st.sampled_from([None, 600]))
    def submit_behind(self, parents: list[str], ttl_s: int | None) -> object:
        tenant = self.tenants[parents[0]]
        depends_on = dict.fromkeys(parents, "/depends_on/0")
        job_input = self.spec.parse_input({"prompt": "x"})
        request = JobRequest(new_job_id(), tenant, self.spec, job_input, ttl_s=ttl_s, depends_on=depends_on)
        if any(self.tenants[one] != tenant or self.states[one] in LOST for one in parents):
            with pytest.raises(DependencyUnusable):
                self.store.submit(request)
            return multiple()
        self.store.submit(request)
        self.move(request.job_id, "submit")
        self.tenants[request.job_id] = tenant
        self.waits[request.job_id] = {one for one in parents if self.states[one] is not JobState.SUCCEEDED}
        if not self.waits[request.job_id]:
            del self.waits[request.job_id]
        return request.job_id

    @rule(target=claims, slots=st.integers(1, 4), worker=st.sampled_from(["w1", "w2"]))
    def claim(self, slots: int, worker: str) -> object:
        claimed = self.store.claim(worker, CLASSES, [Want(self.spec.batch_key, slots)]).claims
        for claim in claimed:
            self.move(claim.job_id, "claim")
            assert claim.fence == self.fences.get(claim.job_id, 0) + 1
            self.fences[claim.job_id] = claim.fence
        return multiple(*claimed)

    @rule(claim=consumes(claims), outcome=st.sampled_from(Outcome))
    def settle(self, claim: Claim, outcome: Outcome) -> None:
        is_ours, is_moved = self.is_running(claim), outcome in (Outcome.RETURNED, Outcome.SCHEDULED)
        error = None if outcome is Outcome.FINISHED else JobFailure()
        settlement = Settlement(claim.job_id, claim.fence, outcome, {}, error, gpu_ms=5, delay_ms=60_000)
        assert self.store.settle([settlement]) == [is_ours]
        assert self.store.settle([settlement]) == [is_ours], "a repetition is the same commit"
        if is_ours:
            self.move(claim.job_id, self.event_of(claim.job_id, outcome, is_moved=is_moved))
            self.to_cancel.discard(claim.job_id)
            self.follow_up()

    def event_of(self, job_id: str, outcome: Outcome, *, is_moved: bool) -> str:
        if job_id in self.to_cancel and is_moved:
            return "cancel"
        if outcome is Outcome.FAILED and job_id in self.to_retry and job_id not in self.to_cancel:
            self.to_retry.discard(job_id)
            return "retry"
        return EVENTS[outcome]

    @rule(job_id=jobs)
    def allow_one_more_run(self, job_id: str) -> None:
        self.redis.hset(keys.job(job_id), "retries_left", 1)  # as RQ's Retry does
        self.to_retry.add(job_id)

    @rule(job_id=jobs)
    def cancel(self, job_id: str) -> None:
        state = self.states[job_id]
        verdict = self.store.cancel(job_id)
        if state is JobState.QUEUED:
            self.move(job_id, "cancel")
            assert verdict == "dequeued"
            self.follow_up()
        elif state is JobState.RUNNING:
            self.to_cancel.add(job_id)
            assert verdict == "interrupting"
        else:
            assert verdict == "too_late"

    @rule(claim=claims)
    def lose_the_worker(self, claim: Claim) -> None:
        if not self.is_running(claim):
            return
        self.redis.zadd(keys.run_scope("global"), {claim.job_id: 1})
        crashes = int(self.redis.hget(keys.job(claim.job_id), "crashes") or 0) + 1
        self.store.reap()
        if claim.job_id in self.to_cancel:
            event = "cancel"
        else:
            event = "poison" if crashes >= self.store.settings.max_crashes else "reap"
        self.move(claim.job_id, event)
        self.to_cancel.discard(claim.job_id)
        self.follow_up()

    @rule(job_id=jobs)
    def let_time_pass(self, job_id: str) -> None:
        if self.redis.zscore(keys.PREFIXES["ttl"], job_id) is None:
            return
        self.redis.zadd(keys.PREFIXES["ttl"], {job_id: 1})
        self.store.reap()
        self.move(job_id, "expire")
        self.follow_up()

    @rule(job_id=jobs)
    def requeue_by_rq(self, job_id: str) -> None:
        if (self.states[job_id], "requeue") not in TRANSITIONS:
            return
        job = Job.fetch(job_id, self.redis, serializer=JSONSerializer)
        kind = CanceledJobRegistry if job.is_canceled else FailedJobRegistry
        kind(job.origin, self.redis, serializer=JSONSerializer).requeue(job)
        self.move(job_id, "requeue")

    @rule(outcome=st.sampled_from([Outcome.FINISHED, Outcome.FAILED, Outcome.SCHEDULED, Outcome.CANCELED]))
    def deliver_webhooks(self, outcome: Outcome) -> None:
        due = self.store.claim("w3", [keys.CALLBACKS], [Want(keys.CALLBACKS, 4)]).claims
        error = None if outcome is Outcome.FINISHED else JobFailure()
        ends = [Settlement(one.job_id, one.fence, outcome, {}, error, delay_ms=60_000) for one in due]
        assert self.store.settle(ends) == [True] * len(ends)

    @rule(target=deliveries)
    def claim_webhooks(self) -> object:
        due = self.store.claim("w3", [keys.CALLBACKS], [Want(keys.CALLBACKS, 4)]).claims
        assert not {one.job_id for one in due} & self.sent, "no message goes out twice at once"
        self.sent |= {one.job_id for one in due}
        return multiple(*due)

    @rule(claim=consumes(deliveries), outcome=st.sampled_from(Outcome))
    def settle_a_webhook(self, claim: Claim, outcome: Outcome) -> None:
        is_ours = self.redis.hget(keys.job(claim.job_id), "status") == b"started"
        error = None if outcome is Outcome.FINISHED else JobFailure()
        settlement = Settlement(claim.job_id, claim.fence, outcome, {}, error, delay_ms=60_000)
        assert self.store.settle([settlement]) == [is_ours]
        self.sent.remove(claim.job_id)
        self.canceled_by_rq.discard(claim.job_id)

    @rule(job_id=jobs)
    def cancel_a_delivery_by_rq(self, job_id: str) -> None:
        told = self.redis.hget(keys.job(job_id), "told")
        state = self.state_of_delivery(told)
        if told is None or state is None or state.is_terminal:
            return
        delivery_id = told.decode().split()[0]
        Job.fetch(delivery_id, self.redis, serializer=JSONSerializer).cancel()
        self.canceled_by_rq.add(delivery_id)

    @rule(job_id=jobs)
    def redeliver(self, job_id: str) -> None:
        told = self.redis.hget(keys.job(job_id), "told")
        before = self.state_of_delivery(told)
        subject = Subject(job_id, keys.job(job_id))
        verdict, delivery_id = self.store.callbacks.redeliver(subject, None, None, "", 60)
        if told is None:
            assert verdict in ("none", "early")
            return
        assert delivery_id == told.decode().split()[0]
        assert verdict == "pending" or self.state_of_delivery(told) is JobState.QUEUED
        if verdict == "queued" and before is not JobState.QUEUED:
            assert TRANSITIONS[before, "redeliver"] is JobState.QUEUED
            self.reached.add("redeliver")

    def state_of_delivery(self, told: bytes | None) -> JobState | None:
        record = self.store.get(told.decode().split()[0]) if told else None
        return record and record.state

    @rule(job_id=jobs)
    def the_delay_is_over(self, job_id: str) -> None:
        if not self.is_put_off(job_id):
            return
        origin = self.redis.hget(keys.job(job_id), "origin").decode()
        self.redis.zrem(keys.PREFIXES["scheduled"] + origin, job_id)  # as RQ's scheduler does
        self.redis.hset(keys.job(job_id), "status", "queued")
        self.redis.rpush(keys.PREFIXES["queue"] + origin, job_id)

    @invariant()
    def all_is_as_the_table_says(self) -> None:
        ids = list(self.states)
        assert [record and record.state for record in self.store.get_many(ids)] == list(self.states.values())

    @invariant()
    def every_job_is_in_one_place(self) -> None:
        running = {job_id for job_id, state in self.states.items() if state is JobState.RUNNING}
        assert {raw.decode() for raw in self.redis.hkeys(keys.PREFIXES["leases"])} == running | self.sent
        assert self.redis.zcard(keys.run_scope("global")) == len(running | self.sent)
        assert len(list(self.redis.scan_iter(keys.PREFIXES["execution"] + "*"))) == len(running | self.sent)
        faults = [
            finding
            for finding in doctor.examine(self.store, load_registry(), mend=False)
            if not finding.what.startswith(("setting", "scheduler"))
            and finding[:2] not in {(one, LEASE_LEFT) for one in self.canceled_by_rq & self.sent}
        ]
        assert faults == []

    @invariant()
    def waiting_jobs_are_counted(self) -> None:
        counted = sum(int(count) for count in self.redis.hvals(keys.PREFIXES["waiting"]))
        assert counted == sum(self.store.queue_depths().values()) + len(self.waits)
        assert self.redis.zcard(keys.PREFIXES["chained"]) == len(self.waits)


@pytest.mark.usefixtures("redis")
def test_every_sequence_of_events_obeys_the_table(store: Store, redis: Redis, shapes: ModelSpec) -> None:
    """The invariants assert it after every event; here only that the sequences had the events in them."""
    reached: set[str] = set()
    machine = type("Machine", (Queue,), {"store": store, "redis": redis, "spec": shapes, "reached": reached})
    # each run is to be another: on CI they would all be the same by default
    profile = settings(
        max_examples=60, stateful_step_count=40, deadline=None, derandomize=False,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    most = len({event for _, event in TRANSITIONS}) / 2
    for _ in range(4):  # chance decides which events come; most must in the end
        run_state_machine_as_test(machine, settings=profile)
        if len(reached) > most:
            break
    assert reached >= {"submit", "claim", "cancel"}
    assert len(reached) > most
