"""Pydantic's findings in the words of this API."""

from __future__ import annotations

import re
from collections.abc import Collection

from pydantic_core import ErrorDetails

_WORDS = {
    "missing": ("must be given", None),
    "greater_than_equal": ("must be at least {ge}", "{ge}"),
    "greater_than": ("must be above {gt}", "{gt}"),
    "less_than_equal": ("must be at most {le}", "{le}"),
    "less_than": ("must be below {lt}", "{lt}"),
    "multiple_of": ("must be a multiple of {multiple_of}", "multiple of {multiple_of}"),
    "string_too_short": ("must have at least {min_length} characters", "{min_length} characters"),
    "string_too_long": ("must have at most {max_length} characters", "{max_length} characters"),
    "too_short": ("must have at least {min_length} items", "{min_length} items"),
    "too_long": ("must have at most {max_length} items", "{max_length} items"),
    "string_pattern_mismatch": ("must match {pattern}", "{pattern}"),
    "literal_error": ("must be {expected}", "{expected}"),
    "enum": ("must be {expected}", "{expected}"),
    "value_error": ("{error}", None),
    **dict.fromkeys(("string_type", "string_unicode"), ("must be a text", None)),
    **dict.fromkeys(
        ("int_type", "int_parsing", "int_from_float", "int_parsing_size"), ("must be a whole number", None)
    ),
    **dict.fromkeys(("float_type", "float_parsing"), ("must be a number", None)),
    "finite_number": ("must be a finite number", None),
    **dict.fromkeys(("bool_type", "bool_parsing"), ("must be true or false", None)),
    **dict.fromkeys(("dict_type", "mapping_type", "model_type", "model_attributes_type"), ("must be an object", None)),
    **dict.fromkeys(("list_type", "tuple_type"), ("must be a list", None)),
}
"""By type of error, what is told and which limit: formats of pydantic's `ctx`."""


def in_words(found: ErrorDetails, fields: Collection[str] = ()) -> tuple[str, str | None]:
    """(what is wrong, limit). `fields`: those that there are, where they are known; names of the outermost object."""
    context = {name: _short(value) for name, value in found.get("ctx", {}).items()}
    if found["type"] == "extra_forbidden":
        known = ", ".join(fields) if len(found["loc"]) == 1 else ""
        return "there is no such field" + (f"; there are {known}" if known else ""), known or None
    if found["type"] in _WORDS:
        told, limit = _WORDS[found["type"]]
        return _singular(told.format(**context)), limit and _singular(limit.format(**context))
    return found["msg"], ", ".join(f"{name}={value}" for name, value in context.items() if name != "error") or None


def _short(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _singular(text: str) -> str:
    return re.sub(r"\b1 (character|item)s\b", r"1 \1", text)
