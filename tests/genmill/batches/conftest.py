"""Small limits, so that tests come to them."""

from __future__ import annotations

import pytest

from genmill.settings import Settings
from tests.conftest import SettingsFactory


@pytest.fixture
def settings(make_settings: SettingsFactory) -> Settings:
    return make_settings(batch_window=8, batch_max_line_bytes=2_000, batch_max_lines=3_000)
