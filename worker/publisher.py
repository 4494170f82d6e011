"""Tells those who watch what jobs write and how their pictures look, in a thread: the engines never wait for it."""

from __future__ import annotations

import io
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Condition, Thread
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from genmill.events import Delta, Preview
from genmill.jobs import Claim
from genmill.store.events import EventLog
from worker.engines.base import Sketch, TextDelta

if TYPE_CHECKING:
    from PIL.Image import Image

log = logging.getLogger("genmill.worker")

PAUSE_S = 0.03
"""Between two writes: what came meanwhile goes out together, in one round trip for all jobs."""
AWAY_S = 1.0
SHORTEST_SIDE, LONGEST_SIDE = 128, 256
"""Pixels of a preview's longer side."""
MAX_PREVIEW_BYTES = 32_000
QUALITIES = (75, 40, 10)


class Publisher:
    """What a job that lost its lease still tells carries its old attempt, and nobody listens."""

    def __init__(self, events: EventLog, threads: int = 1) -> None:
        self._log = events
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="preview")
        self._changed = Condition()
        self._texts: dict[tuple[str, int], list[TextDelta]] = {}
        self._previews: dict[str, Preview] = {}
        self._drawing: set[str] = set()
        self._is_closed = False
        self._thread: Thread | None = None

    def note_text(self, claim: Claim, delta: TextDelta) -> None:
        """Goes out within PAUSE_S; while Redis is away it is kept."""
        with self._changed:
            told = self._texts.setdefault((claim.job_id, claim.fence), [])
            if told and told[-1].offset + len(told[-1].text) == delta.offset:
                delta = TextDelta(told[-1].offset, told.pop().text + delta.text)
            told.append(delta)
            self._wake()

    def note_sketch(self, claim: Claim, step: int, sketch: Sketch) -> None:
        """Drawn in a thread; passed over while the job's last one is not done."""
        with self._changed:
            if claim.job_id in self._drawing or self._is_closed:
                return
            self._drawing.add(claim.job_id)
        self._pool.submit(self._draw, claim, step, sketch)

    def close(self) -> None:
        """Writes what is left once, and ends the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._run, name="publisher", daemon=True)
            self._thread.start()
        self._changed.notify()

    def _draw(self, claim: Claim, step: int, sketch: Sketch) -> None:
        try:
            image = encode_preview(sketch())
            with self._changed:
                if image is not None:
                    self._previews[claim.job_id] = Preview(claim.fence, step, image)
                    self._wake()
        except Exception:  # the edge of the thread: a job does not fail for its preview
            log.exception("preview of %s", claim.job_id)
        finally:
            with self._changed:
                self._drawing.discard(claim.job_id)

    def _run(self) -> None:
        while self._has_news():
            with self._changed:
                texts, self._texts = self._texts, {}
                previews, self._previews = self._previews, {}
            try:
                self._write(texts, previews)
                time.sleep(PAUSE_S)
            except RedisError as err:
                log.warning("events are not written, trying again: %s", err)
                self._keep(texts, previews)
                time.sleep(AWAY_S)
            except Exception:  # the edge of the thread: a text that cannot be written must not silence the others
                log.exception("events are not written")

    def _has_news(self) -> bool:
        """Waits for some. False once it is closed and all is written, or cannot be."""
        with self._changed:
            self._changed.wait_for(lambda: self._texts or self._previews or self._is_closed)
            return bool(self._texts or self._previews)

    def _write(self, texts: dict[tuple[str, int], list[TextDelta]], previews: dict[str, Preview]) -> None:
        deltas = [(job_id, Delta(fence, *delta)) for (job_id, fence), told in texts.items() for delta in told]
        self._log.write(deltas, list(previews.items()))

    def _keep(self, texts: dict[tuple[str, int], list[TextDelta]], previews: dict[str, Preview]) -> None:
        """Before what came meanwhile; of a closed one nothing."""
        with self._changed:
            if self._is_closed:
                return
            for job, told in self._texts.items():
                texts.setdefault(job, []).extend(told)
            self._texts, self._previews = texts, previews | self._previews


def encode_preview(image: Image) -> bytes | None:
    """WebP of at most MAX_PREVIEW_BYTES; None where it does not get that small."""
    longest = max(image.size)
    scale = min(max(longest, SHORTEST_SIDE), LONGEST_SIDE) / longest
    image = image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))))
    for quality in QUALITIES:
        buffer = io.BytesIO()
        image.save(buffer, format="WEBP", quality=quality, method=2)
        if buffer.tell() <= MAX_PREVIEW_BYTES:
            return buffer.getvalue()
    return None
