"""Where outputs and inputs lie: one port, two adapters that pass the same contract tests."""

from __future__ import annotations

from genmill.errors import SettingsInvalid
from genmill.settings import Settings
from genmill.storage.folder import FolderStorage
from genmill.storage.port import Storage, StoredObject
from genmill.storage.s3 import S3Storage

__all__ = ["FolderStorage", "S3Storage", "Storage", "StoredObject", "open_storage"]


def open_storage(settings: Settings) -> Storage:
    """The storage that `storage_url` names: `file://folder` or `s3://bucket/prefix`. Raises SettingsInvalid."""
    scheme, _, rest = settings.storage_url.partition("://")
    if scheme == "file" and rest:
        return FolderStorage.from_url_path(rest)
    if scheme == "s3" and rest:
        bucket, _, prefix = rest.partition("/")
        return S3Storage(bucket, prefix, endpoint_url=settings.storage_endpoint_url)
    raise SettingsInvalid(
        f"GENMILL_STORAGE_URL must be file://folder or s3://bucket/prefix, got {settings.storage_url!r}"
    )
