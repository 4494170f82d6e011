"""More work than the fleet can do: who comes when."""

from __future__ import annotations

import time

from genmill import keys
from genmill.keys import JobClass
from tests.chaos.scene import SPEC, Scene
from tests.chaos.worker import STEPS
from tests.fleet import eventually

DELAYS_S = {"p0": 0.2, "p1": 0.5, "p2": 1.0, "p3": 2.0}
LOAD_S = 6.0
"""How long the case's jobs keep the fleet busy; bulk work starts about in the middle."""
WORKERS = 2
NOISE_S = 0.5


def busy_fleet(scene: Scene) -> None:
    """Interactive jobs keep the fleet fully busy; bulk work starts when its virtual deadline has come, behind what
    was there before."""
    crowd = Crowd(scene)
    bulk = scene.submit(max(1, scene.jobs // 100), classes=[JobClass.P3])
    due_ms = scene.records(bulk)[0].enqueued_ms + DELAYS_S["p3"] * 1e3
    ahead = None
    while crowd.keep_busy() and not all(record.started_ms for record in scene.records(bulk)):
        if ahead is None and time.time() * 1e3 >= due_ms:
            ahead = int(scene.redis.zcount(crowd.line, "-inf", due_ms))
        time.sleep(0.02)
    crowd.send_rest()
    scene.wait_until_done()
    waited = [((record.started_ms or 0.0) - record.enqueued_ms) / 1e3 for record in scene.records(bulk)]
    assert ahead is not None, f"bulk work started before its time, after {waited} s"
    most_s = DELAYS_S["p3"] + ahead / crowd.rate_s + crowd.batch_s + NOISE_S
    scene.measured |= {"bulk_waited_s": round(max(waited), 2), "bulk_most_s": round(most_s, 2), "ahead": ahead}
    assert crowd.is_full, "the fleet was not always busy"
    assert DELAYS_S["p3"] - DELAYS_S["p1"] <= min(waited), f"bulk work went before earlier deadlines: {waited}"
    assert max(waited) <= most_s, f"bulk work waited {max(waited):.1f} s, {most_s:.1f} s at most were due"


class Crowd:
    """Interactive jobs, of which enough wait at any time to fill the fleet again and for a second more."""

    line = keys.ready(JobClass.P1, SPEC.batch_key)

    def __init__(self, scene: Scene) -> None:
        slots = max(4, scene.jobs // 64)
        self._scene, self._left = scene, scene.jobs - max(1, scene.jobs // 100)
        self.rate_s = scene.jobs / LOAD_S
        self.batch_s = WORKERS * slots / self.rate_s
        self._waiting = int(self.rate_s) + WORKERS * slots
        for _ in range(WORKERS):
            scene.worker(slots, CHAOS_STEP_S=f"{self.batch_s / STEPS}")
        self._send(self._waiting)
        eventually(lambda: _running(scene) == WORKERS * slots)
        self._send(WORKERS * slots)
        self.is_full = True

    def keep_busy(self) -> bool:
        """Send as many as have left the line. Whether there are more to send."""
        waiting = int(self._scene.redis.zcard(self.line))
        self.is_full = self.is_full and waiting > 0
        self._send(min(self._left, self._waiting - waiting))
        return self._left > 0

    def send_rest(self) -> None:
        self._send(self._left)

    def _send(self, count: int) -> None:
        if count > 0:
            self._scene.submit(count, classes=[JobClass.P1])
            self._left -= count


def _running(scene: Scene) -> int:
    return int(scene.redis.scard(keys.run_scope(f"class:{JobClass.P1}")))
