"""What may go wrong with a fleet, done to real processes: each case runs jobs through it and tells what broke.

All hold the same promises: every acknowledged job ends in one visible state with one committed result, its webhook is
called under one id, no limit is ever exceeded by live leases, and nothing is left behind in Redis.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from genmill import doctor, keys
from genmill.connections import connect
from genmill.jobs import JobRequest, JobState, new_job_id
from genmill.keys import JobClass
from genmill.registry import load_registry
from genmill.settings import Settings, load_settings
from genmill.store import Store
from tests.fleet import SECRET, Fleet, Process, Valkey, eventually
from tests.receiver import receiving

LEASE_S = 2.0
TENANT_LIMIT = 20
WORKER = ("-w", "tests.chaos.worker.ChaosWorker", "-S", "json", "--logging_level", "WARNING")
SPEC = load_registry().get("shapes")


@dataclass(slots=True)
class Outcome:
    """What a case showed. `lost` jobs never ended, `double_commits` have two results; `broken` is what else failed."""

    case: str
    seed: int
    jobs: int
    lost: int = 0
    double_commits: int = 0
    states: Mapping[str, int] = field(default_factory=dict)
    wall_s: float = 0.0
    broken: list[str] = field(default_factory=list)


class Scene:
    """A Valkey that writes through, a scheduler, workers, a webhook receiver; and the jobs that were acknowledged."""

    def __init__(self, folder: Path, seed: int, jobs: int, hook: str) -> None:
        self.random, self.jobs, self.hook = random.Random(seed), jobs, hook
        self.valkey = Valkey(folder / "valkey")
        self.valkey.start()
        self.fleet = Fleet(
            folder, self.valkey.url, GENMILL_LEASE_S=f"{LEASE_S}", GENMILL_RENEW_S="0.4", GENMILL_DURABILITY="always",
            GENMILL_LIMITS=f'{{"tenant:*": {TENANT_LIMIT}, "host:*": 64}}',
        )  # fmt: skip
        self.settings: Settings = load_settings(
            redis_url=self.valkey.url, secret_key=SECRET, storage_url=f"file://{folder}/outputs",
            durability="always", limits={"tenant:*": TENANT_LIMIT, "host:*": 64},
        )  # fmt: skip
        self.redis: Redis = connect(self.settings, timeout_s=10)
        self.store = Store(self.redis, self.settings)
        self.ids: list[str] = []
        self.schedulers = [self.fleet.scheduler()]
        self.most_live: Counter[str] = Counter()
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._watch_limits, daemon=True)
        self._watch.start()

    def worker(self, **env: str) -> Process:
        return self.fleet.worker(*WORKER, name=f"worker-{len(self.fleet.processes)}", **env)

    def submit(self, count: int, prompt: str = "x", tenants: int = 5) -> list[str]:
        """Acknowledged jobs of several tenants and classes."""
        job_input = SPEC.parse_input({"prompt": prompt, "steps": 2})
        requests = [
            JobRequest(
                new_job_id(), f"t{number % tenants}", SPEC, job_input, list(JobClass)[number % 4], webhook=self.hook
            )
            for number in range(count)
        ]
        ids = [one.job_id for one in self.store.submit_many(requests)]
        self.ids += ids
        return ids

    def done(self) -> int:
        with self.redis.pipeline(transaction=False) as pipe:
            for job_id in self.ids:
                pipe.hget(keys.job(job_id), "status")
            ended = (b"finished", b"failed", b"canceled", b"stopped")
            return sum(status in ended for status in pipe.execute())

    def wait_until_done(self, share: float = 1.0, within_s: float = 90.0) -> None:
        eventually(lambda: _patiently(self.done) >= share * len(self.ids), within_s=within_s, every_s=0.1)

    def wait_until_told(self, within_s: float = 60.0) -> None:
        """No delivery waits or runs any more."""
        eventually(lambda: _patiently(self._has_told), within_s=within_s, every_s=0.1)

    def close(self) -> None:
        self._over.set()
        self._watch.join()
        self.fleet.stop()
        self.redis.close()
        self.valkey.stop()

    def _has_told(self) -> bool:
        with self.redis.pipeline(transaction=True) as pipe:  # a delivery moves between these places
            pipe.zcard(keys.ready(keys.CALLBACKS, keys.CALLBACKS))
            pipe.scard(keys.run_scope(f"class:{keys.CALLBACKS}"))
            pipe.zcard(keys.PREFIXES["scheduled"] + keys.CALLBACKS)
            pipe.llen(keys.PREFIXES["queue"] + keys.CALLBACKS)
            return not any(pipe.execute())

    def _watch_limits(self) -> None:
        with connect(self.settings, timeout_s=5) as redis:
            while not self._over.wait(0.01):
                try:
                    with redis.pipeline(transaction=True) as pipe:
                        for number in range(5):
                            pipe.scard(keys.run_scope(f"tenant:t{number}"))
                        for number, live in enumerate(pipe.execute()):
                            self.most_live[f"t{number}"] = max(self.most_live[f"t{number}"], live)
                except RedisError:
                    continue


def _patiently(look: Callable[[], int]) -> int:
    """0 while Redis is away."""
    try:
        return look()
    except RedisError:
        return 0


Harm = Callable[[Scene], None]


def killed_workers(scene: Scene) -> None:
    """Workers are killed at random moments, again and again, and others started."""
    workers = [scene.worker(), scene.worker()]
    scene.submit(scene.jobs)
    for _ in range(4):
        time.sleep(scene.random.uniform(0.2, 1.2))  # the moment is the case's, not a wait for something
        victim = workers.pop(scene.random.randrange(len(workers)))
        victim.kill()
        workers.append(scene.worker())


def stopped_worker(scene: Scene) -> None:
    """A worker stands still for twice its lease and goes on as if nothing had been."""
    frozen = scene.worker()
    scene.submit(scene.jobs)
    scene.wait_until_done(0.05)
    frozen.signal(signal.SIGSTOP)
    scene.worker()
    time.sleep(2 * LEASE_S + scene.random.uniform(0, 1))
    frozen.signal(signal.SIGCONT)


def killed_redis(scene: Scene) -> None:
    """Redis is killed while jobs run and come in, and started again."""
    scene.worker(), scene.worker()
    scene.submit(scene.jobs // 2)
    scene.wait_until_done(0.05)
    scene.valkey.kill()
    time.sleep(scene.random.uniform(0.1, 2))
    scene.valkey.start()
    scene.submit(scene.jobs - scene.jobs // 2)


def two_schedulers(scene: Scene) -> None:
    """The leader is killed, the other takes over, while workers die."""
    scene.schedulers.append(scene.fleet.scheduler())
    victim = scene.worker()
    scene.worker()
    scene.submit(scene.jobs)
    scene.wait_until_done(0.05)
    scene.schedulers[scene.random.randrange(2)].kill()
    victim.kill()
    scene.worker()


def deadly_jobs(scene: Scene) -> None:
    """Some jobs kill their worker: they end as poisoned, nobody else does."""
    scene.submit(scene.jobs - 2)
    deadly = set(scene.submit(2, "die"))
    scene.random.shuffle(scene.ids)
    deadline = time.monotonic() + 150
    workers = [scene.worker(), scene.worker()]
    while scene.done() < len(scene.ids) and time.monotonic() < deadline:
        workers = [worker if worker.is_alive() else scene.worker() for worker in workers]
        time.sleep(0.2)
    for job_id in deadly:
        record = scene.store.get(job_id)
        assert record is not None, job_id
        assert record.error == {"code": "poisoned", "message": record.error["message"] if record.error else ""}, record


def failing_jobs(scene: Scene) -> None:
    """Jobs that raise fail alone, whoever shares their batch."""
    failing = set(scene.submit(scene.jobs // 16, "fail"))
    scene.submit(scene.jobs - len(failing))
    scene.worker()
    scene.wait_until_done()
    failed = {
        record.job_id for record in scene.store.get_many(scene.ids) if record and record.state is JobState.FAILED
    }
    assert failed == failing


def canceled_jobs(scene: Scene) -> None:
    """A third is canceled at any moment of its life."""
    scene.worker(), scene.worker()
    ids = scene.submit(scene.jobs)
    for job_id in scene.random.sample(ids, len(ids) // 3):
        scene.store.cancel(job_id)


def storage_away(scene: Scene) -> None:
    """The storage takes nothing for some seconds; no work is done twice for it."""
    outputs = Path(scene.settings.storage_url.removeprefix("file://"))
    outputs.parent.mkdir(parents=True, exist_ok=True)
    outputs.write_text("a file stands where the folder should be")
    scene.worker()
    scene.submit(scene.jobs)
    time.sleep(2 * LEASE_S)
    assert scene.done() == 0, "nothing can be stored yet"
    outputs.unlink()
    scene.wait_until_done()
    again = [record.job_id for record in scene.store.get_many(scene.ids) if record and record.fence != 1]
    assert not again, f"{len(again)} jobs ran twice"


def clock_off(scene: Scene) -> None:
    """The clocks of two workers are an hour off, in both directions."""
    scene.worker(CHAOS_CLOCK_S="3600"), scene.worker(CHAOS_CLOCK_S="-3600")
    scene.submit(scene.jobs)
    scene.wait_until_done()
    again = [record.job_id for record in scene.store.get_many(scene.ids) if record and record.fence != 1]
    assert not again, f"{len(again)} leases were lost"


CASES: Mapping[str, Harm] = {
    harm.__name__: harm
    for harm in (
        killed_workers, stopped_worker, killed_redis, two_schedulers, deadly_jobs, failing_jobs, canceled_jobs,
        storage_away, clock_off,
    )
}  # fmt: skip
KILLS = ("killed_workers", "killed_redis", "two_schedulers")
"""Cases whose moment matters: the long run tries them with many seeds."""


@contextmanager
def _scene(folder: Path, seed: int, jobs: int) -> Iterator[tuple[Scene, list[str]]]:
    with receiving() as receiver:
        scene = Scene(folder, seed, jobs, receiver.url)
        try:
            told: list[str] = []
            yield scene, told
            told += [delivery.message_id for delivery in receiver.deliveries]
        finally:
            scene.close()


def run_case(case: str, seed: int, jobs: int, folder: Path) -> Outcome:
    """One case with one seed, from an empty server to the last promise looked at."""
    outcome, began = Outcome(case, seed, jobs), time.monotonic()
    with _scene(folder, seed, jobs) as (scene, told):
        try:
            CASES[case](scene)
            scene.wait_until_done()
            scene.wait_until_told()
        except AssertionError as err:
            outcome.broken.append(str(err)[:300])
        _judge(scene, outcome)
    _judge_webhooks(scene, told, outcome)
    outcome.wall_s = round(time.monotonic() - began, 1)
    return outcome


def _judge(scene: Scene, outcome: Outcome) -> None:
    records = scene.store.get_many(scene.ids)
    outcome.states = dict(Counter(record.state.value if record else "gone" for record in records))
    outcome.lost = sum(record is None or not record.state.is_terminal for record in records)
    with scene.redis.pipeline(transaction=False) as pipe:
        for job_id in scene.ids:
            pipe.xlen(keys.results(job_id))
        outcome.double_commits = sum(count > 1 for count in pipe.execute())
    over = {tenant: live for tenant, live in scene.most_live.items() if live > TENANT_LIMIT}
    if over:
        outcome.broken.append(f"limits exceeded: {over}")
    left = [key.decode() for prefix in ("gm:run:", "gm:parked:") for key in scene.redis.scan_iter(prefix + "*")]
    left += [name for name in ("gm:leases", "gm:waiting", "gm:parkings") if scene.redis.exists(name)]
    if left:
        outcome.broken.append(f"left behind: {left[:5]}")
    faults = [
        f"{finding.what}: {finding.fault}"
        for finding in doctor.examine(scene.store, load_registry(), mend=False)
        if not finding.what.startswith(("setting", "scheduler"))
    ]
    if faults:
        outcome.broken.append(f"the doctor finds {faults[:3]}")


def _judge_webhooks(scene: Scene, told: list[str], outcome: Outcome) -> None:
    """At least one delivery for each job, all under one id (an id names job, fence and event)."""
    ids: dict[str, set[str]] = {}
    for message in told:
        ids.setdefault(message.split("_")[1], set()).add(message)
    untold = [job_id for job_id in scene.ids if job_id not in ids]
    if untold:
        outcome.broken.append(f"{len(untold)} jobs were not told of")
    several = [job_id for job_id, messages in ids.items() if len(messages) > 1]
    if several:
        outcome.broken.append(f"{len(several)} jobs were told of under several ids")
