"""Clearing away uploaded files whose time is over, or whose upload broke off."""

from __future__ import annotations

import logging

from genmill import uploads
from genmill.errors import StorageUnavailable
from genmill.storage import Storage
from genmill.store import Store

log = logging.getLogger("genmill.scheduler")

MOST_FILES = 100
"""In one go; the rest at the next."""


def clear_files(store: Store, storage: Storage) -> None:
    """Safe to repeat and to be made by two at once. Raises RedisError."""
    for tenant, file_id in uploads.due(store.redis, MOST_FILES):
        try:
            uploads.clear_away(store.redis, storage, tenant, file_id)
        except StorageUnavailable as err:
            log.warning("what is left of file %s is cleared in a later round: %s", file_id, err.detail)
            return
