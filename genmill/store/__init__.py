"""Where jobs live: one atomic method for each transition, each of a Lua file of its own."""

from genmill.store.memory import MemoryBook
from genmill.store.messages import (
    Claimed,
    KeyGuard,
    Outcome,
    Renewal,
    Room,
    Settlement,
    Standing,
    Stored,
    Waiting,
    Want,
)
from genmill.store.sources import Made, Source, SourceBook
from genmill.store.store import Store

__all__ = [
    "Claimed",
    "KeyGuard",
    "Made",
    "MemoryBook",
    "Outcome",
    "Renewal",
    "Room",
    "Settlement",
    "Source",
    "SourceBook",
    "Standing",
    "Store",
    "Stored",
    "Waiting",
    "Want",
]
