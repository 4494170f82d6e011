"""`python -m scheduler`."""

from __future__ import annotations

import logging
import signal
import sys
import threading

from genmill.connections import connect
from genmill.errors import SettingsInvalid
from genmill.registry import load_registry
from genmill.settings import load_settings
from genmill.storage import open_storage
from genmill.store import Store
from scheduler.batch_round import BatchRound
from scheduler.loop import Scheduler


def main() -> int:
    """Run until SIGTERM or SIGINT. Returns the exit code: 2 for bad settings."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s", datefmt="%H:%M:%S")
    try:
        settings = load_settings()
        registry, storage = load_registry(settings.models), open_storage(settings)
    except SettingsInvalid as err:
        print(f"scheduler: {err.detail}", file=sys.stderr)
        return 2
    stop = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: stop.set())
    store = Store(connect(settings), settings)
    scheduler = Scheduler(store)
    batches = BatchRound(store, storage, registry, settings, leads=scheduler.leads)
    beside = threading.Thread(target=batches.run, args=(stop,), name="batches")
    beside.start()
    scheduler.run(stop)
    beside.join()
    return 0


if __name__ == "__main__":
    sys.exit(main())
