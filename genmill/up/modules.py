"""Other rooms' modules as processes of their own: JSON in, JSON out. The core names them, and never imports them."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from genmill.errors import ChildFailed
from genmill.up.orphans import python_module


def run_module(
    name: str,
    arguments: Sequence[str],
    given: Mapping[str, Any],
    tell: Callable[[str], None],
    *,
    env: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """`python -m name arguments`: `given` on its stdin, its stdout as JSON; `tell` hears its stderr line by line.

    The process never outlives this call. Raises ChildFailed with its last words.
    """
    last = ""
    with tempfile.TemporaryFile("w+") as stdin, tempfile.TemporaryFile("w+") as stdout:
        json.dump(given, stdin)
        stdin.seek(0)
        with subprocess.Popen(  # noqa: S603 - a module of ours
            [*python_module(name), *arguments], stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, text=True, env=env,
        ) as process:  # fmt: skip
            try:
                for line in process.stderr or ():
                    last = line.rstrip()
                    tell(last)
                process.wait()
            finally:
                process.kill()
        if process.returncode != 0:
            raise ChildFailed(last or f"exit code {process.returncode}")
        stdout.seek(0)
        answer: dict[str, Any] = json.load(stdout)
    return answer
