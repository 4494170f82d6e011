"""Processes that begin with the large libraries imported: forked from one that has them, see `tests.nursery`.

The first six seconds of a worker's life are the same in every test; here they are lived once.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO

AT_IMPORT = ("OMP_", "GOMP_", "MKL_", "KMP_", "OPENBLAS_", "TORCH_", "PYTORCH_", "HF_", "CUDA_", "PYTHON")
"""How variables begin that the libraries, or the interpreter, read once."""
OWN = {"OMP_WAIT_POLICY": "PASSIVE"}
IS_POSSIBLE = sys.platform == "linux"
"""Elsewhere libraries that were imported before a fork need not work after it."""


class WarmProcess:
    """A Python program that was forked from the nursery, as subprocess.Popen shows one. It starts in this directory.

    `args` begin with the path of a script, or with the interpreter, `-m` and a module.
    """

    def __init__(self, args: Sequence[str], env: Mapping[str, str], log: IO[bytes]) -> None:
        strange = {
            name for name in {*env, *os.environ}
            if name.startswith(AT_IMPORT) and name not in OWN and env.get(name) != os.environ.get(name)
        }  # fmt: skip
        assert not strange, f"the nursery has imported what reads {', '.join(sorted(strange))}: start this one cold"
        self.args = args
        self.returncode: int | None = None
        request = {"args": list(args), "env": dict(env), "folder": str(Path(__file__).parent.parent)}
        self._keeper, theirs = socket.socketpair()
        self._heard = b""
        with theirs:
            _nursery().ask(theirs.fileno(), log.fileno())
        self._keeper.sendall(json.dumps(request).encode() + b"\n")
        self.pid = self._listen(None)

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self.returncode = self._listen(timeout)
            self._keeper.close()
        return self.returncode

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, signum)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _listen(self, timeout: float | None) -> int:
        """What the keeper tells next: first the pid, then the exit code."""
        while b"\n" not in self._heard:
            if not select.select([self._keeper], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(list(self.args), timeout or 0.0)
            part = self._keeper.recv(64)
            assert part, f"{self.args} was not started: {_nursery().complaint()}"
            self._heard += part
        line, _, self._heard = self._heard.partition(b"\n")
        return int(line)


class _Nursery:
    """The process that has imported the libraries; it ends when nobody can ask it any more."""

    def __init__(self) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the tests run
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.nursery", str(theirs.fileno())], pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, cwd=Path(__file__).parent.parent,
                env={name: value for name, value in os.environ.items() if not name.startswith(("GENMILL_", "RQ_"))}
                | OWN,
            )  # fmt: skip
        atexit.register(self.close)

    def ask(self, keeper: int, log: int) -> None:
        """For a process whose keeper talks by the first descriptor and that writes to the second."""
        socket.send_fds(self._control, [b"?"], [keeper, log])

    def complaint(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def close(self) -> None:
        self._control.close()
        self._process.wait(30)
        self._log.close()


@cache
def _nursery() -> _Nursery:
    return _Nursery()
