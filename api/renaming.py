"""Faults of the native body, told by the names of the dialect's fields."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from genmill.errors import FieldFault, InvalidRequest
from genmill.registry import summary


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Raises every InvalidRequest of the block with its pointers changed by `names`: native pointer, or the start of
    one, to the dialect's. The longest that fits holds; the name that a detail begins with changes too. Faults that are
    the same by then, as of a width and a height that are both the `size`, are told once."""
    try:
        yield
    except InvalidRequest as err:
        faults = tuple(dict.fromkeys(_renamed(fault, names) for fault in err.faults))
        raise type(err)(summary(faults) if faults else err.detail, faults=faults) from None


def _renamed(fault: FieldFault, names: Mapping[str, str]) -> FieldFault:
    fits = [start for start in names if fault.pointer == start or fault.pointer.startswith(f"{start}/")]
    if not fits:
        return fault
    start = max(fits, key=len)
    pointer = names[start] + fault.pointer[len(start) :]
    detail = _reworded(fault.detail, start.rpartition("/")[2], names[start].rpartition("/")[2])
    return replace(fault, pointer=pointer or "/", detail=detail)


def _reworded(detail: str, old: str, new: str) -> str:
    """Details begin with the name of their field, where they name it."""
    return re.sub(rf"^{re.escape(old)}\b", new, detail) if old and new else detail
