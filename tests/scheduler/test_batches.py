"""Batches through the scheduler: fed through a window, collected once, whoever dies when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from genmill import keys
from genmill.batches import BatchRecord, BatchState, Intake, Ledger, LineParts
from genmill.batches.intake import BatchOrder
from genmill.batches.records import job_id_of
from genmill.jobs import JobRequest
from genmill.registry import ModelSpec, Registry, load_registry
from genmill.settings import Settings
from genmill.storage import Storage
from genmill.store import Outcome, Settlement, Store, Want
from scheduler.batch_round import SWEEP_S, BatchRound
from scheduler.collecting import EVERY_S
from scheduler.feeding import QUOTA_REST_S
from tests.batches import Create, lines_of
from tests.conftest import SettingsFactory

Results = Callable[[str], list[dict[str, Any]]]
Work = Callable[..., list[str]]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def settings(make_settings: SettingsFactory) -> Settings:
    return make_settings(batch_window=8)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def round_of(store: Store, storage: Storage, settings: Settings, clock: Clock) -> Callable[..., BatchRound]:
    """A scheduler's round; each call is another scheduler."""

    def make(registry: Registry | None = None, leads: Callable[[], bool] = lambda: True) -> BatchRound:
        return BatchRound(
            store, storage, registry or load_registry(), settings, leads=leads, clock=clock, collect_every_s=0
        )

    return make


def now(ledger: Ledger, batch: BatchRecord) -> BatchRecord:
    found = ledger.read(batch.batch_id)
    assert found is not None
    return found


def run_out(turns: BatchRound, work: Work, ledger: Ledger, batch: BatchRecord, **options: Any) -> BatchRecord:
    """Turn by turn until the batch has ended."""
    for _ in range(2_000):
        turns.turn()
        if now(ledger, batch).state.is_terminal:
            return now(ledger, batch)
        work(**options)
    raise AssertionError(f"the batch does not end: {now(ledger, batch)}")


def test_a_batch_goes_through_its_window_and_is_collected_whole(
    create: Create, round_of: Callable[..., BatchRound], work: Work, ledger: Ledger, results: Results, redis: Redis
) -> None:
    batch, turns = create(lines_of(30)), round_of()
    turns.turn()
    assert (now(ledger, batch).fed, ledger.open_count(batch.batch_id)) == (8, 8)
    assert len(redis.keys("rq:job:*")) == 8

    ended = run_out(turns, work, ledger, batch, most=5)

    assert ended.state is BatchState.COMPLETED
    assert (ended.total, ended.fed, ended.done, ended.succeeded) == (30, 30, 30, 30)
    rows = results(batch.batch_id)
    assert sorted(row["custom_id"] for row in rows) == sorted(f"line-{n}" for n in range(1, 31))
    assert [row["seq"] for row in rows] == list(range(1, 31))
    assert {(row["state"], row["text"]["text"]) for row in rows} == {("succeeded", "x")}


def test_what_is_collected_leaves_redis(
    create: Create, round_of: Callable[..., BatchRound], work: Work, ledger: Ledger, redis: Redis
) -> None:
    batch = create(lines_of(20))
    run_out(round_of(), work, ledger, batch)

    assert not redis.exists("rq:finished:p3", "gm:list:a", keys.batch_open(batch.batch_id), keys.PREFIXES["batches"])
    for key in redis.scan_iter("rq:*:batch_*"):
        assert 0 < redis.ttl(key) <= keys.BATCH_JOB_TTL_S, key
    assert [key for key in redis.scan_iter("gm:batch*") if redis.ttl(key) < 0] == []


def test_a_collected_lines_trace_is_small_and_knows_a_commit_that_is_repeated(
    create: Create, round_of: Callable[..., BatchRound], store: Store, captions: ModelSpec, redis: Redis
) -> None:
    batch, turns = create(lines_of(1)), round_of()
    turns.turn()
    job_id = job_id_of(batch.batch_id, 1)
    request = JobRequest(job_id, "a", captions, captions.parse_input({"prompt": "x"}))
    (record,) = [one for one in store.get_many([job_id]) if one is not None]
    want = [Want(record.batch_key, 1)]
    (claim,) = store.claim("w", ["p3"], want).claims
    end = Settlement(job_id, claim.fence, Outcome.FINISHED, {"outputs": []}, gpu_ms=1.0)
    assert store.settle([end]) == [True]
    turns.turn()

    assert (store.get(job_id), store.standing(job_id)) == (None, None)
    assert redis.memory_usage(keys.job(job_id)) < 400
    assert not redis.exists(keys.results(job_id))
    assert store.settle([end]) == [True]
    store.submit_many([request])
    assert store.claim("w", ["p3"], want).claims == ()


