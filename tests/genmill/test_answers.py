"""What a client makes of answers."""

from __future__ import annotations

import httpx
import pytest

from genmill.answers import error_of
from genmill.errors import InvalidRequest, NotFound, StoreUnavailable

TOLD = {"message": "m", "code": "c"}


def answer(status: int, body: object) -> httpx.Response:
    return httpx.Response(status, json=body, request=httpx.Request("GET", "http://genmill.test/"))


def test_faults_are_told() -> None:
    error = error_of(answer(422, {"error": TOLD, "errors": [{"pointer": "/input", "detail": "d", "limit": "1"}]}))
    assert isinstance(error, InvalidRequest)
    (fault,) = error.faults
    assert (fault.pointer, fault.detail, fault.limit, fault.value) == ("/input", "d", "1", None)


@pytest.mark.parametrize("errors", [None, ["x"], [{}], 7, {"a": 1}])
@pytest.mark.parametrize(("status", "kind"), [(400, InvalidRequest), (404, NotFound), (503, StoreUnavailable)])
def test_what_a_gateway_says_is_an_error_of_its_status(status: int, kind: type[Exception], errors: object) -> None:
    assert isinstance(error_of(answer(status, {"error": TOLD, "errors": errors})), kind)
    assert isinstance(error_of(answer(status, errors)), kind)
