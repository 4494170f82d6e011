"""Processes that are killed, stand still or forget: workers, Redis, schedulers."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from genmill import keys
from genmill.jobs import JobState
from tests.chaos.scene import LEASE_S, Scene, patiently
from tests.chaos.worker import POINTS
from tests.fleet import Process, eventually

RECLAIM_S = LEASE_S + 5
"""Within this a dead worker's jobs are claimed again."""
BACK_S = 10.0
"""Within this a fleet works again once Redis is back."""
STALE_LIMITS = {"tenant:*": 1000.0}


def killed_workers(scene: Scene) -> None:
    """Workers are killed at random moments, again and again, and others started."""
    workers = [scene.worker(), scene.worker()]
    scene.submit(scene.jobs)
    for _ in range(4):
        time.sleep(scene.random.uniform(0.2, 1.2))  # the moment is the case's, not a wait for something
        victim = workers.pop(scene.random.randrange(len(workers)))
        victim.kill()
        workers.append(scene.worker())


def killed_at_points(scene: Scene) -> None:
    """Workers die between claim and start, and between upload and settle; what they had is soon claimed again."""
    scene.submit(scene.jobs)
    wrecks = Wrecks(scene)
    for point in POINTS:
        wrecks.add_mortal(point, 1.0)
    eventually(wrecks.are_all_dead, within_s=30, every_s=0.02)
    for point in POINTS:
        wrecks.add_mortal(point, 0.3)
    scene.worker()
    eventually(lambda: wrecks.look() and scene.done() == len(scene.ids), within_s=90, every_s=0.02)
    scene.measured |= {"deaths": wrecks.deaths, "claimed_again_s": round(max(wrecks.waits_s), 2)}
    assert max(wrecks.waits_s) <= RECLAIM_S, f"claimed again after {max(wrecks.waits_s):.1f} s"


