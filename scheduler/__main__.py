"""`python -m scheduler`."""

from __future__ import annotations

import logging
import signal
import sys
import threading

from genmill.connections import connect
from genmill.errors import SettingsInvalid
from genmill.settings import load_settings
from genmill.store import Store
from scheduler.loop import Scheduler


def main() -> int:
    """Run until SIGTERM or SIGINT. Returns the exit code: 2 for bad settings."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s", datefmt="%H:%M:%S")
    try:
        settings = load_settings()
    except SettingsInvalid as err:
        print(f"scheduler: {err.detail}", file=sys.stderr)
        return 2
    stop = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: stop.set())
    Scheduler(Store(connect(settings), settings)).run(stop)
    return 0


if __name__ == "__main__":
    sys.exit(main())
