"""The text engine: transformers' continuous batching, with each request's own sampling and stop strings."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Self

import torch

from genmill.errors import InvalidJob
from genmill.inputs import TextInput
from genmill.registry import Batching, ModelSpec
from worker.engines.base import Curve, EngineJob, Event, Finished, Left, ModelMemory, Progress, TextOutput
from worker.engines.caps import RowCaps
from worker.engines.devices import (
    deterministic,
    is_out_of_memory,
    keep_freed_memory,
    name_of_device,
    pick_device,
    unavailable,
)
from worker.engines.kv_cache import context_of
from worker.engines.language import eos_tokens, load_language_model
from worker.engines.memory import meter_of
from worker.engines.meter import Meter, Share, Stopwatch
from worker.engines.paged import PagedBatch
from worker.engines.receipts import Place, failed, make_receipt
from worker.engines.sampling import Dice
from worker.engines.scribe import Scribe
from worker.engines.shelf import Weights
from worker.engines.wording import Wording, cut


@dataclass(slots=True)
class _Seat:
    """A job on board. `request_id` changes with each entry into the batch, so that a late cancellation of an
    earlier entry cannot meet a later one."""

    job: EngineJob
    input: TextInput
    prompt: list[int]
    max_tokens: int
    dice: Dice
    scribe: Scribe | None = None
    request_id: str = ""
    tokens: list[int] = field(default_factory=list)
    meter: Meter = field(default_factory=Meter)


class TextEngine:
    """A causal language model. A job's text depends on its input and seed, not on who else is on board."""

    batching = Batching.CONTINUOUS
    _model_bytes: int

    def __init__(self, spec: ModelSpec, *, device: str | None = None) -> None:
        """Raises ModelUnavailable when the weights cannot be loaded, or their cache has no room."""
        where = pick_device(device)
        meter = meter_of(where)
        held = meter.held_bytes()
        try:
            self._take(spec, *load_language_model(spec, where))
        except (OSError, ValueError, RuntimeError, ImportError) as error:
            raise unavailable(spec, error) from error
        self._model_bytes = max(self._model_bytes, meter.held_bytes() - held)

    @classmethod
    def from_model(cls, spec: ModelSpec, model: Any, tokenizer: Any) -> Self:
        """An engine of a model that is already built, on the device where it is."""
        engine = cls.__new__(cls)
        engine._take(spec, model, tokenizer)
        return engine

    def _take(self, spec: ModelSpec, model: Any, tokenizer: Any) -> None:
        keep_freed_memory(model.device)
        self._spec, self._model, self._tokenizer, self._place = spec, model, tokenizer, Place.of(model)
        self._wording = Wording(spec.name, tokenizer)
        self._context = context_of(model.config.max_position_embeddings)
        self._eos = eos_tokens(model, tokenizer)
        self._weights = Weights([model], model.device)
        self._batch = self._open_batch()
        self._model_bytes = self._weights.bytes + self._batch.bytes
        self._caps = RowCaps(spec.max_batch)
        self._seats: dict[str, _Seat] = {}
        self._entered: dict[str, _Seat] = {}  # by request id: those in the batch
        self._waiting: deque[_Seat] = deque()
        self._suspects: deque[_Seat] = deque()
        self._numbers = count()
        self._refused: list[Event] = []

    def _open_batch(self) -> PagedBatch:
        return PagedBatch(self._model, max_requests=self._spec.max_batch, context=self._context)

    def free_slots(self) -> int:
        return max(0, self._caps.of(None) - len(self._seats))

    def urgent_slots(self) -> int:
        """None: texts are short, and a step serves everybody who is on board."""
        return 0

    def admit(self, jobs: Sequence[EngineJob]) -> None:
        for job in jobs:
            try:
                seat = self._seat(job)
            except Exception as error:  # noqa: BLE001  # an engine never fails a batch for one job
                self._refused.append(failed(job.job_id, error))
            else:
                self._seats[job.job_id] = seat
                self._waiting.append(seat)

    def step(self) -> list[Event]:
        events, self._refused = self._refused, []
        if self._suspects:
            return events + self._try_suspect()
        while self._waiting and self._may_enter(self._waiting[0]):
            self._enter(self._waiting.popleft())
        if self._entered:
            error = self._forward(events)
            if error is not None:
                self._recover(error)
        return events

    def evict(self, job_id: str) -> Left | None:
        seat = self._seats.get(job_id)
        if seat is None:
            return None
        self._leave(seat)
        return Left(len(seat.tokens), seat.meter.gpu_ms)

    def is_idle(self) -> bool:
        return not self._seats and not self._refused

    def curves(self) -> dict[str, Curve]:
        """None yet: a step's time depends on what is cached as much as on its rows."""
        return {}

    def memory(self) -> ModelMemory:
        """Of the weights and the cache. What a step takes depends on its tokens, which have a bound of their own."""
        return ModelMemory(name_of_device(self._weights.device), self._model_bytes)

    def recall(self, memory: ModelMemory) -> None:
        """It has nothing to learn from another."""

    def parked_bytes(self) -> int:
        return self._weights.parked_bytes()

    def park(self) -> None:
        """The cache is dropped: nobody is on board."""
        self._batch.drop()
        self._weights.park()

    def unpark(self) -> None:
        self._weights.unpark()
        self._batch = self._open_batch()

    def close(self) -> None:
        self._seats.clear()
        self._entered.clear()
        self._batch.drop()
        del self._model
        self._weights.drop()

    def _seat(self, job: EngineJob) -> _Seat:
        if not isinstance(job.input, TextInput):
            raise InvalidJob(f"model {self._spec.name} writes text, the job asks for images")
        prompt = self._wording.prompt(job.input)
        room = self._context - len(prompt)
        if room < 1:
            detail = f"the prompt has {len(prompt)} tokens, the model reads {self._context} with its answer"
            raise InvalidJob(detail)
        dice = Dice(job.input, len(prompt))
        scribe = Scribe(self._tokenizer, prompt, job.input.stop) if job.is_streamed else None
        return _Seat(job, job.input, prompt, min(job.input.max_tokens, room), dice, scribe)

    def _may_enter(self, seat: _Seat) -> bool:
        """A reproducible text is written alone, from the first token to the last."""
        others = self._entered.values()
        if seat.job.is_reproducible or any(other.job.is_reproducible for other in others):
            return not others
        return len(others) < self._caps.of(None)

    def _enter(self, seat: _Seat) -> None:
        """Join the batch, with what the job has written so far as part of the prompt."""
        seat.request_id = f"{seat.job.job_id}#{next(self._numbers)}"
        self._batch.sampler.dice[seat.request_id] = seat.dice
        self._entered[seat.request_id] = seat
        left = seat.max_tokens - len(seat.tokens)
        self._batch.add(seat.request_id, seat.prompt + seat.tokens, left, self._eos)

    def _leave(self, seat: _Seat) -> None:
        """Off board, wherever it stands."""
        del self._seats[seat.job.job_id]
        if self._entered.pop(seat.request_id, None) is not None:
            self._batch.cancel(seat.request_id)
        self._batch.sampler.dice.pop(seat.request_id, None)
        for line in (self._waiting, self._suspects):
            if seat in line:
                line.remove(seat)

    def _forward(self, events: list[Event]) -> Exception | None:
        """One step of the batch. What it brought goes to `events`; the model's error, if any, is returned."""
        watch = Stopwatch(self._model.device)
        is_alone = any(seat.job.is_reproducible for seat in self._entered.values())
        try:
            with deterministic() if is_alone else nullcontext():
                outputs = self._batch.step()
        except torch.AcceleratorError:
            raise  # the context is gone: the process must end, and leases give the jobs back
        except Exception as error:  # noqa: BLE001  # whatever a model raises: the caller finds the culprit
            return error.with_traceback(None)
        watch.stop()
        rows = self._batch.sampler.rows
        self._caps.ran_clean(None, len(rows))
        for output in outputs:
            seat = self._entered.get(output.request_id)
            if seat is not None:
                seat.meter.shares.append(Share(watch, 1 / max(1, len(rows)), len(rows), is_step=True, forward=watch))
                seat.tokens.append(output.generated_tokens[-1])
                events.append(self._news(seat))
        return None

    def _news(self, seat: _Seat) -> Event:
        """Finished at a stop string, at the model's end of text, or at the length; else progress."""
        is_end = seat.tokens[-1] in self._eos
        is_over = is_end or len(seat.tokens) >= seat.max_tokens
        # decoding all of a long text at each token would cost more than its forward
        text, is_stopped = self._text(seat) if is_over or seat.input.stop else ("", False)
        if not (is_over or is_stopped):
            delta = seat.scribe.read(seat.tokens) if seat.scribe else None
            return Progress(seat.job.job_id, len(seat.tokens), seat.max_tokens, delta)
        self._leave(seat)
        reason = "stop" if is_stopped or is_end else "length"
        output = TextOutput(text, reason, len(seat.prompt), len(seat.tokens), self._told_chances(seat))
        receipt = make_receipt(self._spec, self._place, seat.input.seed, seat.meter)
        return Finished(seat.job.job_id, receipt, text=output)

    def _text(self, seat: _Seat) -> tuple[str, bool]:
        """What it has written up to a stop string, and whether there was one."""
        return cut(self._wording.text(seat.prompt, seat.tokens), seat.input.stop)

    def _told_chances(self, seat: _Seat) -> tuple[Mapping[str, Any], ...] | None:
        if not seat.input.logprobs:
            return None
        return tuple(self._wording.told(seat.dice.chances[index]) for index in range(len(seat.tokens)))

    def _recover(self, error: Exception) -> None:
        """After a failed step nothing in the cache can be trusted: all requests enter anew. Out of memory lowers
        the cap; any other error makes all of them suspects, to be tried one by one."""
        seats = list(self._entered.values())
        self._empty_batch()
        if len(seats) > 1 and is_out_of_memory(error):
            self._caps.ran_out(None, len(seats))
            self._waiting.extendleft(reversed(seats))
        else:
            self._suspects.extend(seats)

    def _try_suspect(self) -> list[Event]:
        """One step of one suspect alone. It fails if that raises; otherwise it waits to join the others again."""
        events: list[Event] = []
        seat = self._suspects.popleft()
        self._enter(seat)
        error = self._forward(events)
        self._empty_batch()
        if error is not None:
            self._leave(seat)
            events.append(failed(seat.job.job_id, error, seat.meter.gpu_ms))
        elif seat.job.job_id in self._seats:
            self._waiting.append(seat)
        return events

    def _empty_batch(self) -> None:
        self._batch.reset()
        self._entered.clear()
        self._batch.sampler.dice.clear()
