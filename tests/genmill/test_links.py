"""Signed links and derived secrets."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook

from genmill.errors import Forbidden, OutputExpired, SettingsInvalid
from genmill.links import Links
from genmill.settings import Settings, load_settings


def settings_with(key: str = "0123456789abcdef") -> Settings:
    return load_settings(secret_key=key, public_url="https://gen.example/", url_ttl_s=60)


def parts(url: str) -> tuple[str, str, str]:
    split = urlsplit(url)
    query = parse_qs(split.query)
    return split.path.removeprefix("/v1/outputs/"), query["expires"][0], query["signature"][0]


def test_a_link_checks_until_it_expires() -> None:
    now = 1_700_000_000.0
    links = Links(settings_with(), clock=lambda: now)
    url = links.output_url("outputs/a/0.png")
    assert url.startswith("https://gen.example/v1/outputs/outputs/a/0.png?")
    links.check(*parts(url))
    now += 61
    with pytest.raises(OutputExpired):
        links.check(*parts(url))


def test_forged_links() -> None:
    links = Links(settings_with())
    key, expires, signature = parts(links.output_url("a/0.png"))
    for forged in (
        ("a/1.png", expires, signature), (key, str(int(expires) + 1), signature), (key, "", signature),
        (key, f"{expires}\n", signature), (key, expires, ""), (key, expires, "é"), (key, "soon", signature),
    ):  # fmt: skip
        with pytest.raises(Forbidden):
            links.check(*forged)
    with pytest.raises(Forbidden):
        Links(settings_with("another secret key")).check(key, expires, signature)


@given(key=st.text(max_size=40), expires=st.text(max_size=20), signature=st.text(max_size=50))
def test_nothing_made_up_passes(key: str, expires: str, signature: str) -> None:
    with pytest.raises(Forbidden):
        Links(settings_with()).check(key, expires, signature)


def test_webhook_secret_is_stable_per_tenant_and_verifies() -> None:
    secret = Links(settings_with()).webhook_secret("alice")
    assert secret == Links(settings_with()).webhook_secret("alice")
    assert secret != Links(settings_with()).webhook_secret("bob")
    assert len(base64.b64decode(secret.removeprefix("whsec_"), validate=True)) == 32
    now = datetime.now(UTC)
    signature = Webhook(secret).sign("msg_1", now, "{}")
    headers = {"webhook-id": "msg_1", "webhook-timestamp": str(int(now.timestamp())), "webhook-signature": signature}
    assert Webhook(secret).verify("{}", headers) == {}


@pytest.mark.parametrize("secret", [None, "short"])
def test_no_key_no_links(secret: str | None) -> None:
    with pytest.raises(SettingsInvalid):
        Links(load_settings(secret_key=secret))
