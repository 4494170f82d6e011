"""Clearing the storage: of uploaded files whose time is over, or that broke off, and of objects of jobs that are known
no more."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from genmill import keeping, uploads
from genmill.errors import StorageUnavailable
from genmill.storage import Storage
from genmill.store import Store

log = logging.getLogger("genmill.scheduler")

MOST_FILES = 100
"""In one go; the rest at the next."""
MOST_JOBS, LONGEST_S = 200, 2.0
"""Looked for at once; and for how long in one go, since batches wait meanwhile."""


def clear_files(store: Store, storage: Storage) -> None:
    """Safe to repeat and to be made by two at once. Raises RedisError."""
    for tenant, file_id in uploads.due(store.redis, MOST_FILES):
        try:
            uploads.clear_away(store.redis, storage, tenant, file_id)
        except StorageUnavailable as err:
            log.warning("what is left of file %s is cleared in a later round: %s", file_id, err.detail)
            return


def clear_objects(store: Store, storage: Storage, clock: Callable[[], float] = time.monotonic) -> None:
    """Of jobs that are known no more. Safe to repeat and to be made by two at once. Raises RedisError."""
    until = clock() + LONGEST_S
    while job_ids := keeping.due(store.redis, MOST_JOBS):
        for job_id in job_ids:
            try:
                keeping.clear_away(store.redis, storage, job_id)
            except StorageUnavailable as err:
                log.warning("what is left of job %s is cleared in a later round: %s", job_id, err.detail)
                return
            if clock() >= until:
                return
