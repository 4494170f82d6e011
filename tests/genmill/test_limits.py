"""Limits that an operator edits while the fleet runs."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner
from redis import Redis

from genmill.cli.app import cli, main
from genmill.limits import check_limit
from genmill.registry import load_registry
from genmill.store import Store, Want
from scheduler.loop import Scheduler
from tests.conftest import SettingsFactory
from tests.genmill.store.test_submit import requests

SPEC = load_registry().get("shapes")


@pytest.mark.parametrize(
    "scope",
    [
        "all",
        "class:p0",
        "class:callbacks",
        "reserve:p1",
        "model:sdxl",
        "tenant:*",
        "tc:acme:p3",
        "host:a.example:8443",
    ],
)
def test_scopes_of_every_kind(scope: str) -> None:
    check_limit(scope, 3)


@pytest.mark.parametrize(
    ("scope", "value", "reason"),
    [
        ("everything", 1, "is no scope"),
        ("class:p9", 1, "is no scope"),
        ("weight:*", 1, "is no scope"),
        ("weight:a", 0, "must be above 0, got 0"),
        ("all", -1, "must be 0 or more, got -1"),
        ("tenant:a", 1.5, "whole number of jobs, got 1.5"),
        ("budget:a", 1e13, r"at most 1e\+12, got 1e\+13"),
        ("all", float("inf"), r"at most 1e\+12, got inf"),
        ("weight:a", float("nan"), r"at most 1e\+12, got nan"),
    ],
)
def test_a_limit_that_cannot_be_says_why(scope: str, value: float, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check_limit(scope, value)


def test_a_limit_set_on_the_command_line_holds_and_is_shown(
    redis: Redis, make_settings: SettingsFactory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = make_settings(limits={"tenant:*": 3})
    store = Store(redis, settings)
    monkeypatch.setenv("GENMILL_REDIS_URL", settings.redis_url)
    monkeypatch.setenv("GENMILL_LIMITS", '{"tenant:*": 3}')
    store.submit_many(requests(SPEC, 8))
    assert cli.main(["limits", "set", "tenant:a=1", "weight:b=2.5"], standalone_mode=False) is None
    Scheduler(store, "s").tick()
    claims = store.claim("w", ["p1", "p2"], [Want(SPEC.batch_key, 8)]).claims
    assert sorted(claim.tenant for claim in claims) == ["a", "b", "b", "b"]
    capsys.readouterr()

    cli.main(["limits", "get", "--json"], standalone_mode=False)
    assert json.loads(capsys.readouterr().out) == [
        {"scope": "tenant:*", "value": 3.0, "source": "settings", "live": None},
        {"scope": "tenant:a", "value": 1.0, "source": "operator", "live": 1},
        {"scope": "weight:b", "value": 2.5, "source": "operator", "live": None},
    ]
    cli.main(["limits", "unset", "tenant:a"], standalone_mode=False)
    Scheduler(store, "s").tick()
    assert len(store.claim("w", ["p1", "p2"], [Want(SPEC.batch_key, 8)]).claims) == 2


@pytest.mark.parametrize("text", ["tenant:a", "tenant:a=many", "nobody=1", "all=-1"])
def test_a_limit_that_is_not_one_is_refused_and_nothing_stored(
    redis: Redis,
    make_settings: SettingsFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str,
) -> None:
    monkeypatch.setenv("GENMILL_REDIS_URL", make_settings().redis_url)
    with pytest.raises(SystemExit) as exit_code:
        main(["limits", "set", "all=3", text])
    assert exit_code.value.code == 2
    assert repr(text) in capsys.readouterr().err
    assert redis.exists("gm:lim:set") == 0


def test_the_help_names_every_kind_of_scope() -> None:
    told = CliRunner().invoke(cli, ["limits", "--help"]).output
    with pytest.raises(ValueError, match="there are") as caught:
        check_limit("everything", 1)
    kinds = {
        part.partition(":")[0] for part in str(caught.value).partition("there are ")[2].partition(";")[0].split(", ")
    }
    assert len(kinds) == 11
    assert all(re.search(rf"\b{kind}\b", told) for kind in kinds)
