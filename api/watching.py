"""Many watchers of jobs, one connection to Redis: a thread that reads what is new and hands it to whom it concerns."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Condition, Lock, Thread
from weakref import WeakKeyDictionary

from redis.exceptions import RedisError

from genmill.events import Delta, Snapshot
from genmill.jobs import JobRecord
from genmill.store import Store
from genmill.store.events import EventLog, Marks

log = logging.getLogger(__name__)

WAIT_MS = 50
"""How long one read waits for what is new, and a new watcher for the next read."""
LOOK_S, IDLE_LOOK_S = 0.25, 1.0
"""How often the hub looks how jobs stand: those with a stream of events, and those of which only the end is waited
for, which it hears of at once in any case; an end that RQ's own tools made is found by looking."""
AWAY_S = 0.5


@dataclass(slots=True)
class Heard:
    """What a watcher has not taken yet: how its job stands, more of its text, or that there is no such job, or no
    Redis."""

    snapshot: Snapshot | None = None
    deltas: list[Delta] = field(default_factory=list)
    is_gone: bool = False
    error: RedisError | None = None

    @property
    def is_end(self) -> bool:
        return self.is_gone or (self.snapshot is not None and self.snapshot.state.is_terminal)


class Watch:
    """One watcher of one job. What it does not take piles up no further than the job's text."""

    def __init__(
        self, job_id: str, *, has_events: bool = False, is_streamed: bool = False, has_preview: bool = False
    ) -> None:
        self.job_id = job_id
        self.has_events, self.is_streamed, self.has_preview = has_events, is_streamed, has_preview
        self.seen_preview = (0, 0)
        self._heard, self._is_new = Heard(), False
        self._changed = Condition()

    @classmethod
    def of_events(cls, record: JobRecord) -> Watch:
        """For a stream of events."""
        return cls(record.job_id, has_events=True, is_streamed=record.is_streamed, has_preview=record.has_preview)

    def tell(
        self,
        snapshot: Snapshot | None = None,
        deltas: Sequence[Delta] = (),
        *,
        is_gone: bool = False,
        error: RedisError | None = None,
    ) -> None:
        """From the hub: the latest snapshot holds, but its preview stays until a newer one comes."""
        with self._changed:
            heard = self._heard
            if snapshot is not None:
                if snapshot.preview is not None:
                    self.seen_preview = (snapshot.preview.attempt, snapshot.preview.step)
                elif heard.snapshot is not None:
                    snapshot = snapshot._replace(preview=heard.snapshot.preview)
                heard.snapshot = snapshot
            heard.deltas += deltas
            heard.is_gone, heard.error = is_gone or heard.is_gone, error or heard.error
            self._is_new = True
            self._changed.notify()

    def take(self, timeout_s: float) -> Heard | None:
        """What is new, as soon as something is; None after `timeout_s`."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_new, timeout_s):
                return None
            heard, self._heard, self._is_new = self._heard, Heard(), False
            return heard


@dataclass(slots=True)
class _Watched:
    """A job on the hub's list."""

    marks: Marks
    watches: list[Watch] = field(default_factory=list)
    last: Snapshot | None = None

    @property
    def has_events(self) -> bool:
        return any(watch.has_events for watch in self.watches)

    @property
    def known_preview(self) -> tuple[int, int] | None:
        """What all have seen; None where nobody wants previews."""
        return min((watch.seen_preview for watch in self.watches if watch.has_preview), default=None)


