"""Settings: every fault at once, nothing coherent by accident."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from genmill.errors import SettingsInvalid
from genmill.settings import Settings, load_settings


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
    with pytest.raises(SettingsInvalid, match=r"loopback.*0\.0\.0\.0"):
        load_settings(auth=False, host="0.0.0.0")  # noqa: S104  # the very thing that is refused


def test_a_lease_must_outlive_a_missed_renewal() -> None:
    with pytest.raises(SettingsInvalid, match="lease_s"):
        load_settings(lease_s=10, renew_s=8)


def test_malformed_json_in_the_environment_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENMILL_LIMITS", "{tenant: 3")
    with pytest.raises(SettingsInvalid, match="limits"):
        load_settings()


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
