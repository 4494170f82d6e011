"""Where jobs live: one atomic method for each transition, each of a Lua file of its own."""

from genmill.store.messages import Claimed, Outcome, Renewal, Settlement, Waiting, Want
from genmill.store.store import Store

__all__ = ["Claimed", "Outcome", "Renewal", "Settlement", "Store", "Waiting", "Want"]