class Hub:
    """Its thread lives as long as somebody watches. A Redis that is away is told to all, and asked again."""

    def __init__(self, events: EventLog) -> None:
        self._log = events
        self._lock = Lock()
        self._new: list[Watch] = []
        self._watched: dict[str, _Watched] = {}
        self._thread: Thread | None = None
        self._looks_due_s = {True: 0.0, False: 0.0}

    @contextmanager
    def watching(self, watch: Watch) -> Iterator[Watch]:
        """The watch hears how its job stands at once, then what changes."""
        with self._lock:
            self._new.append(watch)
            if self._thread is None:
                self._thread = Thread(target=self._run, name="watch-hub", daemon=True)
                self._thread.start()
        try:
            yield watch
        finally:
            with self._lock:
                self._forget(watch)

    def _forget(self, watch: Watch) -> None:
        if watch in self._new:
            self._new.remove(watch)
        watched = self._watched.get(watch.job_id)
        if watched is not None and watch in watched.watches:
            watched.watches.remove(watch)
            if not watched.watches:
                del self._watched[watch.job_id]

    def _run(self) -> None:
        while self._is_needed():
            try:
                self._admit()
                self._follow()
                self._look()
            except RedisError as err:
                log.warning("watchers hear nothing, no answer from Redis: %s", err)
                self._tell_all(err)
                time.sleep(AWAY_S)
            except Exception:  # the edge of the thread: whoever waits must not wait for ever
                log.exception("watchers hear nothing, trying again")
                time.sleep(AWAY_S)

    def _is_needed(self) -> bool:
        with self._lock:
            if self._new or self._watched:
                return True
            self._thread = None
            return False

    def _admit(self) -> None:
        """First looks for those who came. Who watches already hears their deltas as well, and knows them by offset."""
        with self._lock:
            new = list(self._new)
        if not new:
            return
        wanted = {watch.job_id: False for watch in new}
        for watch in new:
            wanted[watch.job_id] |= watch.is_streamed
        looks = self._log.first_look(wanted)
        with self._lock:
            for watch in [watch for watch in self._new if watch in new]:
                self._new.remove(watch)
                look = looks[watch.job_id]
                watched = self._watched.setdefault(watch.job_id, _Watched(look.marks))
                watched.watches.append(watch)
                watched.marks = look.marks if look.marks.deltas else watched.marks._replace(ends=look.marks.ends)
                for each in watched.watches:
                    each.tell(look.snapshot, look.deltas, is_gone=look.snapshot is None)
        self._looks_due_s[True] = 0.0  # previews are no part of the first look

    def _follow(self) -> None:
        with self._lock:
            marks = {job_id: watched.marks for job_id, watched in self._watched.items()}
        if not marks:
            return
        news = self._log.follow(marks, WAIT_MS)
        ended = [job_id for job_id, new in news.items() if new.has_end]
        snapshots = self._log.look(ended, {}) if ended else {}
        with self._lock:
            for job_id, new in news.items():
                if (watched := self._watched.get(job_id)) is not None:
                    watched.marks = new.marks
                    for watch in watched.watches:
                        watch.tell(snapshots.get(job_id), new.deltas)

    def _look(self) -> None:
        now_s = time.monotonic()
        for has_events, every_s in ((True, LOOK_S), (False, IDLE_LOOK_S)):
            if now_s >= self._looks_due_s[has_events]:
                self._looks_due_s[has_events] = now_s + every_s
                self._look_at(has_events=has_events)

    def _look_at(self, *, has_events: bool) -> None:
        with self._lock:
            due = {job_id: one for job_id, one in self._watched.items() if one.has_events is has_events}
            previews = {job_id: seen for job_id, one in due.items() if (seen := one.known_preview) is not None}
        if not due:
            return
        snapshots = self._log.look(list(due), previews)
        with self._lock:
            for job_id, snapshot in snapshots.items():
                watched = self._watched.get(job_id)
                if watched is not None and (snapshot is None or snapshot != watched.last):
                    watched.last = snapshot
                    for watch in watched.watches:
                        watch.tell(snapshot, is_gone=snapshot is None)

    def _tell_all(self, error: RedisError) -> None:
        with self._lock:
            for watch in [*self._new, *(watch for one in self._watched.values() for watch in one.watches)]:
                watch.tell(error=error)


_hubs: WeakKeyDictionary[Store, Hub] = WeakKeyDictionary()
_making = Lock()


def hub_of(store: Store) -> Hub:
    """The one hub of this store in this process."""
    with _making:
        if store not in _hubs:
            _hubs[store] = Hub(store.events)
        return _hubs[store]
