"""What one client is told: every change once, in order, over any number of connections."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genmill.errors import InvalidRequest
from genmill.events import Delta, EventKind, JobEvent, Narrator, Place, Preview, Snapshot, read_events
from genmill.jobs import JobState

QUEUED, RUNNING, SUCCEEDED = JobState.QUEUED, JobState.RUNNING, JobState.SUCCEEDED
WHOLE = "a red circle"


def text_view(text: str = WHOLE) -> dict[str, Any]:
    return {"text": {"text": text, "finish_reason": "stop"}, "outputs": [], "error": None}


def texts(events: list[JobEvent]) -> list[tuple[int, str]]:
    return [(event.data["offset"], event.data["text"]) for event in events if event.kind is EventKind.TOKEN]


def states(events: list[JobEvent]) -> list[tuple[str, int]]:
    return [(event.data["state"], event.data["attempt"]) for event in events if event.kind is EventKind.STATE]


def deltas(attempt: int, text: str, cuts: list[int]) -> list[Delta]:
    stops = sorted({0, *(cut % len(text) for cut in cuts), len(text)})
    return [Delta(attempt, start, text[start:stop]) for start, stop in pairwise(stops)]


def test_an_event_is_read_as_it_was_written() -> None:
    event = JobEvent(
        EventKind.TOKEN, {"attempt": 1, "offset": 0, "text": "two\nlines, a \u2028 and \r"}, "1.running.0.3.0.0"
    )
    lines = [
        ": still here",
        "",
        *event.encode().split("\n"),
        "event: of a later version",
        "data: {}",
        "",
        "event: state",
    ]
    assert list(read_events(lines)) == [event]


@pytest.mark.parametrize(
    "event_id", ["x", "1.running.0.0.0", "1.walking.0.0.0.0", "-1.running.0.0.0.0", "1" * 300, "\u0661.-.0.0.0.0"]
)
def test_an_id_that_is_none_of_ours_is_refused(event_id: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Place.read(event_id)
    (fault,) = caught.value.faults
    assert (fault.pointer, fault.value) == ("/Last-Event-ID", event_id[:80])


def test_states_progress_and_previews_are_told_when_they_change() -> None:
    narrator = Narrator(Place())
    preview = Preview(1, 4, b"webp")
    snapshots = [
        Snapshot(QUEUED, 0), Snapshot(QUEUED, 0), Snapshot(RUNNING, 1), Snapshot(RUNNING, 1, (4, 9)),
        Snapshot(RUNNING, 1, (4, 9), preview), Snapshot(RUNNING, 1, (3, 9), preview), Snapshot(RUNNING, 1, (8, 9)),
    ]  # fmt: skip
    events = [event for snapshot in snapshots for event in narrator.hear(snapshot)]
    assert [event.kind.value for event in events] == ["state", "state", "progress", "preview", "progress"]
    assert events[3].data == {"attempt": 1, "step": 4, "content_type": "image/webp", "data": "d2VicA=="}


def test_the_end_tells_what_is_left_and_closes() -> None:
    narrator = Narrator(Place())
    narrator.read(Delta(1, 0, "a red"))
    events = narrator.end(SUCCEEDED, 1, text_view())
    assert texts(events) == [(5, " circle")]
    assert [event.kind.value for event in events] == ["token", "output", "state"]
    assert [event.is_last for event in events] == [False, False, True]
    assert narrator.end(SUCCEEDED, 1, text_view()) == []
    assert Place.read(events[-1].id).is_end


def test_an_ended_job_is_told_whole_to_who_comes_late() -> None:
    view = {"outputs": [{"url": "u0"}, {"url": "u1"}], "error": None}
    events = Narrator(Place()).end(SUCCEEDED, 1, view)
    assert [event.data.get("url") for event in events] == ["u0", "u1", None]
    again = Narrator(Place.read(events[0].id)).end(SUCCEEDED, 1, view)
    assert again == events[1:]


def test_another_attempt_makes_the_text_before_it_void() -> None:
    narrator = Narrator(Place())
    events = [*narrator.hear(Snapshot(RUNNING, 1)), *narrator.read(Delta(1, 0, "a blue"))]
    events += narrator.hear(Snapshot(QUEUED, 1))
    events += narrator.read(Delta(1, 6, " late"))  # of a worker that has lost its lease
    events += narrator.read(Delta(2, 0, "a red"))  # before anybody saw that it runs
    events += narrator.hear(Snapshot(RUNNING, 2))
    events += narrator.read(Delta(1, 6, " later"))
    events += narrator.end(SUCCEEDED, 2, text_view())
    assert states(events) == [("running", 1), ("queued", 1), ("running", 2), ("succeeded", 2)]
    assert texts(events) == [(0, "a blue"), (0, "a red"), (5, " circle")]


def test_a_text_that_ends_otherwise_is_told_from_where_it_differs() -> None:
    narrator = Narrator(Place())
    narrator.read(Delta(1, 0, "a red ."))
    assert texts(narrator.end(SUCCEEDED, 1, text_view("a red."))) == [(5, ".")]


def test_a_gap_waits_for_the_end() -> None:
    narrator = Narrator(Place())
    assert texts(narrator.read(Delta(1, 2, "red"))) == []
    assert texts(narrator.end(SUCCEEDED, 1, text_view())) == [(0, WHOLE)]


def test_a_failure_tells_its_error() -> None:
    error = {"code": "generation_failed", "message": "no"}
    (event,) = Narrator(Place(1, RUNNING)).end(JobState.FAILED, 1, {"outputs": [], "error": error})
    assert (event.data["state"], event.data["error"]) == ("failed", error)


@given(
    cuts=st.lists(st.integers(0, 100), max_size=6),
    breaks=st.lists(st.integers(0, 12), max_size=4),
    lost=st.booleans(),
)
def test_nothing_is_lost_or_told_twice_however_often_the_connection_breaks(
    cuts: list[int], breaks: list[int], lost: bool
) -> None:
    """Each connection hears all deltas again from the first on, or, where they are gone, only the newest ones."""
    news = deltas(2, WHOLE, cuts)
    heard: list[JobEvent] = []
    for at in [*sorted(breaks), len(news)]:
        narrator = Narrator(Place.read(heard[-1].id if heard else ""))
        for snapshot in (Snapshot(QUEUED, 0), Snapshot(RUNNING, 2)):
            heard += narrator.hear(snapshot)
        for delta in news[at // 2 if lost else 0 : at]:
            heard += narrator.read(delta)
    heard += narrator.end(SUCCEEDED, 2, text_view())
    assert "".join(text for _, text in texts(heard)) == WHOLE
    assert states(heard) == [("queued", 0), ("running", 2), ("succeeded", 2)]
    assert len({event.id for event in heard}) == len(heard)