class Wrecks:
    """Workers that will die, and how long it takes until what they leave behind is claimed again."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._mortals: list[Process] = []
        self._left: dict[str, tuple[int, float]] = {}
        self.deaths = 0
        self.waits_s: list[float] = []

    def add_mortal(self, point: str, chance: float) -> None:
        """A worker that dies at the point, each time by this chance."""
        self._mortals.append(self._scene.worker(CHAOS_DEATH=f"{point}:{chance}:{self._scene.random.randrange(1000)}"))

    def are_all_dead(self) -> bool:
        self.look()
        return not self._mortals

    def look(self) -> bool:
        """Note who has died and what was claimed again. Whether nothing is left behind."""
        dead = [process for process in self._mortals if not process.is_alive()]
        self._mortals = [process for process in self._mortals if process not in dead]
        now = time.monotonic()
        for record in self._scene.records([*self._left]):
            fence, since = self._left[record.job_id]
            if record.fence > fence:
                self.waits_s.append(now - since)
                del self._left[record.job_id]
        for process in dead:
            self.deaths += 1
            self._left |= {job_id: (fence, now) for job_id, fence in _leases_of(self._scene, process)}
        return not self._left


def _leases_of(scene: Scene, worker: Process) -> list[tuple[str, int]]:
    """(job id, fence) of all that a worker holds."""
    leases: Any = scene.redis.hgetall(keys.PREFIXES["leases"])
    fields = {job_id.decode(): packed.decode().split("\n") for job_id, packed in leases.items()}
    return [(job_id, int(packed[0])) for job_id, packed in fields.items() if packed[-1] == worker.log.stem]


def chained_jobs(scene: Scene) -> None:
    """Of chains of three jobs, whose first or second fails in some, workers are killed at random moments."""
    count = scene.jobs // 3
    first = scene.submit_prompts(["x" if number % 7 else "fail" for number in range(count)])
    second = scene.submit_prompts(["x" if number % 5 else "fail" for number in range(count)], behind=first)
    third = scene.submit_prompts(["x"] * count, behind=second)
    workers = [scene.worker(), scene.worker()]
    for _ in range(3):
        time.sleep(scene.random.uniform(0.2, 1.2))  # the moment is the case's, not a wait for something
        workers.pop(scene.random.randrange(len(workers))).kill()
        workers.append(scene.worker())
    scene.wait_until_done()
    for number, chain in enumerate(zip(first, second, third, strict=True)):
        failing = 0 if number % 7 == 0 else 1 if number % 5 == 0 else 3
        states = [record.state for record in scene.records(chain)]
        wanted = [JobState.SUCCEEDED] * failing + [JobState.FAILED] * (3 - failing)
        assert states == wanted, f"chain {number} ended as {states}"
        ends = [when for record in scene.records(chain[:failing]) for when in (record.started_ms, record.ended_ms)]
        assert ends == sorted(ends), f"chain {number} ran out of its order"


def stopped_worker(scene: Scene) -> None:
    """A worker stands still for twice its lease and goes on as if nothing had been: what it commits is refused."""
    frozen = scene.worker()
    scene.submit(scene.jobs)
    scene.wait_until_done(0.05)
    frozen.signal(signal.SIGSTOP)
    scene.worker()
    held = len(_leases_of(scene, frozen))
    time.sleep(2 * LEASE_S + scene.random.uniform(0, 1))
    frozen.signal(signal.SIGCONT)
    scene.measured["held"] = held
    if held:
        refusals = ("no longer ours", "leaves the batch")
        eventually(lambda: any(words in frozen.log.read_text() for words in refusals))


def killed_redis(scene: Scene) -> None:
    """Redis is killed while jobs run and come in, and started again; soon the fleet works as before."""
    scene.worker(), scene.worker()
    scene.submit(scene.jobs // 2)
    scene.wait_until_done(0.05)
    scene.valkey.kill()
    time.sleep(scene.random.uniform(0.1, 2))
    scene.valkey.start()
    back, before = time.monotonic(), scene.done()
    scene.submit(scene.jobs - scene.jobs // 2)
    eventually(lambda: patiently(scene.done) > before, within_s=BACK_S)
    scene.measured["back_s"] = round(time.monotonic() - back, 2)


def cut_file(scene: Scene) -> None:
    """The machine under Redis dies: of the last second's writes, any number of bytes is gone from the file.

    What was acknowledged before that second stays. Jobs whose end was in it run again and may be told of twice.
    """
    scene.worker(), scene.worker()
    scene.submit(scene.jobs // 2)
    scene.wait_until_done(0.05)
    sure, safe_bytes = set(scene.ids), _written_bytes(scene)
    _submit_for_a_second(scene, scene.jobs - scene.jobs // 2)
    scene.valkey.kill()
    file = scene.valkey.append_only_file
    lost_bytes = scene.random.randint(0, file.stat().st_size - safe_bytes)
    os.truncate(file, file.stat().st_size - lost_bytes)
    scene.valkey.start()
    known = scene.records()
    gone = set(scene.ids) - {record.job_id for record in known}
    told = {delivery.message_id.split("_")[1] for delivery in scene.receiver.deliveries}
    scene.undone = told & {record.job_id for record in known if not record.state.is_terminal}
    scene.measured |= {"lost_bytes": lost_bytes, "gone": len(gone), "undone": len(scene.undone)}
    assert not gone & sure, f"{len(gone & sure)} jobs are gone that had been acknowledged for a second"
    scene.ids = [job_id for job_id in scene.ids if job_id not in gone]


def _written_bytes(scene: Scene) -> int:
    """Size of the append-only file once it holds all that was answered for; the file of everysec may lag behind."""
    commands: Any = scene.redis
    eventually(lambda: commands.info("persistence")["aof_buffer_length"] == 0, every_s=0.005)
    return scene.valkey.append_only_file.stat().st_size


def _submit_for_a_second(scene: Scene, count: int) -> None:
    parts, until = 20, time.monotonic() + 1
    for number in range(parts):
        scene.submit(count * (number + 1) // parts - count * number // parts)
        time.sleep(max(0.0, (until - time.monotonic()) / (parts - number)))


def two_schedulers(scene: Scene) -> None:
    """The leader is killed while workers die, the other takes over; what the dead one still had to say is refused."""
    scene.schedulers.append(scene.fleet.scheduler())
    victim = scene.worker()
    scene.worker()
    scene.submit(scene.jobs)
    scene.wait_until_done(0.05)
    leader, epoch = _leader(scene), _epoch(scene)
    leader.kill()
    victim.kill()
    scene.worker()
    eventually(lambda: _epoch(scene) > epoch, within_s=15, every_s=0.001)
    assert not scene.store.publish_limits(epoch, STALE_LIMITS, 30), "limits of a dead leader, at its successor's start"
    commands: Any = scene.redis
    eventually(lambda: int(commands.hget(keys.PREFIXES["lim"], "epoch")) > epoch, within_s=15)
    assert not scene.store.publish_limits(epoch, STALE_LIMITS, 30), "limits of a dead leader"
    published = {scope.decode(): float(value) for scope, value in commands.hgetall(keys.PREFIXES["limnow"]).items()}
    assert published == scene.store.limits.in_force(), published


def _epoch(scene: Scene) -> int:
    commands: Any = scene.redis
    return int(commands.get(keys.PREFIXES["epoch"]) or 0)


def _leader(scene: Scene) -> Process:
    """The scheduler that leads; its name is host, pid and a random part."""
    commands: Any = scene.redis
    name = eventually(lambda: commands.get(keys.PREFIXES["leader"])).decode()
    pid = int(name.rsplit("-", 2)[1])
    return next(process for process in scene.schedulers if process.pid == pid)
