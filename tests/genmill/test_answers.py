"""What a client makes of answers."""

from __future__ import annotations

import time

import httpx
import pytest

from genmill.answers import error_of, pause_or_raise
from genmill.errors import GenmillError, InvalidRequest, NotFound, StoreUnavailable

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


def refusal(status: int, **headers: str) -> httpx.Response:
    told = {"error": TOLD, "errors": []}
    return httpx.Response(status, json=told, headers=headers, request=httpx.Request("POST", "http://genmill.test/"))


@pytest.mark.parametrize(
    ("asked", "waited"), [("7", [7.0]), ("60", [60.0]), ("61", []), ("65606", []), ("9" * 5000, None), ("soon", None)]
)
def test_a_retry_after_of_up_to_a_minute_is_honoured_and_told_of_and_past_that_the_caller_hears(
    asked: str, waited: list[float] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    told: list[tuple[str, float]] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    trouble = refusal(429, **{"retry-after": asked})
    if waited == []:
        with pytest.raises(GenmillError, match="m"):
            pause_or_raise(trouble, 1, on_pause=lambda error, pause_s: told.append((error.code, pause_s)))
    else:
        pause_or_raise(trouble, 1, on_pause=lambda error, pause_s: told.append((error.detail, pause_s)))
        assert told == [("m", slept[0])]
    if waited is not None:
        assert slept == waited
