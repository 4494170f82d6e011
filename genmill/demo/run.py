"""The demo from its start to its report."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from genmill.cli.screen import Exit, Screen
from genmill.demo.drive import Clients, collect, draw_init_images, follow, submit_all, warm_up
from genmill.demo.fleet import running_fleet
from genmill.demo.measure import Round, figures_of, samples_of, shortfalls
from genmill.demo.plain import PlainRun, plain_process, run_plain
from genmill.demo.plan import DemoJob, plan_jobs
from genmill.demo.receiver import Receiver, receiving
from genmill.demo.report import machine, summary, write_report
from genmill.demo.sheet import draw_sheet
from genmill.up.modules import Module

SHEET, REPORT, LOG = "contact-sheet.png", "report.json", "up.log"


@dataclass(frozen=True, slots=True)
class _Bars:
    """What is going on, for the person who watches."""

    progress: Progress

    def start(self, text: str, total: float | None = None) -> TaskID:
        return self.progress.add_task(text, total=total)

    def tell(self, line: TaskID, done: float) -> None:
        self.progress.update(line, completed=done)

    def finish(self, line: TaskID) -> None:
        total = self.progress.tasks[line].total or 1
        self.progress.update(line, total=total, completed=total)


def run_demo(out: Path, screen: Screen) -> Exit:
    """Leaves a contact sheet, a report and the fleet's log in `out`, and no process. Raises DemoFailed."""
    started = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    jobs = plan_jobs()
    with _leaving_on_signals(), tempfile.TemporaryDirectory(prefix="genmill-demo-") as name, _bars(screen) as bars:
        work = Path(name)
        inits = draw_init_images(jobs, work)
        with (
            receiving() as receiver,
            plain_process() as module,
            _warm_fleet(jobs, inits, receiver, bars, out / LOG) as clients,
        ):
            # A machine's speed changes while it is measured: the plain calls lie between two rounds of the fleet.
            first = _run_round(1, clients, jobs, inits, receiver, bars)
            plain = _run_alone(module, jobs, inits, work, bars)
            rounds = [first, _run_round(2, clients, jobs, inits, receiver, bars)]
        wall_s = time.monotonic() - started
        figures = figures_of(rounds, plain, receiver.verified(), len(receiver.refused), wall_s)
        draw_sheet(first, figures, inits).save(out / SHEET)
    receipts = [outcome.view["receipt"] for outcome in first if outcome.job.is_image and outcome.has_succeeded]
    report = write_report(out / REPORT, figures, samples_of(rounds, plain), machine(receipts, plain.machine))
    short = shortfalls(figures)
    screen.show({**report, "shortfalls": short}, lambda: summary(figures))
    screen.say(f"wrote {out / SHEET} and {out / REPORT}")
    for reason in short:
        screen.say(f"genmill demo fell short: {reason}", "red")
    return Exit.NOT_DONE if short else Exit.OK


@contextmanager
def _warm_fleet(
    jobs: Sequence[DemoJob], inits: dict[int, Path], receiver: Receiver, bars: _Bars, log: Path
) -> Iterator[Clients]:
    """A fleet whose models are loaded, gone at the end."""
    line = bars.start("starting genmill up")
    with running_fleet(log) as fleet:
        bars.finish(line)
        clients = Clients(fleet, receiver)
        line = bars.start("loading the models")
        warm_up(clients, jobs, inits)
        bars.finish(line)
        yield clients


def _run_round(
    number: int, clients: Clients, jobs: Sequence[DemoJob], inits: dict[int, Path], receiver: Receiver, bars: _Bars
) -> Round:
    """Every job through HTTP."""
    line = bars.start(f"round {number}: {len(jobs)} jobs on the fleet", len(jobs))
    told_before = len(receiver.verified())
    handles = submit_all(clients, jobs, inits)
    views = follow(clients, handles, receiver, told_before, lambda done: bars.tell(line, done))
    return collect(jobs, handles, views)


def _run_alone(
    module: Module, jobs: Sequence[DemoJob], inits: dict[int, Path], work: Path, bars: _Bars
) -> PlainRun:  # fmt: skip
    """The images as plain calls, while the fleet has nothing to do."""
    images = [job for job in jobs if job.is_image]
    line = bars.start("the images one at a time", len(images))
    return run_plain(module, images, inits, work, lambda done: bars.tell(line, done))


@contextmanager
def _bars(screen: Screen) -> Iterator[_Bars]:
    columns = (TextColumn("{task.description:<32}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=screen.err, disable=screen.is_json, refresh_per_second=4) as progress:
        yield _Bars(progress)


@contextmanager
def _leaving_on_signals() -> Iterator[None]:
    """SIGTERM and a closed terminal unwind like Ctrl-C, so that the fleet is ended."""

    def leave(signum: int, _frame: object) -> NoReturn:
        raise SystemExit(128 + signum)

    before = {signum: signal.signal(signum, leave) for signum in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
