"""The Lua files, each with the key table and the shared functions in front of it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources

from redis import Redis
from redis.commands.core import Script

from genmill import keys

_ENDS = ("base", "lanes", "leases", "dependents", "lines", "usage", "outbox", "ends", "chain_ends")

LIBRARY = (
    *_ENDS, "chains", "foreign", "again", "limits", "paces", "quota", "settling", "adopt", "fair", "choice", "take",
    "claiming",
)  # fmt: skip
"""What the scripts share, in the order of definition; each is a file of `lua/lib`."""

_OTHERS = (
    "cancel", "renew", "reap", "refile", "progress", "attempt", "withdraw", "lead", "publish", "examine", "tidy",
    "revisit",
)  # fmt: skip

PARTS: Mapping[str, tuple[str, ...]] = {
    "submit": (*_ENDS, "chains", "limits", "paces", "quota"),
    "settle": (*_ENDS, "foreign", "again", "paces", "settling"),
    "turn": tuple(part for part in LIBRARY if part not in ("quota", "chains")),
    **dict.fromkeys(_OTHERS, (*_ENDS, "chains", "foreign")),
    "redeliver": ("base", "lanes", "usage", "outbox", "limits", "quota"),
    "conclude": ("base", "lanes", "outbox"),
    **dict.fromkeys(("enroll", "feed", "collect", "call_off"), ("base",)),
    **dict.fromkeys(("standing", "forget"), ()),
}
"""The scripts, each with what it uses: Redis runs these definitions anew at each call, a tenth of a microsecond each
line, and Lua takes no more than 200 of them in one script."""


def register(redis: Redis) -> dict[str, Script]:
    """Scripts by name. redis-py sends EVALSHA and loads the text when the server does not know it."""
    folder = resources.files("genmill") / "lua"
    shared = {name: (folder / "lib" / f"{name}.lua").read_text(encoding="utf-8") for name in LIBRARY}
    scripts = {}
    for name, parts in PARTS.items():
        text = "".join(shared[part] for part in parts) + (folder / f"{name}.lua").read_text(encoding="utf-8")
        scripts[name] = redis.register_script(keys.lua_prelude(text) + text)
    return scripts
