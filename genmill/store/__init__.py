"""Where jobs live: one atomic method for each transition, each the only caller of one Lua file."""

from genmill.store.store import Outcome, Renewal, Settlement, Store, Want

__all__ = ["Outcome", "Renewal", "Settlement", "Store", "Want"]
