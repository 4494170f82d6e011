"""`python -m tests.nursery FD`: imports the large libraries once, then forks a process for each that a test asks for.

What runs in it is the program itself, `rq worker` or `python -m scheduler`, with its own environment, output and
signals; only the imports of `LIBRARIES` are not done again. FD is the socket of `tests.warm`, which sends two
descriptors for each process: one that its keeper talks by, and one that it writes to.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
from typing import NamedTuple

LIBRARIES = (
    "boto3", "rq.cli", "worker.batch_worker", "scheduler.loop", "scheduler.batch_round", "worker.engines.images",
    "worker.engines.text",
)  # fmt: skip
"""None of them starts a thread or uses a device when it is imported. What they read of the environment then is that of
the nursery, see `tests.warm.AT_IMPORT`."""
OF_A_TERMINAL = (signal.SIGINT, signal.SIGHUP)
"""They reach everybody; nursery and keepers stay, so that tests still hear how their processes end."""


class Request(NamedTuple):
    """See `tests.warm.WarmProcess`. `log` is a descriptor."""

    args: list[str]
    env: dict[str, str]
    folder: str
    log: int


def main(control: socket.socket) -> None:
    """Returns in the nursery when the tests are over, and in each process when its program has ended."""
    for name in LIBRARIES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what all share stays shared
    heard = {signum: signal.signal(signum, signal.SIG_IGN) for signum in OF_A_TERMINAL}
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers end by themselves
    request = _next_born(control)
    if request is not None:
        for signum, handler in heard.items():
            signal.signal(signum, handler)
        _become(request)


def _next_born(control: socket.socket) -> Request | None:
    """What to become, in a process that was forked to; None in the nursery, when nobody can ask any more."""
    while True:
        asked, descriptors, _flags, _address = socket.recv_fds(control, 1, 2)
        if not asked:
            return None
        talk, log = descriptors
        if os.fork():
            os.close(talk)
            os.close(log)
            continue
        control.close()
        return _keep(socket.socket(fileno=talk), log)


def _keep(talk: socket.socket, log: int) -> Request:
    """Fork the process, tell its pid and its end, and exit. Returns in the process alone."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with talk.makefile("rb") as lines:
        request = Request(**json.loads(lines.readline()), log=log)
    if pid := os.fork():
        talk.sendall(b"%d\n" % pid)
        _, status = os.waitpid(pid, 0)
        talk.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
        os._exit(0)
    talk.close()
    return request


def _become(request: Request) -> None:
    os.environ.clear()
    os.environ.update(request.env)
    os.chdir(request.folder)
    for descriptor in (1, 2):
        os.dup2(request.log, descriptor)
    os.close(request.log)
    first, *rest = request.args
    if rest[0] == "-m":
        sys.argv = rest[1:]
        runpy.run_module(rest[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = request.args
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
