"""A job's events on the terminal: its text as it is written, or a progress bar with the picture as it looks by then;
for programs a JSON object a line."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click
from rich.console import Group
from rich.live import Live
from rich.progress import Progress, TaskID

from genmill.cli.pictures import decoded, half_blocks, has_colours
from genmill.cli.screen import Screen
from genmill.cli.watching import progress_bar
from genmill.client import JobHandle
from genmill.events import EventKind, JobEvent

DRAWINGS_A_SECOND = 2
"""Besides those of new previews: each writes the whole picture, some 40 kB."""
BAR_LINES = 2
"""Of the terminal's height, for the bar and the cursor."""


def show_events(job: JobHandle, timeout_s: float | None, screen: Screen) -> JobHandle:
    """Follow the job to its end. Raises TimeoutError with the first event after that time; the job then goes on."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    with _shown(job, screen) as show:
        for event in job.events():
            show.event(event)
            if deadline is not None and not event.is_last and time.monotonic() > deadline:
                raise TimeoutError(f"job {job.id} has not ended after {timeout_s:g} s")
    return job


class _Lines:
    """JSON, one object for each event."""

    def event(self, event: JobEvent) -> None:
        click.echo(json.dumps({"id": event.id, "kind": event.kind, **event.data}, ensure_ascii=False))


class _Text:
    """Text on stdout. What was printed stays: a text that is begun again goes on below."""

    def __init__(self, screen: Screen) -> None:
        self._screen, self._attempt, self._printed = screen, 0, 0

    def event(self, event: JobEvent) -> None:
        if event.kind is EventKind.TOKEN:
            self._print(event)
        elif event.is_last and self._printed:
            click.echo()

    def _print(self, event: JobEvent) -> None:
        if event.data["attempt"] != self._attempt and self._printed:
            click.echo()
            self._screen.say("the job began again", style="yellow")
        self._attempt, text = event.data["attempt"], str(event.data["text"])
        click.echo(text, nl=False)
        self._printed = event.data["offset"] + len(text)


class _Bar:
    """A progress bar on stderr."""

    def __init__(self, bar: Progress, line: TaskID, job: JobHandle) -> None:
        self._bar, self._line, self._job = bar, line, job

    def event(self, event: JobEvent) -> None:
        if event.kind is EventKind.STATE:
            self._bar.update(self._line, description=f"{self._job.id} {event.data['state']}", completed=0)
        elif event.kind is EventKind.PROGRESS:
            self._bar.update(self._line, completed=event.data["step"], total=event.data["steps"])


class _Picture(_Bar):
    """The bar below the latest preview, which leaves room for it and goes with it."""

    def __init__(self, live: Live, bar: Progress, job: JobHandle) -> None:
        super().__init__(bar, bar.add_task(job.id, total=None), job)
        self._live, self._progress = live, bar

    def event(self, event: JobEvent) -> None:
        super().event(event)
        if event.kind is not EventKind.PREVIEW:
            return
        image, size = decoded(base64.b64decode(event.data["data"])), self._live.console.size
        if image is not None:
            picture = half_blocks(image, size.width - 1, max(1, size.height - BAR_LINES))
            self._live.update(Group(picture, self._progress), refresh=True)


def has_preview(job: JobHandle) -> bool:
    """Whether previews of its pictures were asked for."""
    return "preview" in job.data.get("urls", {})


@contextmanager
def _with_pictures(job: JobHandle, screen: Screen) -> Iterator[_Picture]:
    bar = progress_bar(screen)
    with Live(bar, console=screen.err, transient=True, refresh_per_second=DRAWINGS_A_SECOND) as live:
        yield _Picture(live, bar, job)


@contextmanager
def _shown(job: JobHandle, screen: Screen) -> Iterator[_Lines | _Text | _Bar]:
    if screen.is_json:
        yield _Lines()
    elif job.data["input"].get("kind") == "text" or not screen.err.is_terminal:
        yield _Text(screen)
    elif has_preview(job) and has_colours(screen.err):
        with _with_pictures(job, screen) as picture:
            yield picture
    else:
        with progress_bar(screen) as bar:
            yield _Bar(bar, bar.add_task(job.id, total=None), job)
