"""What is promised in every case, looked at when all is over.

Every acknowledged job ends in one visible state with one committed result, whose outputs are stored; its webhook is
called under one id; no limit is ever exceeded by live leases; nothing is left behind in Redis.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from genmill import doctor, keys
from genmill.jobs import JobState
from genmill.keeping import outputs_folder
from genmill.registry import load_registry
from tests.chaos.scene import Scene


@dataclass(slots=True)
class Outcome:
    """What a case showed. `lost` of its `jobs` never ended, `double_commits` have two results; `measured` is the
    case's own, `broken` what else failed."""

    case: str
    seed: int
    jobs: int = 0
    lost: int = 0
    double_commits: int = 0
    states: Mapping[str, int] = field(default_factory=dict)
    measured: Mapping[str, float] = field(default_factory=dict)
    wall_s: float = 0.0
    broken: list[str] = field(default_factory=list)

    @property
    def is_failed(self) -> bool:
        return bool(self.broken or self.lost or self.double_commits)


def judge(scene: Scene, outcome: Outcome) -> None:
    """All promises but that of the webhooks, while Redis is up."""
    outcome.measured = scene.measured
    _judge_jobs(scene, outcome)
    most = scene.settings.limits["tenant:*"]
    over = {tenant: live for tenant, live in scene.most_live.items() if live > most}
    if over:
        outcome.broken.append(f"limits exceeded: {over}")
    left = [key.decode() for prefix in ("gm:run:", "gm:parked:") for key in scene.redis.scan_iter(prefix + "*")]
    left += [name for name in ("gm:leases", "gm:waiting", "gm:parkings", "gm:chained") if scene.redis.exists(name)]
    left += _scraps(scene)
    if left:
        outcome.broken.append(f"left behind: {left[:5]}")
    faults = [
        f"{finding.what}: {finding.fault}"
        for finding in doctor.examine(scene.store, load_registry(), mend=False)
        if not finding.what.startswith(("setting", "scheduler"))
    ]
    if faults:
        outcome.broken.append(f"the doctor finds {faults[:3]}")


def _judge_jobs(scene: Scene, outcome: Outcome) -> None:
    records = scene.store.get_many(scene.ids)
    outcome.jobs = len(records)
    outcome.states = dict(Counter(record.state.value if record else "gone" for record in records))
    outcome.lost = sum(record is None or not record.state.is_terminal for record in records)
    with scene.redis.pipeline(transaction=False) as pipe:
        for job_id in scene.ids:
            pipe.xlen(keys.results(job_id))
        outcome.double_commits = sum(count > 1 for count in pipe.execute())
    outputs = [
        (f"{outputs_folder(record.job_id)}/{record.fence}/", output["key"])
        for record in records
        if record and record.state is JobState.SUCCEEDED
        for output in record.result["outputs"]
    ]
    missing = [key for folder, key in outputs if not key.startswith(folder) or not scene.is_stored(key)]
    if missing:
        outcome.broken.append(f"outputs that are not stored: {missing[:3]}")


def _scraps(scene: Scene) -> list[str]:
    """Job hashes that are none: somebody wrote on after the job was gone."""
    names = list(scene.redis.scan_iter(keys.job("*"), count=1000))
    with scene.redis.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.hexists(name, "status")
        return [name.decode() for name, is_job in zip(names, pipe.execute(), strict=True) if not is_job]


def judge_webhooks(scene: Scene, outcome: Outcome) -> None:
    """At least one delivery for each job, all under one id (an id names job, fence and event)."""
    ids: dict[str, set[str]] = {}
    for receiver in scene.receivers:
        for delivery in receiver.deliveries:
            ids.setdefault(delivery.message_id.split("_")[1], set()).add(delivery.message_id)
    untold = [job_id for job_id in scene.ids if job_id not in ids]
    if untold:
        outcome.broken.append(f"{len(untold)} jobs were not told of")
    several = [job_id for job_id, messages in ids.items() if len(messages) > 1 and job_id not in scene.undone]
    if several:
        outcome.broken.append(f"{len(several)} jobs were told of under several ids")
