"""No body in a dialect is our fault: whatever is sent is answered, refused, or outlasts the client."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api.openai.bodies import CHAT_RULES, COMPLETION_RULES, ChatBody, CompletionBody
from api.openai.images import RULES, ImageBody
from api.openai.rules import JOB_FIELDS
from api.replicate.bodies import ALIASES, PredictionBody
from genmill.inputs import ImageInput, TextInput
from tests.api.conftest import Caller
from tests.api.test_bad_input import JSON

NAMES = sorted({
    *ImageBody.model_fields, *ChatBody.model_fields, *CompletionBody.model_fields, *ImageInput.model_fields,
    *TextInput.model_fields, *JOB_FIELDS, *RULES.inert, *CHAT_RULES.inert, *COMPLETION_RULES.inert, "quality", "user",
})  # fmt: skip
INPUTS = sorted({*ImageInput.model_fields, *TextInput.model_fields, *(n for names in ALIASES.values() for n in names)})
MESSAGE = st.dictionaries(st.sampled_from(["role", "content", "name"]), JSON | st.just("user"), max_size=3)
AT_ONCE = {"x-stainless-read-timeout": "0.01"}
FUZZ = settings(
    max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.parametrize("path", ["/v1/images/generations", "/v1/chat/completions", "/v1/completions"])
@FUZZ
@given(
    some=st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4),
    prompt=st.just("a red") | JSON,
    messages=st.lists(MESSAGE, max_size=2) | st.just([{"role": "user", "content": "a red"}]),
)
def test_openai(path: str, some: dict[str, Any], prompt: Any, messages: list[Any], alice: Caller) -> None:
    body = {"messages": messages} if "chat" in path else {"prompt": prompt}
    answer = alice("POST", path, json={**body, **some}, headers=AT_ONCE)
    if answer.mimetype == "text/event-stream":
        assert some["stream"]
        answer.close()
        return
    assert answer.status_code in {400, 422} or answer.json["error"]["code"] == "still_running", answer.text
    assert answer.json["error"]["message"]


@FUZZ
@given(
    some=st.dictionaries(st.sampled_from(sorted(PredictionBody.model_fields)), JSON, max_size=3),
    given_input=st.dictionaries(st.sampled_from(INPUTS), JSON, max_size=4) | JSON,
    model=st.sampled_from(["shapes", "captions"]),
)
def test_replicate(some: dict[str, Any], given_input: Any, model: str, alice: Caller) -> None:
    by_name = alice("POST", f"/v1/models/genmill/{model}/predictions", json={"input": given_input, **some})
    by_version = alice("POST", "/v1/predictions", json={"version": f"genmill/{model}", "input": given_input, **some})
    assert by_name.status_code in {201, 400, 404, 422}, by_name.text
    assert by_version.status_code in {201, 400, 422}, by_version.text
