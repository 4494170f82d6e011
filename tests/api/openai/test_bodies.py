"""What is refused in OpenAI's bodies, by the name that it has there; the documented rules."""

from __future__ import annotations

import re
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from api.openai.bodies import CHAT_RULES, COMPLETION_RULES
from api.openai.images import RULES
from tests.api.conftest import Caller
from tests.api.pictures import picture

DOCS = (Path(__file__).parents[3] / "docs" / "compat.md").read_text()
CIRCLE = {"prompt": "a red circle"}
HELLO = [{"role": "user", "content": "a red"}]
IMAGES, CHAT, COMPLETIONS = "/v1/images/generations", "/v1/chat/completions", "/v1/completions"


def documented(heading: str, verdict: str) -> set[str]:
    """Names in the first cells of the rows that say `verdict` first, of the table with this heading."""
    table = DOCS.split(f"| field of {heading} |")[1].split("\n\n")[0]
    rows = [row.split("|")[1:3] for row in table.splitlines() if row.count("|") >= 3]
    return {name for cell, text in rows if text.strip().startswith(verdict) for name in re.findall(r"`(\w+)`", cell)}


def test_the_docs_tell_every_rule() -> None:
    assert documented("images", "ignored") == RULES.ignored
    assert documented("images", "refused") == set(RULES.inert)
    assert documented("texts", "ignored") == CHAT_RULES.ignored | COMPLETION_RULES.ignored
    assert documented("texts", "refused") == set(CHAT_RULES.inert) | set(COMPLETION_RULES.inert)


# path, body, pointer, words of the detail
BAD: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "no prompt": (IMAGES, {}, "/prompt", "must be given"),
    "size a word": (IMAGES, {**CIRCLE, "size": "large"}, "/size", "WxH in pixels or auto, got 'large'"),
    "size too large": (IMAGES, {**CIRCLE, "size": "4096x64"}, "/size", "size must be between 64 and 128, got 4096"),
    "too many": (IMAGES, {**CIRCLE, "n": 9}, "/n", "n must be between 1 and 4, got 9"),
    "none": (IMAGES, {**CIRCLE, "n": 0}, "/n", "must be at least 1, got 0"),
    "format": (IMAGES, {**CIRCLE, "response_format": "jpeg"}, "/response_format", "'url' or 'b64_json'"),
    "transparent": (IMAGES, {**CIRCLE, "background": "transparent"}, "/background", "'auto' or 'opaque'"),
    "steps": (IMAGES, {**CIRCLE, "steps": 0}, "/steps", "steps must be between 1 and 100"),
    "seed": (IMAGES, {**CIRCLE, "seed": -1}, "/seed", "got -1"),
    "priority": (IMAGES, {**CIRCLE, "priority": "p9"}, "/priority", "'p0'"),
    "text model": (IMAGES, {**CIRCLE, "model": "captions"}, "/model", "models for image: shapes"),
    "unknown model": (IMAGES, {**CIRCLE, "model": "gpt-image-1"}, "/model", "no model 'gpt-image-1'"),
    "depends on nothing": (IMAGES, {**CIRCLE, "depends_on": ["nope"]}, "/depends_on/0", "nope is not a job of yours"),
    "kind": (IMAGES, {**CIRCLE, "kind": "image"}, "/kind", "no parameter kind"),
    "nothing said": (CHAT, {"messages": []}, "/messages", "at least 1"),
    "role": (CHAT, {"messages": [{"role": "tool", "content": "x"}]}, "/messages/0/role", "'developer'"),
    "tool calls": (CHAT, {"messages": [{**HELLO[0], "tool_calls": [{}]}]}, "/messages/0", "got tool_calls"),
    "two lengths": (CHAT, {"messages": HELLO, "max_tokens": 1, "max_completion_tokens": 2}, "/", "either max_tokens"),
    "length": (CHAT, {"messages": HELLO, "max_tokens": 99}, "/max_tokens", "max_tokens must be between 1 and 64"),
    "stops": (CHAT, {"messages": HELLO, "stop": list("abcde")}, "/stop", "between 0 and 4, got 5"),
    "long": (CHAT, {"messages": [{"role": "user", "content": "x" * 3000}]}, "/messages", "3000 characters"),
    "tokens": (COMPLETIONS, {"prompt": [1, 2]}, "/prompt", "must be a text"),
    "prompts": (COMPLETIONS, {"prompt": ["a", "b"]}, "/prompt", "at most 1"),
    "suffix": (COMPLETIONS, {"prompt": "a", "suffix": "b"}, "/suffix", "suffix is not served here"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_bodies_name_the_field_of_the_dialect(case: str, alice: Caller, redis: Redis) -> None:
    path, body, pointer, words = BAD[case]
    answer = alice("POST", path, json=body)
    assert answer.status_code == 422
    assert answer.json["errors"][0]["pointer"].startswith(pointer)
    assert words in answer.json["error"]["message"]
    assert not redis.keys("rq:job:*")
    assert not redis.keys("gm:held:*")


def test_a_fault_of_width_and_height_is_one_of_the_size(alice: Caller) -> None:
    answer = alice("POST", IMAGES, json={**CIRCLE, "size": "65x65"})
    assert [fault["detail"] for fault in answer.json["errors"]] == ["size must be a multiple of 8, got 65"]
    two = alice("POST", IMAGES, json={**CIRCLE, "size": "65x73"}).json["errors"]
    assert [fault["value"] for fault in two] == ["65", "73"]


def test_every_fault_is_named_at_once(alice: Caller) -> None:
    answer = alice("POST", CHAT, json={"messages": HELLO, "tools": [1], "n": 2, "top_k": 1})
    assert [fault["pointer"] for fault in answer.json["errors"]] == ["/tools", "/n", "/top_k"]


@pytest.mark.parametrize(
    ("files", "form", "pointer"),
    [
        ({}, CIRCLE, "/image"),
        ({"image": b"no image"}, CIRCLE, "/image"),
        ({"image": picture(), "mask": picture()}, CIRCLE, "/mask"),
        ({"image": picture()}, {}, "/prompt"),
        ({"image": picture()}, {**CIRCLE, "size": "65x64"}, "/size"),
        ({"image": picture()}, {**CIRCLE, "strength": "0"}, "/strength"),
    ],
)
def test_bad_edits(files: dict[str, bytes], form: dict[str, str], pointer: str, alice: Caller, stored: Any) -> None:
    before = stored()
    parts = {**form, **{name: (BytesIO(body), f"{name}.png") for name, body in files.items()}}
    answer = alice("POST", "/v1/images/edits", data=parts, content_type="multipart/form-data")
    assert answer.status_code == 422
    assert answer.json["errors"][0]["pointer"] == pointer
    assert stored() == before
