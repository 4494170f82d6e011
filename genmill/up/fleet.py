"""The processes of the Procfile under honcho's Manager, with an end that every one of them reaches."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

import honcho.manager
import honcho.process
from honcho.environ import expand_processes, parse_procfile
from honcho.printer import Message, Printer

from genmill.up.orphans import end_with_parent

KILL_MARGIN_S = 5.0
"""Time that a worker has after its own grace before it is killed."""

ASKED = frozenset({130, 143})
"""What honcho notes when SIGINT or SIGTERM asked it to stop."""

POLL_S = 0.1


def find_procfile() -> Path:
    """One list of processes for every way to start them; the Procfile at the repository's root is a link to it."""
    return Path(__file__).parent / "Procfile"


class _Process(honcho.process.Process):  # type: ignore[misc]  # honcho has no types
    """honcho's reader of one process's output. When the fleet is killed it dies, and the process is told to end."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._child_ctor = partial(honcho.process.Popen, preexec_fn=end_with_parent)

    def run(self, events: Any = None, ignore_signals: bool = False) -> None:
        end_with_parent(signal.SIGKILL)
        super().run(events, ignore_signals)


class Fleet(honcho.manager.Manager):  # type: ignore[misc]  # honcho has no types
    """Runs until a signal asks for the end or one process ends; then SIGTERM for all, SIGKILL after the grace.

    One process that ends by itself ends the run: on one machine a restart would only hide the fault, and the
    queue keeps every job. Start `genmill up` again; leases return what the dead process held.

    honcho's own `terminate` fails when a signal comes before each process has told its pid, and it kills after
    five seconds; so here a thread of ours does both, in its time.
    """

    def __init__(self, output: IO[str], grace_s: float, watch: Callable[[Fleet], None]) -> None:
        """`watch` runs in the thread about ten times a second until the end begins."""
        super().__init__(Printer(output))
        self._process_ctor = _Process
        self.is_asked = False
        self._grace_s = grace_s + KILL_MARGIN_S
        self._watch = watch
        self._ending = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._supervise, name="supervise", daemon=True)

    def add_procfile(self, procfile: Path, env: Mapping[str, str], workers: int) -> None:
        """Every process of the file once, `worker` as often as asked."""
        listed = parse_procfile(procfile.read_text(encoding="utf-8")).processes
        for process in expand_processes(listed, concurrency={"worker": workers}, env=dict(env)):
            self.add_process(process.name, process.cmd, env=process.env)

    def run(self) -> int:
        """Returns 0 for an end that was asked for, else the code of the process that ended first (never 0)."""
        honcho.manager.KILL_WAIT = self._grace_s
        try:
            self.loop()
        finally:
            self._over.set()
            self._sweep()
        if self.is_asked:
            return 0
        code = int(self.returncode or 1)
        return code if code > 0 else 128 - code

    def terminate(self) -> None:
        """Begin the end; safe at any time and from any thread."""
        if not self._ending.is_set() and self.returncode in ASKED:
            self.is_asked = True
        self._ending.set()

    def say(self, line: str) -> None:
        """Print a line among those of the processes."""
        self.events.put(Message("line", line + "\n", self._clock.now(), "genmill", None))

    def _start(self) -> None:
        super()._start()
        self._thread.start()  # after the forks: a fork does not copy threads, only their locks

    def _supervise(self) -> None:
        while not self._ending.wait(POLL_S):
            self._watch(self)
        while not self._all_started() and not self._over.wait(POLL_S):
            pass
        super().terminate()
        if not self._over.wait(self._grace_s):
            self.kill()

    def _sweep(self) -> None:
        """Kill what is left: nothing after a normal end, everything after a fault in the loop itself."""
        for process in self._processes.values():
            if "returncode" not in process and process.get("pid"):
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process["pid"], signal.SIGKILL)
