"""Files that are whole or not there, and survive a power cut."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

UNFINISHED = ".tmp-"
"""How names of files begin that are not whole yet."""


def write_durably(path: Path, body: bytes) -> None:
    """Readers see the old file or the new one; after the return the new one survives a power cut."""
    write_whole(path, body)
    sync_folder(path.parent)


def write_whole(path: Path, body: bytes) -> None:
    """The same, but for the name, which survives once the folder is synced."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=UNFINISHED)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:  # an interrupted write leaves nothing behind either
        Path(name).unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Names of new files survive a power cut after this."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def clear_unfinished(folder: Path) -> None:
    """Removes what a kill left of writes. Nobody may be writing there meanwhile."""
    for path in folder.glob(f"{UNFINISHED}*"):
        path.unlink(missing_ok=True)
