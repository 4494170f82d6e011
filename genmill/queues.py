"""RQ's queue over lanes: what `rq info`, rq-dashboard and the worker's command line see."""

from __future__ import annotations

from typing import Any

from redis.client import Pipeline
from rq import Queue
from rq.job import Job
from rq.serializers import JSONSerializer

from genmill import keys
from genmill.settings import load_settings
from genmill.store import Store


class PriorityQueue(Queue):  # type: ignore[misc]  # rq ships no types that mypy can follow
    """Set as RQ_QUEUE_CLASS. Counts and lists lanes; what RQ itself pushes goes to RQ's plain list and is adopted
    into lanes by the next claim, so both are counted.
    """

    def __init__(self, name: str = "default", *args: Any, **kwargs: Any) -> None:
        kwargs["serializer"] = JSONSerializer
        super().__init__(name, *args, **kwargs)

    @property
    def count(self) -> int:
        with self.connection.pipeline(transaction=False) as pipe:
            for key in self._ready_keys():
                pipe.zcard(key)
            pipe.llen(self.key)
            return sum(pipe.execute())

    def is_empty(self) -> bool:
        return self.count == 0

    def get_job_ids(self, offset: int = 0, length: int = -1) -> list[str]:
        """Ready jobs by virtual deadline, then those on the plain list."""
        ready: list[tuple[bytes, float]] = []
        last = -1 if length < 0 else offset + length - 1
        for key in self._ready_keys():
            ready += self.connection.zrange(key, 0, last, withscores=True)
        ready.sort(key=lambda pair: pair[1])
        ids = [job_id.decode() for job_id, _ in ready]
        ids += [job_id.decode() for job_id in self.connection.lrange(self.key, 0, last)]
        return ids[offset:] if length < 0 else ids[offset : offset + length]

    def get_job_position(self, job_or_id: Job | str) -> int | None:
        job_id = job_or_id.id if isinstance(job_or_id, Job) else job_or_id
        ids = self.get_job_ids()
        return ids.index(job_id) if job_id in ids else None

    def remove(self, job_or_id: Job | str, pipeline: Pipeline | None = None) -> Any:
        """Takes a job out of its lane and off the plain list, in the caller's transaction if there is one.

        RQ's Job.cancel and Job.delete call their own class's, whatever RQ_QUEUE_CLASS says: what those leave in a lane
        is cleared away by the scheduler, or by a claim that comes to it.
        """
        job_id = job_or_id.id if isinstance(job_or_id, Job) else job_or_id
        Store(self.connection, load_settings()).withdraw(job_id, pipeline)
        return super().remove(job_id, pipeline)

    def empty(self) -> int:
        """Cancels every waiting job: each gets a terminal state and its callback, none vanishes."""
        store = Store(self.connection, load_settings())
        return sum(store.cancel(job_id) == "dequeued" for job_id in self.get_job_ids())

    def _ready_keys(self) -> list[str]:
        heads = self.connection.zrange(keys.batch_key_heads(self.name), 0, -1)
        return [keys.ready(self.name, batch_key.decode()) for batch_key in heads]
