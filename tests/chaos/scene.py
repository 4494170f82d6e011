"""Where a case plays: a fleet of real processes, and the jobs that were acknowledged."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from genmill import keys
from genmill.connections import connect
from genmill.jobs import JobRecord, JobRequest, new_job_id
from genmill.keys import JobClass
from genmill.registry import BUILTIN_MODELS, load_registry
from genmill.settings import Settings, load_settings
from genmill.store import Store
from tests.fleet import SECRET, Fleet, Process, Valkey, eventually
from tests.receiver import Receiver

LEASE_S = 2.0
TENANTS = 5
DEFAULTS: Mapping[str, Any] = {
    "lease_s": LEASE_S, "renew_s": 0.4, "durability": "always", "limits": {"tenant:*": 20, "host:*": 64},
}  # fmt: skip
WORKER = ("-w", "tests.chaos.worker.ChaosWorker", "-S", "json", "--logging_level", "WARNING")
SPEC = load_registry().get("shapes")
MODELS = BUILTIN_MODELS.read_text().replace('source = "', f'source = "{BUILTIN_MODELS.parent}/')


class Scene:
    """A Valkey that writes through, a scheduler, workers, a webhook receiver; and the jobs that were acknowledged.

    `settings` go to all processes. `receivers` are those whose deliveries count, `undone` the jobs whose end was taken
    back together with Redis' last second, `measured` what the case wants to tell beside its promises.
    """

    def __init__(self, folder: Path, seed: int, jobs: int, receiver: Receiver, settings: Mapping[str, Any]) -> None:
        self.random, self.jobs, self.receiver = random.Random(seed), jobs, receiver
        chosen = {**DEFAULTS, **settings}
        self.valkey = Valkey(folder / "valkey", appendfsync=chosen["durability"])
        self.valkey.start()
        self.fleet = Fleet(folder, self.valkey.url, **_environment(chosen))
        self.outputs = folder / "outputs"
        self.settings: Settings = load_settings(
            redis_url=self.valkey.url, secret_key=SECRET, storage_url=f"file://{self.outputs}", **chosen
        )
        self.redis: Redis = connect(self.settings, timeout_s=10)
        self.store = Store(self.redis, self.settings)
        self.ids: list[str] = []
        self.receivers, self.undone = [receiver], set[str]()
        self.measured: dict[str, float] = {}
        self.is_stored: Callable[[str], bool] = lambda key: (self.outputs / key).is_file()
        self.schedulers = [self.fleet.scheduler()]
        self.most_live: Counter[str] = Counter()
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._watch_limits, daemon=True)
        self._watch.start()

    def worker(self, slots: int = SPEC.max_batch, **env: str) -> Process:
        """A chaos worker with so many slots; what RQ calls it is its log's name."""
        name = f"worker-{len(self.fleet.processes)}"
        models = self.fleet.folder / f"{name}.toml"
        models.write_text(MODELS.replace(f"max_batch = {SPEC.max_batch}\n", f"max_batch = {slots}\n"))
        return self.fleet.worker(*WORKER, "--name", name, name=name, GENMILL_MODELS=str(models), **env)

    def submit(self, count: int, prompt: str = "x", **how: Any) -> list[str]:
        """Acknowledged jobs, with one prompt; see `submit_prompts`."""
        return self.submit_prompts([prompt] * count, **how)

    def submit_prompts(
        self,
        prompts: Sequence[str],
        *,
        tenants: int = TENANTS,
        classes: Sequence[JobClass] = tuple(JobClass),
        hooks: Sequence[str] = (),
        ttl_s: int | None = None,
        behind: Sequence[str] = (),
    ) -> list[str]:
        """Acknowledged jobs of several tenants, classes and webhooks; those of one tenant and class come at once. Each
        depends on the one of its place in `behind`, as far as that goes."""
        hooks = hooks or [self.receiver.url]
        requests = [
            JobRequest(
                new_job_id(), f"t{number % tenants}", SPEC, SPEC.parse_input({"prompt": prompt, "steps": 2}),
                classes[number % len(classes)], webhook=hooks[number // len(classes) % len(hooks)], ttl_s=ttl_s,
                depends_on=dict.fromkeys(behind[number : number + 1], "/depends_on/0"),
            )
            for number, prompt in enumerate(prompts)
        ]  # fmt: skip
        ids = [one.job_id for one in self.store.submit_many(requests)]
        self.ids += ids
        return ids

    def records(self, ids: Sequence[str] | None = None) -> list[JobRecord]:
        """Of those that there are."""
        return [record for record in self.store.get_many(self.ids if ids is None else ids) if record]

    def done(self, ids: Sequence[str] | None = None) -> int:
        with self.redis.pipeline(transaction=False) as pipe:
            for job_id in self.ids if ids is None else ids:
                pipe.hget(keys.job(job_id), "status")
            ended = (b"finished", b"failed", b"canceled", b"stopped")
            return sum(status in ended for status in pipe.execute())

    def wait_until_done(self, share: float = 1.0, within_s: float = 90.0) -> None:
        eventually(lambda: patiently(self.done) >= share * len(self.ids), within_s=within_s, every_s=0.1)

    def wait_until_told(self, within_s: float = 60.0) -> None:
        """No delivery waits or runs any more."""
        eventually(lambda: patiently(self._has_told), within_s=within_s, every_s=0.1)

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
                        for number in range(TENANTS):
                            pipe.scard(keys.run_scope(f"tenant:t{number}"))
                        for number, live in enumerate(pipe.execute()):
                            self.most_live[f"t{number}"] = max(self.most_live[f"t{number}"], live)
                except RedisError:
                    continue


def patiently(look: Callable[[], int]) -> int:
    """0 while Redis is away."""
    try:
        return look()
    except RedisError:
        return 0


def _environment(settings: Mapping[str, Any]) -> dict[str, str]:
    return {
        f"GENMILL_{name.upper()}": value if isinstance(value, str) else json.dumps(value)
        for name, value in settings.items()
    }
