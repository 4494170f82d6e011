"""Outputs of other jobs in an input: `{"from": "job:<id>", "path": "text"}` where a text or an image stands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from genmill.errors import FieldFault, InvalidRequest
from genmill.registry import invalid_request, summary

JOB_ID = r"[A-Za-z0-9_-]{1,64}"

_TEXTS = re.compile(r"prompt|negative_prompt|messages/\d+/content")
_IMAGES = re.compile(r"init_image|mask_image|control/image")
PLACES = "prompt, negative_prompt, content of messages, init_image, mask_image, image of control"
"""Where a reference may stand."""
MOST_REFERENCES = 64
"""In one input."""


class Reference(BaseModel):
    """What another job made, instead of a text or an image: its `text`, or an image such as `outputs/0`."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_by_name=True, serialize_by_alias=True)

    source: str = Field(alias="from", pattern=rf"^job:{JOB_ID}$", description="`job:` and its id.")
    path: str = Field(pattern=r"^(text|outputs/[0-9]{1,2})$", description="`text`, or `outputs/` and a number from 0.")

    def __str__(self) -> str:
        return f"{self.source}/{self.path}"

    @property
    def job_id(self) -> str:
        return self.source.removeprefix("job:")

    @property
    def index(self) -> int | None:
        """Which output; None for a text."""
        return None if self.path == "text" else int(self.path.removeprefix("outputs/"))


def is_text(place: str) -> bool:
    """Whether a text stands there; else an image does."""
    return _TEXTS.fullmatch(place) is not None


def take_out(raw: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Reference]]:
    """The input with words in place of its references, and the references by their places, such as `prompt` or
    `messages/0/content`. Raises InvalidRequest naming each that is wrong or stands where none may."""
    given = {place: value for place, value in _spots(raw) if isinstance(value, Mapping) and "from" in value}
    if len(given) > MOST_REFERENCES:
        detail = f"the input has {len(given)} references, at most {MOST_REFERENCES} are taken"
        fault = FieldFault("/input", detail, f"{MOST_REFERENCES} references", f"{len(given)} references")
        raise InvalidRequest(detail, faults=(fault,))
    filled, found, faults = dict(raw), dict[str, Reference](), list[FieldFault]()
    for place, value in given.items():
        try:
            found[place] = _read_one(place, value)
        except InvalidRequest as err:
            faults += err.faults
        else:
            filled = put(filled, place, str(found[place]))
    if faults:
        raise InvalidRequest(summary(tuple(faults)), faults=tuple(faults))
    return filled, found


def _read_one(place: str, value: Mapping[str, Any]) -> Reference:
    if not is_text(place) and not _IMAGES.fullmatch(place):
        fault = FieldFault(f"/input/{place[:80]}", f"{place[:80]} takes no reference", PLACES, repr(dict(value))[:80])
        raise InvalidRequest(fault.detail, faults=(fault,))
    try:
        return Reference.model_validate(value)
    except ValidationError as err:
        raise invalid_request(err, f"/input/{place}") from None


def put(given: Any, place: str, value: object) -> Any:
    """The same input with another value at a place that it has."""
    name, _, rest = place.partition("/")
    if isinstance(given, Mapping):
        return {**given, name: put(given[name], rest, value) if rest else value}
    items = list(given)
    items[int(name)] = put(items[int(name)], rest, value) if rest else value
    return items


def stored(references: Mapping[str, Reference]) -> dict[str, dict[str, str]]:
    """As they stand in the stored request; `read` is the inverse."""
    return {place: reference.model_dump() for place, reference in references.items()}


def read(request: Mapping[str, Any]) -> dict[str, Reference]:
    """Those of a stored request, by their places. Raises ValueError for one that genmill did not write."""
    return {place: Reference.model_validate(one) for place, one in (request.get("references") or {}).items()}


def _spots(raw: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Values of the input where a reference might stand, with their places; names with a slash are no places."""
    yield from ((name, value) for name, value in raw.items() if "/" not in name)
    messages, control = raw.get("messages"), raw.get("control")
    if isinstance(messages, Sequence) and not isinstance(messages, str):
        for number, message in enumerate(messages):
            if isinstance(message, Mapping):
                yield f"messages/{number}/content", message.get("content")
    if isinstance(control, Mapping):
        yield "control/image", control.get("image")
