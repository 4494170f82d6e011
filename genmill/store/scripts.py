"""The Lua files, each with the key table and the shared functions in front of it."""

from __future__ import annotations

from importlib import resources

from redis import Redis
from redis.commands.core import Script

from genmill import keys

NAMES = (
    "submit",
    "claim",
    "settle",
    "cancel",
    "renew",
    "reap",
    "refile",
    "progress",
    "withdraw",
    "lead",
    "publish",
    "examine",
    "tidy",
)


LIBRARY = ("base", "lanes", "leases", "ends", "limits", "quota", "adopt", "fair", "pace")
"""What all scripts share, in the order of definition; each is a file of `lua/lib`."""


def register(redis: Redis) -> dict[str, Script]:
    """Scripts by name. redis-py sends EVALSHA and loads the text when the server does not know it."""
    folder = resources.files("genmill") / "lua"
    head = keys.lua_prelude() + "".join(
        (folder / "lib" / f"{name}.lua").read_text(encoding="utf-8") for name in LIBRARY
    )
    return {name: redis.register_script(head + (folder / f"{name}.lua").read_text(encoding="utf-8")) for name in NAMES}
