"""What pydantic finds is told in this API's words, with the bare limit."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from genmill.registry import field_faults


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(default="a", min_length=1, max_length=3, pattern="^[a-z]*$")
    at_least: int = Field(default=1, ge=1)
    above: float = Field(default=1, gt=0, allow_inf_nan=False)
    at_most: int = Field(default=1, le=9)
    below: float = Field(default=1, lt=2)
    even: int = Field(default=2, multiple_of=2)
    flag: bool = True
    colour: Colour = Colour.RED
    inner: Inner = Inner()
    few: tuple[int, ...] = Field(default=(), max_length=2)
    own: int = 1

    @field_validator("own")
    @classmethod
    def _odd(cls, own: int) -> int:
        if own % 2 == 0:
            raise ValueError("must be odd")
        return own


@pytest.mark.parametrize(
    ("raw", "pointer", "detail", "limit"),
    [
        ({"at_least": 0}, "/at_least", "at_least: must be at least 1, got 0", "1"),
        ({"above": 0}, "/above", "above: must be above 0, got 0", "0"),
        ({"above": float("nan")}, "/above", "above: must be a finite number, got nan", None),
        ({"at_most": 10}, "/at_most", "at_most: must be at most 9, got 10", "9"),
        ({"below": 2}, "/below", "below: must be below 2, got 2", "2"),
        ({"even": 3}, "/even", "even: must be a multiple of 2, got 3", "multiple of 2"),
        ({"even": "x"}, "/even", "even: must be a whole number, got 'x'", None),
        ({"even": 2.5}, "/even", "even: must be a whole number, got 2.5", None),
        ({"below": "x"}, "/below", "below: must be a number, got 'x'", None),
        ({"name": 1}, "/name", "name: must be a text, got 1", None),
        ({"name": ""}, "/name", "name: must have at least 1 character, got ''", "1 character"),
        ({"name": "abcd"}, "/name", "name: must have at most 3 characters, got 'abcd'", "3 characters"),
        ({"name": "A"}, "/name", "name: must match ^[a-z]*$, got 'A'", "^[a-z]*$"),
        ({"flag": 7}, "/flag", "flag: must be true or false, got 7", None),
        ({"colour": "x"}, "/colour", "colour: must be 'red' or 'blue', got 'x'", "'red' or 'blue'"),
        ({"inner": 1}, "/inner", "inner: must be an object, got 1", None),
        ({"few": 1}, "/few", "few: must be a list, got 1", None),
        ({"few": [1, 2, 3]}, "/few", "few: must have at most 2 items, got [1, 2, 3]", "2 items"),
        ({"own": 2}, "/own", "own: must be odd, got 2", None),
        ({"other": 2}, "/other", "other: there is no such field; there are name, own", "name, own"),
        ({"inner": {"other": 2}}, "/inner/other", "other: there is no such field", None),
    ],
)
def test_each_finding_is_told_in_words(raw: dict[str, Any], pointer: str, detail: str, limit: str | None) -> None:
    with pytest.raises(ValidationError) as caught:
        Body.model_validate(raw)
    (fault,) = field_faults(caught.value, "", ("name", "own"))
    assert (fault.pointer, fault.detail, fault.limit) == (pointer, detail, limit)


def test_what_is_missing_must_be_given() -> None:
    class Needs(BaseModel):
        prompt: str

    with pytest.raises(ValidationError) as caught:
        Needs.model_validate({})
    (fault,) = field_faults(caught.value, "/input")
    assert (fault.pointer, fault.detail, fault.value) == ("/input/prompt", "prompt: must be given", None)
