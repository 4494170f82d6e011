"""What goes wrong around processes that live: jobs, memory, storage, receivers, clocks, crowds."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence

from genmill import keys
from genmill.jobs import JobState
from genmill.keys import JobClass
from tests.chaos.bucket import standing
from tests.chaos.scene import LEASE_S, Scene
from tests.fleet import eventually, free_port
from tests.receiver import receiving

BATCH = 16
PACE, PACE_S = 8, 0.05
NOISE_S = 0.25
"""What a delivery may take longer on a busy machine, whatever 10 % of it are; a receiver that hangs costs a second."""


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
    """In each batch of 16 one job raises: it alone fails, with its own error, and 15 end well."""
    scene.worker(BATCH)
    for number in range(scene.jobs // BATCH):
        prompts = ["x"] * BATCH
        prompts[scene.random.randrange(BATCH)] = f"fail {number}"
        ids = scene.submit_prompts(prompts, tenants=1, classes=[JobClass.P1])
        eventually(lambda ids=ids: scene.done(ids) == BATCH, within_s=60, every_s=0.01)
        records = scene.records(ids)
        errors = [record.error for record in records if record.state is JobState.FAILED]
        batches = {record.result["receipt"]["batch_max"] for record in records if record.result}
        assert errors == [{"code": "generation_failed", "message": f"asked to: fail {number}"}], errors
        assert batches == {BATCH}, f"batches of {batches}"


def short_of_memory(scene: Scene) -> None:
    """The real engine runs out of memory: its batch is halved until it fits, and nobody pays for it."""
    rows = scene.random.randint(4, 10)
    ids = scene.submit(max(BATCH, scene.jobs // 20))
    worker = scene.worker(CHAOS_ROWS=f"{rows}")
    scene.wait_until_done()
    records = scene.records(ids)
    halved = worker.log.read_text().count("failed, halving it: OutOfMemoryError")
    batch_max = max(record.result["receipt"]["batch_max"] for record in records if record.result)
    scene.measured |= {"most_rows": rows, "halved": halved, "batch_max": batch_max}
    assert halved > 0, "nothing was ever too large"
    assert 1 < batch_max <= rows // 2, "an image is two rows"
    assert {record.state for record in records} == {JobState.SUCCEEDED}
    _assert_nothing_charged(scene)


def canceled_jobs(scene: Scene) -> None:
    """A third is canceled at any moment of its life: while it waits, runs, or has ended."""
    scene.worker(), scene.worker()
    ids = scene.submit(scene.jobs)
    victims, said = scene.random.sample(ids, len(ids) // 3), Counter[str]()
    for number, job_id in enumerate(victims):
        if number == len(victims) // 3:
            scene.wait_until_done((number + 1) / len(ids))  # until then all wait, from then on they run and end
        said[scene.store.cancel(job_id)] += 1
        time.sleep(scene.random.uniform(0, 2 / len(ids)))  # over about as long as the jobs take
    scene.measured |= dict(said)
    assert min(said["dequeued"], said["interrupting"] + said["too_late"]) > 0, f"all at one moment: {said}"


def storage_away(scene: Scene) -> None:
    """The storage takes nothing for some seconds; workers claim no more than they can keep, and do nothing twice."""
    slots, uploads = 8, scene.jobs // 4
    scene.outputs.parent.mkdir(parents=True, exist_ok=True)
    scene.outputs.write_text("a file stands where the folder should be")
    scene.worker(slots, CHAOS_UPLOADS=f"{uploads}")
    scene.submit(scene.jobs)
    eventually(lambda: _on_board(scene) >= uploads, within_s=30)
    time.sleep(2 * LEASE_S)
    assert scene.done() == 0, "nothing can be stored yet"
    scene.measured |= {"uploads": uploads, "on_board": _on_board(scene)}
    assert _on_board(scene) < uploads + slots, "claims go on although nothing can be stored"
    scene.outputs.unlink()
    scene.wait_until_done()
    _assert_nothing_charged(scene)


def storage_stalls(scene: Scene) -> None:
    """A bucket answers 503, then nothing at all, for a minute with 1,000 jobs; no work is done twice for it."""
    away_s = 0.06 * scene.jobs
    with standing() as bucket:
        scene.is_stored = bucket.stored.__contains__
        scene.worker(**bucket.env)
        scene.submit(scene.jobs)
        eventually(lambda: bucket.refused, within_s=30)
        time.sleep(away_s * scene.random.uniform(0.3, 0.7))
        bucket.answers.clear()
        eventually(lambda: bucket.held, within_s=30)
        time.sleep(away_s / 2)
        assert scene.done() == 0, "nothing can be stored yet"
        bucket.is_well = True
        bucket.answers.set()
        scene.wait_until_done()
        scene.measured |= {"refused": bucket.refused, "held": bucket.held}
        _assert_nothing_charged(scene)


def clock_off(scene: Scene) -> None:
    """The clocks of two workers are an hour off, in both directions; no lease is lost and no job expires."""
    scene.worker(CHAOS_CLOCK_S="3600"), scene.worker(CHAOS_CLOCK_S="-3600")
    scene.submit(scene.jobs, ttl_s=600)
    scene.wait_until_done()
    assert {record.state for record in scene.records()} == {JobState.SUCCEEDED}
    _assert_nothing_charged(scene)


def receiver_away(scene: Scene) -> None:
    """Of two webhook receivers one refuses connections, then takes them and does not answer; the other feels nothing.

    All is delivered once it is back.
    """
    port = free_port()
    scene.worker()
    with receiving(port=port) as other:
        scene.receivers.append(other)
        _delays_s(scene, other.url, BATCH)  # the first ones wait for the worker to start
        usual = _p99(_delays_s(scene, other.url, scene.jobs // 3))
    refused = _p99(_delays_s(scene, other.url, scene.jobs // 3))
    with receiving(port=port, is_awake=False) as other:
        scene.receivers.append(other)
        hanging = _p99(_delays_s(scene, other.url, scene.jobs // 3))
        eventually(lambda: other.held)
        other.awake.set()
        scene.wait_until_told()
    scene.measured |= {"p99_s": usual, "p99_refused_s": refused, "p99_hanging_s": hanging}
    assert max(refused, hanging) <= max(1.1 * usual, usual + NOISE_S), "others wait for a receiver that is away"


def _delays_s(scene: Scene, other: str, count: int) -> list[float]:
    """From each job's end to its webhook, at the scene's own receiver; half of the jobs are for the other one.

    They come at a pace that the fleet keeps up with: a delivery also waits for jobs with an earlier deadline.
    """
    ids = []
    for _ in range(count // PACE):
        ids += scene.submit(PACE, hooks=[scene.receiver.url, other])
        time.sleep(PACE_S)
    scene.wait_until_done()
    ended = {
        record.job_id: (record.ended_ms or 0) / 1e3
        for record in scene.records(ids)
        if record.webhook == scene.receiver.url
    }
    arrived: dict[str, float] = {}

    def are_told() -> bool:
        arrived.update((one.message_id.split("_")[1], one.at) for one in scene.receiver.deliveries)
        return arrived.keys() >= ended.keys()

    eventually(are_told)
    return [arrived[job_id] - at for job_id, at in ended.items()]


def _p99(delays_s: Sequence[float]) -> float:
    return round(sorted(delays_s)[math.ceil(0.99 * len(delays_s)) - 1], 3)


def _on_board(scene: Scene) -> int:
    return int(scene.redis.hlen(keys.PREFIXES["leases"]))


def _assert_nothing_charged(scene: Scene) -> None:
    """No job has a second attempt, and none a crash."""
    again = [record.job_id for record in scene.records() if record.fence != 1]
    assert not again, f"{len(again)} jobs ran twice"
    with scene.redis.pipeline(transaction=False) as pipe:
        for job_id in scene.ids:
            pipe.hget(keys.job(job_id), "crashes")
        assert not any(pipe.execute()), "a crash is counted"
