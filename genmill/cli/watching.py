"""Following a job on the terminal: a progress bar on stderr until it has ended."""

from __future__ import annotations

import time

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from genmill.cli.screen import Exit, Screen
from genmill.client import JobHandle
from genmill.jobs import JobState

LOOK_S = 0.4
"""How long one look at the job is held; it ends at once when the job does."""


def watch(job: JobHandle, timeout_s: float | None, screen: Screen) -> JobHandle:
    """Wait for the job's end, whichever it is. Raises TimeoutError; the job then goes on."""
    if screen.is_json or not screen.err.is_terminal:
        return job.wait(timeout_s)
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    with progress_bar(screen) as bar:
        line = bar.add_task("", total=None)
        while not job.is_done:
            _draw(bar, line, job)
            left_s = LOOK_S if deadline is None else deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"job {job.id} is still {job.state.value} after {timeout_s:g} s")
            _look(job, min(LOOK_S, left_s))
    return job


def exit_code(job: JobHandle) -> Exit:
    return Exit.OK if job.state is JobState.SUCCEEDED else Exit.NOT_DONE


def _look(job: JobHandle, seconds: float) -> None:
    try:
        job.wait(seconds)
    except TimeoutError:
        return


def progress_bar(screen: Screen) -> Progress:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=screen.err, transient=True)


def _draw(bar: Progress, line: TaskID, job: JobHandle) -> None:
    progress, position = job.data.get("progress"), job.data.get("position")
    ahead = f", {position} ahead" if job.state is JobState.QUEUED and position else ""
    if (job.data.get("waiting_for") or {}).get("reason") == "loading":
        ahead = ", the model is loading"
    done, total = (progress["step"], progress["steps"]) if progress else (0, None)
    bar.update(line, description=f"{job.id} {job.state.value}{ahead}", completed=done, total=total)
