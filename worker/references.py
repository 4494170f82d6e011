"""Inputs that refer to what other jobs made: filled in once the job is claimed, those have succeeded by then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from genmill.errors import InputUnavailable, InvalidJob
from genmill.jobs import Claim
from genmill.references import Reference, put, read
from genmill.store import Made, SourceBook

_UNREADABLE = (ValueError, TypeError, AttributeError)
"""What `read` raises for what is not even a table."""


def refers(claim: Claim) -> bool:
    """Whether its input has to be filled in; asked by the loop, so it only looks."""
    request = next(iter(claim.call[1]), None)
    return isinstance(request, Mapping) and bool(request.get("references"))


def outputs_for(claims: Sequence[Claim], book: SourceBook) -> dict[str, Made]:
    """All that the claims refer to, by job, in one round trip. Not for the loop: results may have megabytes. Raises
    RedisError."""
    named = set[str]()
    for claim in claims:
        with suppress(*_UNREADABLE):  # told of when this claim is filled
            named |= {reference.job_id for reference in read(claim.call[1][0]).values()}
    return book.made(sorted(named)) if named else {}


def filled(claim: Claim, outputs: Mapping[str, Made]) -> Claim:
    """The claim with outputs in place of the references of its input. Raises InputUnavailable where one is there no
    more, InvalidJob where the references or the input are not as genmill writes them."""
    function, (request, *others), kwargs = claim.call
    try:
        references, given = read(request), request["input"]
    except (*_UNREADABLE, KeyError) as err:
        raise InvalidJob("the stored references cannot be read") from err
    for place, reference in references.items():
        made = outputs.get(reference.job_id)
        output = _output(reference, made if made and made.tenant == claim.tenant else None, place)
        try:
            given = put(given, place, output)
        except (ValueError, LookupError, TypeError) as err:
            raise InvalidJob(f"the stored input has no place {place!r}") from err
    return replace(claim, call=(function, [{**request, "input": given}, *others], kwargs))


def _output(reference: Reference, made: Made | None, place: str) -> str:
    """The text, or where the image is stored. Raises InputUnavailable."""
    result: Any = None if made is None else made.result
    try:
        return str(result["text"]["text"] if reference.index is None else result["outputs"][reference.index]["key"])
    except (KeyError, IndexError, TypeError):
        raise InputUnavailable(f"{place}: {reference.source} has no {reference.path}, or has it no more") from None
