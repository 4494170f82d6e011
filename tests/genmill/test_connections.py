"""Addresses as they may be shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from genmill.connections import without_secrets
from genmill.up.folder import DataFolder, UpFailed
from genmill.up.run import greeting, refuse_silent_redis
from tests.conftest import SettingsFactory
from tests.fleet import free_port


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("rediss://user:p%40ss@queue:6379/1?password=x", "rediss://queue:6379/1"),
        ("redis://:a@b@queue/0", "redis://queue/0"),
        ("unix:///run/redis.sock?db=1&password=x", "unix:///run/redis.sock"),
    ],
)
def test_a_redis_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_secrets(url) == shown


def test_genmill_up_tells_no_password(make_settings: SettingsFactory, tmp_path: Path) -> None:
    settings = make_settings(redis_url=f"redis://:canary@127.0.0.1:{free_port()}/0")
    with pytest.raises(UpFailed, match="does not answer") as caught:
        refuse_silent_redis(settings)
    assert "canary" not in f"{caught.value} {greeting(settings, DataFolder(tmp_path))}"
