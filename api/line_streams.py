"""Answers of many lines, written as they are read from the storage."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

from flask import Response

from genmill.batches.parts import NDJSON


def lines_response(lines: Iterator[bytes]) -> Response:
    """The first line is read here, and raises here: a storage that is away is an answer. One that goes away later cuts
    the connection before the last chunk, by which the client knows that it is to ask again after what it has."""
    first = list(islice(lines, 1))
    return Response(chain(first, lines), mimetype=NDJSON)
