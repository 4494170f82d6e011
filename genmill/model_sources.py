"""Where the weights of a models.toml lie: in folders near it, or on a hub."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from genmill.faults import FieldFault

NO_FILES = "none"
"""The `source` of a model whose worker has an engine of its own, which reads no files."""


def place_sources(document: Mapping[str, Any], folder: Path, shipped: Path) -> Iterator[FieldFault]:
    """Sources that are there become absolute, whatever else is wrong with the file; yields those of models that nobody
    has. `folder` is the file's, `shipped` that of the shipped file, a copy of which is to serve
    the same models.
    """
    entries = document.get("models", [])
    for number, entry in enumerate(entries if isinstance(entries, list) else []):
        if not isinstance(entry, dict):
            continue
        extras = [entry.get(name) for name in ("adapters", "controlnets")]
        for table in (table for extra in extras if isinstance(extra, dict) for table in extra.values()):
            if isinstance(table, dict):
                _place(table, folder)
        if not _place(entry, folder, shipped) and _is_lost(entry.get("source")):
            yield _lost(number, entry, folder)


def _place(table: dict[str, Any], *folders: Path) -> bool:
    """Whether its source is in one of the folders; then it is absolute."""
    source = table.get("source")
    if source and isinstance(source, str):
        for place in (folder / source for folder in folders):
            if place.exists():
                table["source"] = str(place.resolve())
                return True
    return False


def _is_lost(source: object) -> bool:
    """Ids of a hub have an owner before a slash; a folder that only workers have is written with one."""
    return isinstance(source, str) and "/" not in source and source != NO_FILES


def _lost(number: int, entry: Mapping[str, Any], folder: Path) -> FieldFault:
    source = repr(entry["source"])[:80]
    limit = f"a folder in {folder} or beside the shipped models.toml, or a hub id with its owner, such as owner/name"
    detail = f"model {str(entry.get('name'))[:64]}: source must be {limit}, got {source}"
    return FieldFault(f"/models/{number}/source", detail, limit, source)
