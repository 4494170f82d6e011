"""Other rooms' modules as processes of their own: JSON in, JSON out. The core names them, and never imports them."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from genmill.errors import ChildFailed
from genmill.up.orphans import python_module


class Module:
    """`python -m name arguments`, which has imported what it needs by the time it is asked; ended with the context."""

    def __init__(self, name: str, arguments: Sequence[str], *, env: Mapping[str, str] | None = None) -> None:
        self._stdout = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(  # noqa: S603 - a module of ours
            [*python_module(name), *arguments], stdin=subprocess.PIPE, stdout=self._stdout, stderr=subprocess.PIPE,
            text=True, env=env,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        with suppress(BrokenPipeError):  # what it has not read
            self._process.__exit__(kind, error, trace)
        self._stdout.close()

    def ask(self, given: Mapping[str, Any], tell: Callable[[str], None]) -> dict[str, Any]:
        """Once: `given` on its stdin, its stdout as JSON; `tell` hears its stderr line by line.

        Raises ChildFailed with its last words.
        """
        last = ""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError), self._process.stdin as stdin:  # it has ended: its last words tell why
                json.dump(given, stdin)
        for line in self._process.stderr or ():
            last = line.rstrip()
            tell(last)
        if self._process.wait() != 0:
            raise ChildFailed(last or f"exit code {self._process.returncode}")
        self._stdout.seek(0)
        answer: dict[str, Any] = json.load(self._stdout)
        return answer


def run_module(
    name: str, arguments: Sequence[str], given: Mapping[str, Any], tell: Callable[[str], None], *,
    env: Mapping[str, str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """A Module that is started, asked and ended. Raises ChildFailed."""
    with Module(name, arguments, env=env) as module:
        return module.ask(given, tell)