def test_a_job_whose_webhook_may_ask_for_it_stays(
    create: Create, round_of: Callable[..., BatchRound], work: Work, ledger: Ledger, redis: Redis
) -> None:
    batch = create(lines_of(1, more={"webhook": "https://receiver.test/"}))
    run_out(round_of(), work, ledger, batch)
    assert redis.ttl(keys.job(job_id_of(batch.batch_id, 1))) > keys.BATCH_JOB_TTL_S


def test_a_kill_between_the_jobs_and_the_cursor_feeds_no_line_twice(
    create: Create, round_of: Callable[..., BatchRound], work: Work, ledger: Ledger, results: Results,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    batch = create(lines_of(12))
    dying = round_of()
    with monkeypatch.context() as patch:
        patch.setattr(dying.ledger, "feed", _die)
        dying.turn()  # stored eight jobs and died
    ran = work(most=3)  # and three of them end before anybody else comes

    ended = run_out(round_of(), lambda **_: ran.extend(work()), ledger, batch)

    assert sorted(ran) == sorted(job_id_of(batch.batch_id, number) for number in range(1, 13))
    assert (ended.state, ended.succeeded) == (BatchState.COMPLETED, 12)
    assert len({row["custom_id"] for row in results(batch.batch_id)}) == len(results(batch.batch_id)) == 12


def test_a_kill_between_a_part_and_its_commit_enters_no_result_twice(
    create: Create, round_of: Callable[..., BatchRound], work: Work, ledger: Ledger, results: Results,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    batch, dying = create(lines_of(12)), round_of()
    dying.turn()
    work(most=3)
    with monkeypatch.context() as patch:
        patch.setattr(dying.ledger, "collect", _die)
        dying.turn()
    assert now(ledger, batch).done == 0
    work(most=3)

    ended = run_out(round_of(), work, ledger, batch)

    assert ended.succeeded == 12
    assert sorted(row["custom_id"] for row in results(batch.batch_id)) == sorted(f"line-{n}" for n in range(1, 13))


def test_two_schedulers_at_once_feed_and_collect_each_line_once(
    create: Create, round_of: Callable[..., BatchRound], work: Work, ledger: Ledger, results: Results
) -> None:
    batch, one, two = create(lines_of(40)), round_of(), round_of()
    ran: list[str] = []
    for _ in range(200):
        stale = ledger.active()
        for record in stale:
            one.step(record)
            two.step(record)  # which knows the batch as it was before the other's step
        ran += work(most=5)
        if not ledger.active():
            break

    assert now(ledger, batch).state is BatchState.COMPLETED
    assert sorted(ran) == sorted(job_id_of(batch.batch_id, number) for number in range(1, 41))
    assert sorted(row["custom_id"] for row in results(batch.batch_id)) == sorted(f"line-{n}" for n in range(1, 41))


def test_a_scheduler_that_does_not_lead_does_nothing(
    create: Create, round_of: Callable[..., BatchRound], ledger: Ledger
) -> None:
    batch = create(lines_of(3))
    round_of(leads=lambda: False).turn()
    assert now(ledger, batch).fed == 0


def test_few_results_are_collected_once_a_second(
    create: Create, store: Store, storage: Storage, settings: Settings, clock: Clock, work: Work, ledger: Ledger
) -> None:
    batch = create(lines_of(8))
    turns = BatchRound(store, storage, load_registry(), settings, leads=lambda: True, clock=clock)
    done = []
    for _ in range(3):
        turns.turn()
        done.append(now(ledger, batch).done)
        work(most=1)
    clock.now += EVERY_S
    turns.turn()
    assert [*done, now(ledger, batch).done] == [0, 1, 1, 3]


def test_many_results_are_collected_at_once_also_over_the_end_of_a_part(
    create: Create, store: Store, storage: Storage, settings: Settings, clock: Clock, work: Work, ledger: Ledger
) -> None:
    batch = create(lines_of(1_100))
    turns = BatchRound(store, storage, load_registry(), settings, leads=lambda: True, clock=clock)
    for number in range(2_000):
        turns.turn()
        if now(ledger, batch).done >= 1_000:
            break
        work(most=3 if number == 0 else 5)  # two are left of the part when five have ended
    assert now(ledger, batch).done >= 1_000, "the clock stands, and few are collected"


def test_batches_share_the_round(create: Create, round_of: Callable[..., BatchRound], ledger: Ledger) -> None:
    one, two = create(lines_of(20)), create(lines_of(20, first=100), tenant="b")
    round_of().turn()
    assert [now(ledger, batch).fed for batch in (one, two)] == [8, 8]


def test_failures_are_results_too_and_a_resumed_batch_runs_only_those(
    create: Create, round_of: Callable[..., BatchRound], work: Work, ledger: Ledger, results: Results, storage: Storage
) -> None:
    body, turns = lines_of(10), round_of()
    first = create(body)
    failed = frozenset({"line-3", "line-7"})
    ended = run_out(turns, work, ledger, first, fails=failed)
    assert (ended.state, ended.succeeded, ended.failed) == (BatchState.COMPLETED, 8, 2)
    assert {row["error"]["code"] for row in results(first.batch_id) if row["state"] == "failed"} == {"job_failed"}

    again = create(body)
    assert (again.resume_of, again.total, again.skipped) == (first.batch_id, 2, 8)
    assert run_out(turns, work, ledger, again).succeeded == 2
    assert {row["custom_id"] for row in results(again.batch_id)} == failed
    assert create(body).batch_id == again.batch_id  # nothing is left to run


def test_a_resumed_batch_repeats_the_inputs(
    create: Create, round_of: Callable[..., BatchRound], work: Work, ledger: Ledger, intake: Intake,
    line_parts: LineParts,
) -> None:  # fmt: skip
    first = create(lines_of(3, seed=77))
    run_out(round_of(), work, ledger, first, fails=frozenset({"line-2"}))
    again, is_new = intake.resume(now(ledger, first), BatchOrder("a", 3600))
    assert is_new
    (line,) = line_parts.all(again.batch_id)
    assert (line.custom_id, line.input["seed"]) == ("line-2", 77)
    assert intake.resume(now(ledger, first), BatchOrder("a", 3600)) == (now(ledger, again), False)


def test_a_model_that_is_gone_costs_its_lines_only(
    create: Create, round_of: Callable[..., BatchRound], work: Work, ledger: Ledger, results: Results
) -> None:
    batch = create(lines_of(3))
    shapes_alone = Registry(models=tuple(spec for spec in load_registry().models if spec.name == "shapes"))

    ended = run_out(round_of(shapes_alone), work, ledger, batch)

    assert (ended.state, ended.failed) == (BatchState.COMPLETED, 3)
    rows = results(batch.batch_id)
    assert [row["custom_id"] for row in rows] == ["line-1", "line-2", "line-3"]
    assert {row["error"]["code"] for row in rows} == {"unknown_model"}


def test_a_quota_holds_the_feed_up_and_loses_nothing(
    create: Create, round_of: Callable[..., BatchRound], work: Work, ledger: Ledger, redis: Redis, clock: Clock
) -> None:
    redis.hset("gm:lim:set", "queued:a", 3)
    redis.hset("gm:lim:now", "queued:a", 3)
    redis.hset("gm:lim", mapping={"epoch": 1, "mark": "x", "expires_ms": 10**14})
    batch, turns = create(lines_of(9)), round_of()
    turns.turn()
    assert now(ledger, batch).fed == 3
    work()
    turns.turn()
    assert now(ledger, batch).fed == 3  # it rests

    def work_on(**_: Any) -> list[str]:
        clock.now += QUOTA_REST_S
        return work()

    assert run_out(turns, work_on, ledger, batch).succeeded == 9


def test_cancel_drains_what_runs_ends_and_what_is_done_stays(
    create: Create, round_of: Callable[..., BatchRound], work: Work, ledger: Ledger, results: Results
) -> None:
    batch, turns = create(lines_of(20)), round_of()
    turns.turn()
    work(most=2)
    running = work(most=3, is_settled=False)
    assert ledger.cancel(batch.batch_id) == "cancelling"
    turns.turn()
    turns.turn()
    assert now(ledger, batch).state is BatchState.CANCELLING
    assert sorted(ledger.running_lines(batch.batch_id)) == sorted(int(one.rsplit("-", 1)[1]) for one in running)

    for job_id in running:
        record = turns._store.get(job_id)
        assert record is not None
        assert not record.has_cancel_request
        assert turns._store.settle([_finished(job_id, record.fence)]) == [True]
    turns.turn()

    ended = now(ledger, batch)
    assert (ended.state, ended.succeeded, ended.canceled, ended.fed) == (BatchState.CANCELLED, 5, 3, 8)
    assert len(results(batch.batch_id)) == 8
    assert ledger.cancel(batch.batch_id) == "too_late"


def test_cancel_also_finds_what_a_dead_scheduler_stored_and_did_not_note(
    create: Create, round_of: Callable[..., BatchRound], work: Work, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, dying = create(lines_of(20)), round_of()
    with monkeypatch.context() as patch:
        patch.setattr(dying.ledger, "feed", _die)
        dying.turn()
    ledger.cancel(batch.batch_id)
    turns = round_of()
    turns.turn()
    turns.turn()
    ended = now(ledger, batch)
    assert (ended.state, ended.fed, ended.canceled) == (BatchState.CANCELLED, 8, 8)
    assert work() == []


def test_a_batch_whose_time_is_over_keeps_what_is_done(
    create: Create, round_of: Callable[..., BatchRound], work: Work, ledger: Ledger, results: Results, redis: Redis
) -> None:
    batch, turns = create(lines_of(20)), round_of()
    turns.turn()
    work(most=4)
    redis.hset(keys.batch(batch.batch_id), "expires_ms", 1)
    for _ in range(4):
        turns.turn()
    ended = now(ledger, batch)
    assert (ended.state, ended.succeeded) == (BatchState.EXPIRED, 4)
    assert [row["state"] for row in results(batch.batch_id)].count("succeeded") == 4
    assert work() == []


def test_a_job_that_somebody_deletes_is_a_failed_line(
    create: Create, round_of: Callable[..., BatchRound], work: Work, ledger: Ledger, results: Results, redis: Redis,
    store: Store, clock: Clock,
) -> None:  # fmt: skip
    batch, turns = create(lines_of(3)), round_of()
    turns.turn()
    store.withdraw(job_id_of(batch.batch_id, 2))
    redis.delete(keys.job(job_id_of(batch.batch_id, 2)))
    work()
    turns.turn()
    assert now(ledger, batch).done == 2
    clock.now += SWEEP_S
    turns.turn()
    ended = now(ledger, batch)
    assert (ended.state, ended.succeeded, ended.failed) == (BatchState.COMPLETED, 2, 1)
    (lost,) = [row for row in results(batch.batch_id) if row["state"] == "failed"]
    assert (lost["custom_id"], lost["error"]["code"]) == ("line-2", "job_deleted")


def test_the_results_outgrow_a_part(
    make_settings: SettingsFactory, redis: Redis, create: Create, storage: Storage, work: Work, ledger: Ledger,
    results: Results,
) -> None:  # fmt: skip
    settings = make_settings(batch_window=700)
    turns = BatchRound(
        Store(redis, settings), storage, load_registry(), settings, leads=lambda: True, collect_every_s=0
    )
    batch = create(lines_of(1_203))
    ended = run_out(turns, work, ledger, batch, most=301)
    assert ended.succeeded == 1_203
    assert redis.llen(keys.batch_parts(batch.batch_id)) == 2
    rows = results(batch.batch_id)
    assert [row["seq"] for row in rows] == list(range(1, 1_204))
    assert len({row["custom_id"] for row in rows}) == 1_203


def test_the_storage_of_a_batch_goes_with_it(
    create: Create, round_of: Callable[..., BatchRound], work: Work, ledger: Ledger, storage: Storage, redis: Redis,
    clock: Clock, settings: Settings,
) -> None:  # fmt: skip
    batch, turns = create(lines_of(3)), round_of()
    run_out(turns, work, ledger, batch)
    ttl_s = redis.ttl(keys.batch(batch.batch_id))
    assert settings.batch_ttl_s - 5 < ttl_s <= settings.batch_ttl_s
    redis.zadd(keys.PREFIXES["shelf"], {batch.batch_id: 1})
    clock.now += SWEEP_S
    turns.turn()
    assert list(LineParts(storage).all(batch.batch_id)) == []
    assert not redis.exists(keys.PREFIXES["shelf"])


def test_jobs_that_are_no_lines_leave_nothing_for_a_collector(store: Store, redis: Redis, work: Work) -> None:
    spec = load_registry().get("captions")
    store.submit(JobRequest("batchlike", "a", spec, spec.parse_input({"prompt": "a red"})))
    store.submit(JobRequest("batch_unknown-7", "a", spec, spec.parse_input({"prompt": "a red"})))
    assert len(work()) == 2
    assert redis.keys("gm:batch*") == []


def _die(*_: object) -> bool:
    raise RuntimeError("killed here")


def _finished(job_id: str, fence: int) -> Settlement:
    return Settlement(job_id, fence, Outcome.FINISHED, result={"outputs": []})
