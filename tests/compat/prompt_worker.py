"""A double of the worker: takes jobs from the real store, does what their prompts say, stores real pictures."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from genmill.errors import GenerationFailed, InvalidJob, JobCanceled, JobPoisoned
from genmill.events import Delta
from genmill.jobs import Claim
from genmill.registry import load_registry
from genmill.storage import Storage
from genmill.store import Outcome, Settlement, Store, Want
from tests.api.pictures import picture

WORDS = "circle on a blue background"
EARLY = len("circle on")
"""So many characters of a text that is streamed are told while it is held."""
REFUSALS = {"fail": GenerationFailed, "poison": JobPoisoned, "invalid": InvalidJob}


class PromptWorker:
    """Jobs whose prompt starts with `hold` are kept at step 9 of 20, with the beginning of a text told, until
    `release`; `fail`, `poison` and `invalid` end as such; all others succeed at once. `taken` counts claims."""

    def __init__(self, store: Store, storage: Storage) -> None:
        self._store, self._storage = store, storage
        self._wants = [Want(spec.batch_key, 8) for spec in load_registry().models]
        self._held: list[Claim] = []
        self._stop, self._open = threading.Event(), threading.Event()
        self.taken = 0

    def release(self) -> None:
        """What is held ends, and nothing is held from now on."""
        self._open.set()

    def run(self) -> None:
        while not self._stop.is_set():
            claims = list(self._store.claim("prompt-worker", ["p0", "p1", "p2", "p3"], self._wants).claims)
            self.taken += len(claims)
            leaving = [claim for claim in claims if not self._is_held(claim)]
            kept = [claim for claim in claims if self._is_held(claim)]
            self._store.events.note_progress([(claim.job_id, claim.fence, 9, 20) for claim in kept])
            self._store.events.write([(claim.job_id, Delta(claim.fence, 0, WORDS[:EARLY])) for claim in kept], [])
            self._held += kept
            canceled = self._store.renew([(claim.job_id, claim.fence) for claim in self._held]).canceled
            leaving += [claim for claim in self._held if self._open.is_set() or claim.job_id in canceled]
            self._held = [claim for claim in self._held if claim not in leaving]
            self._store.settle([self._end(claim, is_canceled=claim.job_id in canceled) for claim in leaving])
            self._stop.wait(0.02)

    def stop(self) -> None:
        self._stop.set()

    def _is_held(self, claim: Claim) -> bool:
        return self._words(claim).startswith("hold") and not self._open.is_set()

    @staticmethod
    def _input(claim: Claim) -> dict[str, Any]:
        given: dict[str, Any] = claim.call[1][0]["input"]
        return given

    def _words(self, claim: Claim) -> str:
        given = self._input(claim)
        return str(given["prompt"] or given["messages"][-1]["content"])

    def _end(self, claim: Claim, *, is_canceled: bool) -> Settlement:
        if is_canceled:
            return Settlement(claim.job_id, claim.fence, Outcome.CANCELED, error=JobCanceled())
        error = REFUSALS.get(self._words(claim).split()[0])
        if error is not None:
            return Settlement(claim.job_id, claim.fence, Outcome.FAILED, error=error("as the prompt says"))
        result = self._images(claim) if self._input(claim)["kind"] == "image" else _text(self._input(claim))
        return Settlement(claim.job_id, claim.fence, Outcome.FINISHED, result=result, gpu_ms=1500)

    def _images(self, claim: Claim) -> dict[str, Any]:
        given, outputs = self._input(claim), []
        for number in range(given["num_images"]):
            body = picture((given["width"], given["height"]), colour="red" if given["init_image"] is None else "blue")
            key = f"{claim.job_id}/{claim.fence}/{number}.png"
            self._storage.put(key, body, "image/png")
            outputs.append({"key": key, "content_type": "image/png", "bytes": len(body)})
        return {"outputs": outputs, "receipt": {}}


def _text(given: dict[str, Any]) -> dict[str, Any]:
    text: dict[str, Any] = {"text": WORDS, "finish_reason": "stop", "prompt_tokens": 2, "completion_tokens": 5}
    if given["logprobs"]:
        pieces = re.findall(r" ?\w+", WORDS)
        top = [{"token": f"t{rank}", "logprob": -1.0 - rank} for rank in range(given["top_logprobs"])]
        text["tokens"] = [{"token": piece, "logprob": -0.5, "top": top} for piece in pieces]
    return {"outputs": [], "text": text, "receipt": {}}


@contextmanager
def working(store: Store, storage: Storage) -> Iterator[PromptWorker]:
    """Works in a thread while the block runs."""
    worker = PromptWorker(store, storage)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker
    finally:
        worker.release()
        worker.stop()
        thread.join(10)
