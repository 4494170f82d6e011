"""No orphans: a child asks the kernel for a signal at its parent's death, so that even `kill -9` leaves nothing."""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def end_with_parent(signum: signal.Signals = signal.SIGTERM) -> None:
    """To be called in the child, as a `preexec_fn` or after a fork. Does nothing where the kernel has no such call."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(signum))


def python_module(name: str) -> list[str]:
    """The command `python -m name` as a child that ends with its parent. Unlike a `preexec_fn` it is safe where the
    parent has threads."""
    code = (
        "import runpy; from genmill.up.orphans import end_with_parent; end_with_parent(); "
        f"runpy.run_module({name!r}, run_name='__main__', alter_sys=True)"
    )
    return [sys.executable, "-c", code]
