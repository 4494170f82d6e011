"""How the scripts are put together."""

from __future__ import annotations

import re
from importlib import resources

import pytest
from redis import Redis

from genmill.store.scripts import LIBRARY, PARTS, register

FOLDER = resources.files("genmill") / "lua"


def text_of(name: str) -> str:
    return re.sub(r"--.*|'[^']*'", "", (FOLDER / f"{name}.lua").read_text(encoding="utf-8"))


def defined_in(text: str) -> set[str]:
    """Names of the chunk itself: its local functions and variables."""
    functions = set(re.findall(r"^local function (\w+)", text, re.MULTILINE))
    variables = {
        name.strip()
        for names in re.findall(r"^local ([\w, ]+?) *(?:=|$)", text, re.MULTILINE)
        for name in names.split(",")
    }
    return functions | {name for name in variables if not name.startswith("function ")}


@pytest.mark.parametrize("script", PARTS)
def test_a_script_has_all_that_it_names(script: str) -> None:
    """Lua finds a missing name only on the line that runs, which may be a rare one."""
    parts = [text_of(f"lib/{name}") for name in PARTS[script]] + [text_of(script)]
    absent = set().union(*(defined_in(text_of(f"lib/{name}")) for name in LIBRARY if name not in PARTS[script]))
    present = set().union(*(defined_in(part) for part in parts))
    for part in parts:
        used = set(re.findall(r"(?<![.\w])(\w+)", part))
        missing = used & (absent - present)
        assert not missing


def test_the_server_takes_every_script(redis: Redis) -> None:
    """Lua has room for 200 definitions in one."""
    for script in register(redis).values():
        assert redis.script_load(script.script)


def test_every_script_has_its_parts_and_every_part_is_used() -> None:
    files = {path.name.removesuffix(".lua") for path in FOLDER.iterdir() if path.name.endswith(".lua")}
    assert files == set(PARTS)
    shared = {path.name.removesuffix(".lua") for path in (FOLDER / "lib").iterdir()}
    assert shared == set(LIBRARY) == set().union(*PARTS.values())
    for parts in PARTS.values():
        assert list(parts) == [name for name in LIBRARY if name in parts]
