"""What a client is told while its job runs: events, where a client stands among them, and what comes next.

Nothing here is a log. States, progress and previews are read as they are, the deltas of a text carry their offset, and
the id of each event says all that its receiver has heard: whoever comes back with it hears what is new since, once.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import takewhile
from typing import Any, NamedTuple, Self

from genmill.errors import FieldFault, InvalidRequest
from genmill.jobs import JobState

_STATES = "|".join(JobState)
PLACE = rf"([0-9]{{1,9}})\.(-|{_STATES})\.([0-9]{{1,9}})\.([0-9]{{1,9}})\.([0-9]{{1,9}})\.([0-9]{{1,4}})"
"""How the id of an event is written."""
_PLACE = re.compile(PLACE)
_FORM = "the id of an event of this job"


class EventKind(StrEnum):
    STATE = "state"
    PROGRESS = "progress"
    PREVIEW = "preview"
    TOKEN = "token"  # noqa: S105 - of a text
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class JobEvent:
    """`id` is the place of a client that has heard it."""

    kind: EventKind
    data: Mapping[str, Any]
    id: str

    def encode(self) -> str:
        """As server-sent events are written."""
        return f"id: {self.id}\nevent: {self.kind}\ndata: {json.dumps(self.data, separators=(',', ':'))}\n\n"

    @property
    def is_last(self) -> bool:
        """The job has ended, and nothing comes after it."""
        return self.kind is EventKind.STATE and JobState(self.data["state"]).is_terminal


def read_events(lines: Iterable[str]) -> Iterator[JobEvent]:
    """The inverse of `encode`, of lines without their ends; comments and kinds that are not known are passed over."""
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        if line and name:
            fields[name] = value.removeprefix(" ")
        elif not line:
            if fields.get("event") in set(EventKind):
                yield JobEvent(EventKind(fields["event"]), json.loads(fields["data"]), fields.get("id", ""))
            fields = {}


class Delta(NamedTuple):
    """Text of an attempt that goes on at `offset`, in characters."""

    attempt: int
    offset: int
    text: str


class Preview(NamedTuple):
    """How a picture looked after `step` steps, as WebP."""

    attempt: int
    step: int
    image: bytes


class Snapshot(NamedTuple):
    """How a job stands. `attempt` is its fence: how often it was begun."""

    state: JobState
    attempt: int
    progress: tuple[int, int] | None = None
    preview: Preview | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """What a client has heard: of the latest attempt the state, the last step, characters and preview; and outputs."""

    attempt: int = 0
    state: JobState | None = None
    step: int = 0
    chars: int = 0
    preview: int = 0
    outputs: int = 0

    def __str__(self) -> str:
        state = self.state.value if self.state else "-"
        return f"{self.attempt}.{state}.{self.step}.{self.chars}.{self.preview}.{self.outputs}"

    @classmethod
    def read(cls, event_id: str) -> Self:
        """The start where there is no id. Raises InvalidRequest."""
        if not event_id:
            return cls()
        found = _PLACE.fullmatch(event_id)
        states = {state.value: state for state in JobState} | {"-": None}
        if found is None:
            shown = event_id[:80]
            detail = f"Last-Event-ID must be {_FORM}, got {shown}"
            raise InvalidRequest(detail, faults=(FieldFault("/Last-Event-ID", detail, _FORM, shown),))
        attempt, _, *rest = found.groups()
        return cls(int(attempt), states[found[2]], *map(int, rest))

    @property
    def is_end(self) -> bool:
        """The client knows that the job has ended."""
        return self.state is not None and self.state.is_terminal


class Narrator:
    """Tells one client of one job. Whatever it hears twice, late or of an attempt that is over it does not tell."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._written = ""
        self._writer = place.attempt

    @property
    def place(self) -> Place:
        return self._place

    def hear(self, snapshot: Snapshot) -> list[JobEvent]:
        """How the job stands; of one that has ended `end` tells."""
        if snapshot.attempt < self._place.attempt or snapshot.state.is_terminal:
            return []
        events = []
        if (snapshot.attempt, snapshot.state) != (self._place.attempt, self._place.state):
            events.append(self._begin(snapshot.attempt, snapshot.state))
        if snapshot.progress and snapshot.progress[0] > self._place.step:
            step, steps = snapshot.progress
            events.append(self._tell(EventKind.PROGRESS, {"step": step, "steps": steps}, step=step))
        preview = snapshot.preview
        if preview and preview.attempt == self._place.attempt and preview.step > self._place.preview:
            data = {"step": preview.step, "content_type": "image/webp", "data": b64encode(preview.image).decode()}
            events.append(self._tell(EventKind.PREVIEW, data, preview=preview.step))
        return events

    def read(self, delta: Delta) -> list[JobEvent]:
        """More of a text. What leaves a gap waits for the end, where the whole text is known."""
        if delta.attempt < self._place.attempt:
            return []
        events = []
        if delta.attempt > self._place.attempt or self._place.state is None:
            events.append(self._begin(delta.attempt, JobState.RUNNING))
        if self._place.state is not JobState.RUNNING:  # given back, or ended
            return events
        self._note(delta)
        told = self._place.chars
        if delta.offset <= told < delta.offset + len(delta.text):
            events.append(self._tell_text(told, delta.text[told - delta.offset :]))
        return events

    def end(self, state: JobState, attempt: int, view: Mapping[str, Any]) -> list[JobEvent]:
        """The rest of the text, the outputs, and the state that ends it all; `view` is the job's."""
        if (attempt, state) == (self._place.attempt, self._place.state):
            return []
        if attempt != self._place.attempt:
            self._place = Place(attempt, self._place.state)
        return [
            *self._rest_of(view), *self._outputs_of(view),
            self._tell(EventKind.STATE, {"state": state.value, "error": view.get("error")}, state=state),
        ]  # fmt: skip

    def _begin(self, attempt: int, state: JobState) -> JobEvent:
        """What was told of the attempt before is void."""
        self._place = Place(attempt, state)
        return self._tell(EventKind.STATE, {"state": state.value})

    def _note(self, delta: Delta) -> None:
        """Keep what the attempt has written, also what this client has heard before it came back."""
        if delta.attempt != self._writer:
            self._written, self._writer = "", delta.attempt
        if delta.offset <= len(self._written):
            self._written += delta.text[len(self._written) - delta.offset :]

    def _rest_of(self, view: Mapping[str, Any]) -> list[JobEvent]:
        if "text" not in view:
            return []
        whole, told = str(view["text"]["text"]), self._place.chars
        heard = self._written[:told] if self._writer == self._place.attempt else ""
        # a tokenizer may write what is behind it anew: the client hears from where on
        start = _shared(heard, whole) if len(heard) == told else min(told, len(whole))
        return [self._tell_text(start, whole[start:])] if start < max(told, len(whole)) else []

    def _outputs_of(self, view: Mapping[str, Any]) -> list[JobEvent]:
        outputs: Sequence[Mapping[str, Any]] = view.get("outputs") or ()
        facts = [{"index": number, **output} for number, output in enumerate(outputs)]
        if "text" in view:
            facts.append({"index": len(facts), "text": view["text"]})
        told = self._place.outputs
        return [self._tell(EventKind.OUTPUT, fact, outputs=fact["index"] + 1) for fact in facts[told:]]

    def _tell_text(self, offset: int, text: str) -> JobEvent:
        return self._tell(EventKind.TOKEN, {"offset": offset, "text": text}, chars=offset + len(text))

    def _tell(self, kind: EventKind, data: dict[str, Any], **heard: Any) -> JobEvent:
        self._place = replace(self._place, **heard)
        return JobEvent(kind, {"attempt": self._place.attempt, **data}, str(self._place))


def _shared(one: str, other: str) -> int:
    """How many characters both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
