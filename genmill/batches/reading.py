"""Lines out of a stream of bytes, one after another, none longer than it may be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from genmill import strict_json
from genmill.errors import BodyTooLarge, FieldFault, InvalidRequest, MalformedJson


class LineTooLong(InvalidRequest):
    """A line is longer than the server reads."""

    code = "line_too_long"


def split_lines(chunks: Iterable[bytes], most_bytes: int, most_in_all: int) -> Iterator[bytes | None]:
    """Lines without their ends; None in the place of one over `most_bytes`, of which no more than that is held.

    Raises BodyTooLarge past `most_in_all` bytes.
    """
    rest, is_over, seen = b"", False, 0
    for chunk in chunks:
        seen += len(chunk)
        if seen > most_in_all:
            raise _too_much(most_in_all)
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield None if is_over or len(line) > most_bytes else line
            is_over = False
        if len(rest) > most_bytes:
            rest, is_over = b"", True
    if rest or is_over:
        yield None if is_over else rest


def read_object(line: bytes | None, most_bytes: int) -> dict[str, Any]:
    """A line as a JSON object. Raises LineTooLong, MalformedJson."""
    if line is None:
        detail = f"the line is longer than {most_bytes} bytes"
        raise LineTooLong(detail, faults=(FieldFault("/", detail, f"{most_bytes} bytes", f"over {most_bytes} bytes"),))
    try:
        read = strict_json.loads(line)
    except ValueError as err:
        raise _malformed(f"the line is not valid JSON: {err}", line) from None
    if not isinstance(read, Mapping):
        raise _malformed(f"the line must be a JSON object, got {type(read).__name__}", line)
    return dict(read)


def _malformed(detail: str, line: bytes) -> MalformedJson:
    shown = line[:60].decode("utf-8", "replace")
    return MalformedJson(detail[:300], faults=(FieldFault("/", detail[:300], "one JSON object a line", shown),))


def _too_much(most_bytes: int) -> BodyTooLarge:
    detail = f"the batch has more than {most_bytes} bytes"
    return BodyTooLarge(detail, faults=(FieldFault("/", detail, f"{most_bytes} bytes", f"over {most_bytes} bytes"),))
