"""How long what jobs were given and have made stays in the storage: as long as the job is known; of a batch's lines as
long as the batch, in whose folder it lies.

A job is on the shelf before anything of it is stored. From the time there on it is looked for, and once Redis knows it
no more its objects go; so nothing stays of what broke off in between either.
"""

from __future__ import annotations

from typing import Any

from redis import Redis

from genmill import keys
from genmill.batches.parts import folder_of
from genmill.batches.records import line_of
from genmill.settings import Settings
from genmill.storage import Storage
from genmill.storage.port import is_key

LOOK_AGAIN_S = 24 * 3600
"""A job that is there and has no end yet is looked for so much later."""
_SHELF = keys.PREFIXES["objectshelf"]


def outputs_folder(job_id: str) -> str:
    """Under it lie a job's outputs, by attempt. Who pushes jobs into RQ chooses their ids, also such as `files`: so a
    job has nothing at the top."""
    line = line_of(job_id)
    return f"outputs/{job_id}" if line is None else f"{folder_of(line[0])}/outputs/{line[1]}"


def inputs_folder(job_id: str) -> str:
    """Under it lie the images that a job, which is no line of a batch, was given."""
    return f"inputs/{job_id}"


def shelve(redis: Redis, job_id: str, settings: Settings) -> None:
    """To be called before anything of the job is stored. Raises RedisError. Under an id that is no key nothing is."""
    if line_of(job_id) is None and is_key(outputs_folder(job_id)):
        commands: Any = redis  # redis-py types each reply for every decode option at once; ours are bytes
        redis.zadd(_SHELF, {job_id: commands.time()[0] + max(settings.result_ttl_s, settings.failure_ttl_s)})


def due(redis: Redis, most: int) -> list[str]:
    """Jobs whose time on the shelf is over and that are known no more; the rest is put back. Raises RedisError."""
    commands: Any = redis  # as above
    now_s = commands.time()[0]
    job_ids = [raw.decode() for raw in commands.zrangebyscore(_SHELF, "-inf", now_s, start=0, num=most)]
    with redis.pipeline(transaction=False) as pipe:
        for job_id in job_ids:
            pipe.ttl(keys.job(job_id))
        left_s = dict(zip(job_ids, pipe.execute(), strict=True))
    later = {job_id: now_s + (s if s >= 0 else LOOK_AGAIN_S) + 1 for job_id, s in left_s.items() if s != -2}
    if later:
        redis.zadd(_SHELF, later)
    return [job_id for job_id in job_ids if job_id not in later]


def clear_away(redis: Redis, storage: Storage, job_id: str) -> None:
    """All of it, the shelf last: until then it is tried again. Raises StorageUnavailable, RedisError."""
    storage.delete_prefix(outputs_folder(job_id))
    storage.delete_prefix(inputs_folder(job_id))
    redis.zrem(_SHELF, job_id)
