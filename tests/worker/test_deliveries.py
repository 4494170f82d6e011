"""The retry schedule and the signature, without a network."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook
from standardwebhooks.webhooks import WebhookVerificationError

from genmill.settings import Settings
from worker.deliveries import next_delay_s, signed_headers

DELAYS = Settings().callback_delays_s
SECRET = "whsec_" + "QUJD" * 8


def test_the_schedule_ends() -> None:
    planned = [next_delay_s(DELAYS, attempt, None, lambda: 0.0) for attempt in range(1, len(DELAYS) + 1)]
    assert planned == [*DELAYS[1:], None]


@given(st.integers(1, 9), st.floats(0, 1), st.none() | st.floats(0, allow_nan=False))
def test_jitter_only_adds_and_retry_after_is_honoured(attempt: int, noise: float, retry_after_s: float | None) -> None:
    delay = next_delay_s(DELAYS, attempt, retry_after_s, lambda: noise)
    assert delay is not None
    assert DELAYS[attempt] <= delay <= 1.1 * max(DELAYS)
    assert delay >= min(retry_after_s or 0, max(DELAYS))


def test_the_signature_verifies_and_a_changed_body_does_not() -> None:
    body = b'{"type":"job.succeeded"}'
    headers = signed_headers("cb_1", body, SECRET, datetime.now(UTC))
    assert Webhook(SECRET).verify(body, headers) == {"type": "job.succeeded"}
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(body + b" ", headers)
