"""The command `genmill`."""

from __future__ import annotations

import sys

INTERRUPTED = 130


def main() -> None:
    """Entry point. What the commands need is imported here, so that Ctrl-C during that is no traceback either."""
    try:
        from genmill.cli.app import main as run  # noqa: PLC0415 - as the docstring says
    except KeyboardInterrupt:
        sys.stderr.write("genmill: interrupted\n")
        sys.exit(INTERRUPTED)
    run()
