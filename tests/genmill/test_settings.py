"""Settings: every fault at once, nothing coherent by accident."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from pydantic import ValidationError

from genmill.errors import SettingsInvalid
from genmill.settings import AS_JSON, Settings, load_settings


def test_every_fault_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENMILL_PORT", "99999")
    monkeypatch.setenv("GENMILL_DURABILITY", "sometimes")
    monkeypatch.setenv("GENMILL_CLASS_DELAY_S", '{"p0": 1}')
    with pytest.raises(SettingsInvalid) as caught:
        load_settings()
    for name in ("GENMILL_PORT", "GENMILL_DURABILITY", "GENMILL_CLASS_DELAY_S"):
        assert name in caught.value.detail


def test_auth_may_be_off_only_on_loopback() -> None:
    assert load_settings(auth=False, host="127.0.0.1").auth is False
    with pytest.raises(SettingsInvalid, match=r"^GENMILL_AUTH .* loopback host, GENMILL_HOST is 0\.0\.0\.0$"):
        load_settings(auth=False, host="0.0.0.0")  # noqa: S104  # the very thing that is refused


def test_a_lease_must_outlive_a_missed_renewal() -> None:
    with pytest.raises(SettingsInvalid, match=r"^GENMILL_LEASE_S \(10.0\) .* GENMILL_RENEW_S \(8.0\)$"):
        load_settings(lease_s=10, renew_s=8)


def test_settings_that_do_not_fit_together_are_told_at_once() -> None:
    with pytest.raises(SettingsInvalid, match=r"GENMILL_AUTH .*; GENMILL_LEASE_S "):
        load_settings(auth=False, host="192.0.2.1", lease_s=10, renew_s=8)


def test_malformed_json_in_the_environment_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENMILL_LIMITS", "foo")
    monkeypatch.setenv("GENMILL_FUNCTIONS", "a.b")
    monkeypatch.setenv("GENMILL_CALLBACK_DELAYS_S", "[NaN]")
    monkeypatch.setenv("GENMILL_PORT", "0")
    with pytest.raises(SettingsInvalid) as caught:
        load_settings()
    told = caught.value.detail.split("; ")
    assert [fault.split(":")[0] for fault in told] == [
        "GENMILL_PORT", "GENMILL_LIMITS", "GENMILL_FUNCTIONS", "GENMILL_CALLBACK_DELAYS_S",
    ]  # fmt: skip
    assert told[1] == """GENMILL_LIMITS: must be JSON such as {"host:*": 8}, got 'foo'"""


@pytest.mark.parametrize("name", Settings.model_fields)
def test_no_setting_has_an_error_of_another_kind(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"GENMILL_{name.upper()}", "{")
    with suppress(SettingsInvalid):
        load_settings()
    monkeypatch.setenv("GENMILL_PORT", "0")
    with pytest.raises(SettingsInvalid) as caught:
        load_settings()
    assert "GENMILL_PORT: " in caught.value.detail
    assert "Value error" not in caught.value.detail


@pytest.mark.parametrize(("name", "example"), AS_JSON.items())
def test_the_examples_of_json_are_taken(name: str, example: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"GENMILL_{name.upper()}", example)
    value = getattr(load_settings(), name)
    assert json.loads(example) == (list(value) if isinstance(value, tuple) else value)


def test_a_faulty_scope_is_named_as_it_is_spelt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENMILL_LIMITS", '{"tenant:alice": -1}')
    with pytest.raises(SettingsInvalid, match="GENMILL_LIMITS/tenant:alice"):
        load_settings()


@pytest.mark.parametrize(
    ("host", "url", "is_linked_nowhere"),
    [("0.0.0.0", "http://0.0.0.0:8080", True), ("::", "http://[::]:8080", True), ("::1", "http://[::1]:8080", False)],  # noqa: S104 - nothing listens
)
def test_links_begin_with_the_host_unless_told(host: str, url: str, is_linked_nowhere: bool) -> None:
    settings = load_settings(host=host)
    assert (settings.base_url, settings.is_linked_nowhere) == (url, is_linked_nowhere)
    told = load_settings(host=host, public_url="https://mill.example/")
    assert (told.base_url, told.is_linked_nowhere) == ("https://mill.example", False)


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError):
        Settings().port = 1  # type: ignore[misc]  # must raise


def test_there_is_no_signing_without_a_key() -> None:
    with pytest.raises(SettingsInvalid, match="GENMILL_SECRET_KEY"):
        load_settings(secret_key="short").signing_key()


@pytest.mark.parametrize(("scope", "value"), [("weight:a", 0), ("tenants:a", 1), ("tc:a", 1), ("all", -1)])
def test_limits_name_known_scopes_and_sensible_values(scope: str, value: float) -> None:
    with pytest.raises(SettingsInvalid, match=r"(?i)limits"):
        load_settings(limits={scope: value})
