"""Where jobs live: one atomic method for each transition, each the only caller of one Lua file."""

from genmill.store.messages import Outcome, Renewal, Settlement, Waiting, Want
from genmill.store.store import Store

__all__ = ["Outcome", "Renewal", "Settlement", "Store", "Waiting", "Want"]
