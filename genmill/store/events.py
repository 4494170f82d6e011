"""What is kept of a running job for those who watch it: how far it is, deltas of its text, its latest preview."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from redis import Redis
from redis.commands.core import Script

from genmill import keys
from genmill.events import Delta, Preview, Snapshot
from genmill.jobs import LOADING, Claim, progress_of, state_of

_SEEN = ("status", "fence", "progress", "error")


class Marks(NamedTuple):
    """Up to where a job's ends and deltas are known; `deltas` is None where nobody wants them."""

    ends: bytes
    deltas: bytes | None


class Look(NamedTuple):
    """A job at first sight. `snapshot` is None where there is none of this id."""

    snapshot: Snapshot | None
    deltas: tuple[Delta, ...]
    marks: Marks


class News(NamedTuple):
    """What came since some marks, and the marks after it."""

    has_end: bool
    deltas: tuple[Delta, ...]
    marks: Marks


class EventLog:
    """All methods raise redis.exceptions.RedisError, and make one round trip, or as many as they say."""

    def __init__(self, redis: Redis, progress: Script) -> None:
        self._redis: Any = redis  # as in Store: ours are bytes
        self._progress = progress

    def note_progress(self, steps: Iterable[tuple[str, int, int, int]]) -> int:
        """(job id, fence, step, steps) of running jobs; returns how many were still ours."""
        args: list[str | int] = []
        for job_id, fence, step, total in steps:
            args += [job_id, fence, json.dumps({"step": step, "steps": total})]
        return int(self._progress(args=args)) if args else 0

    def note_loading(self, claims: Iterable[Claim], *, is_over: bool = False) -> None:
        """These running jobs wait for their model, which is being loaded; or do not any more. The end of their run, or
        the next claim, takes it back as well."""
        text = "" if is_over else LOADING
        args = [part for claim in claims for part in (claim.job_id, claim.fence, text)]
        self._progress(args=args)

    def write(self, deltas: Sequence[tuple[str, Delta]], previews: Sequence[tuple[str, Preview]]) -> None:
        """By job id, in their order. May be repeated: a delta says where it belongs."""
        with self._redis.pipeline(transaction=False) as pipe:
            for job_id, delta in deltas:
                fields = {"attempt": delta.attempt, "offset": delta.offset, "text": delta.text}
                pipe.xadd(keys.tokens(job_id), fields, maxlen=keys.MOST_DELTAS)
                pipe.expire(keys.tokens(job_id), keys.TOKENS_TTL_S)
            for job_id, preview in previews:
                pipe.hset(keys.preview(job_id), mapping=preview._asdict())
                pipe.expire(keys.preview(job_id), keys.PREVIEW_TTL_S)
            pipe.execute()

    def preview(self, job_id: str) -> Preview | None:
        attempt, step, image = self._redis.hmget(keys.preview(job_id), Preview._fields)
        return None if image is None else Preview(int(attempt), int(step), image)

    def first_look(self, job_ids: Mapping[str, bool]) -> dict[str, Look]:
        """Of each job; the deltas, from the first on, of those that are marked true."""
        with self._redis.pipeline(transaction=False) as pipe:
            for job_id, is_streamed in job_ids.items():
                # the marks come first: an end before the look at its job would never be seen as a new one
                pipe.xrevrange(keys.results(job_id), count=1)
                pipe.xrange(keys.tokens(job_id), max="+" if is_streamed else "-")
                pipe.hmget(keys.job(job_id), _SEEN)
            replies = iter(pipe.execute())
        looks = {}
        for job_id, is_streamed in job_ids.items():
            ends, entries, values = next(replies), next(replies), next(replies)
            marks = Marks(_last(ends), _last(entries) if is_streamed else None)
            looks[job_id] = Look(_snapshot(values), _deltas(entries), marks)
        return looks

    def look(self, job_ids: Sequence[str], previews: Mapping[str, tuple[int, int]]) -> dict[str, Snapshot | None]:
        """How jobs stand; with a preview newer than the (attempt, step) of `previews`: one trip more, and one each."""
        with self._redis.pipeline(transaction=False) as pipe:
            for job_id in job_ids:
                pipe.hmget(keys.job(job_id), _SEEN)
            snapshots = dict(zip(job_ids, map(_snapshot, pipe.execute()), strict=True))
        for job_id, preview in self._newer(previews).items():
            if (snapshot := snapshots.get(job_id)) is not None:
                snapshots[job_id] = snapshot._replace(preview=preview)
        return snapshots

    def follow(self, marks: Mapping[str, Marks], wait_ms: int) -> dict[str, News]:
        """What is new of these jobs; waits for so long where nothing is."""
        ends = {keys.results(job_id): (job_id, mark.ends) for job_id, mark in marks.items()}
        texts = {keys.tokens(job_id): (job_id, mark.deltas) for job_id, mark in marks.items() if mark.deltas}
        streams = {key: mark for key, (_, mark) in (ends | texts).items()}
        news: dict[str, News] = {}
        for name, entries in self._redis.xread(streams, block=wait_ms) or ():
            key = name.decode()
            job_id = (ends.get(key) or texts[key])[0]
            has_end, deltas, mark = news.get(job_id, News(False, (), marks[job_id]))
            if key in ends:
                news[job_id] = News(True, deltas, mark._replace(ends=_last(entries)))
            else:
                news[job_id] = News(has_end, _deltas(entries), mark._replace(deltas=_last(entries)))
        return news

    def _newer(self, known: Mapping[str, tuple[int, int]]) -> dict[str, Preview]:
        if not known:
            return {}
        with self._redis.pipeline(transaction=False) as pipe:
            for job_id in known:
                pipe.hmget(keys.preview(job_id), "attempt", "step")
            at = {
                job_id: (int(attempt or 0), int(step or 0))
                for job_id, (attempt, step) in zip(known, pipe.execute(), strict=True)
            }
        newer = {job_id: self.preview(job_id) for job_id in known if at[job_id] > known[job_id]}
        return {job_id: preview for job_id, preview in newer.items() if preview is not None}


def _snapshot(values: Sequence[bytes | None]) -> Snapshot | None:
    status, fence, progress, error = values
    if status is None:
        return None
    state = state_of(status.decode(), json.loads(error) if error else None)
    return Snapshot(state, int(float(fence or 0)), progress_of(progress or b""))


def _deltas(entries: Sequence[tuple[bytes, Mapping[bytes, bytes]]]) -> tuple[Delta, ...]:
    return tuple(
        Delta(int(entry[b"attempt"]), int(entry[b"offset"]), entry[b"text"].decode("utf-8", "replace"))
        for _, entry in entries
    )


def _last(entries: Sequence[tuple[bytes, Any]]) -> bytes:
    """The mark after these; XREVRANGE of one entry counts as well."""
    return entries[-1][0] if entries else b"0-0"
