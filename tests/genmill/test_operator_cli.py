"""`genmill keys`, `tenants`, `usage` and `audit`, next to a real Redis."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click
import pytest
from redis import Redis

from genmill import api_keys
from genmill.cli.app import main
from genmill.cli.screen import Exit
from genmill.cli.values import day, per_minute, seconds
from genmill.settings import Settings
from genmill.store import Outcome, Store
from tests.genmill.store.conftest import Submit, shapes, submit  # noqa: F401 - fixtures
from tests.genmill.store.test_usage import RESULT, settle_all

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(redis: Redis, settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """(exit code, stdout, stderr) of a command."""
    monkeypatch.setenv("GENMILL_REDIS_URL", settings.redis_url)

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main(list(arguments))
        captured = capsys.readouterr()
        return int(caught.value.code or 0), captured.out, captured.err

    return call


def shown(run: Run, *arguments: str) -> Any:
    code, out, err = run(*arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_a_key_from_its_making_to_its_end(run: Run, redis: Redis) -> None:
    made = shown(run, "keys", "create", "acme", "--scope", "admin", "--scope", "read", "--expires", "90d")
    assert made["scopes"] == ["read", "admin"]
    lifetime = datetime.fromisoformat(made["expires_at"]) - datetime.fromisoformat(made["created_at"])
    assert lifetime.days == 90
    new = shown(run, "keys", "rotate", made["key_id"], "--grace", "30m")
    assert None not in [api_keys.identify(redis, one["key"]) for one in (new, made)]
    assert [key["key_id"] for key in shown(run, "keys", "list") if key["rotated_to"]] == [made["key_id"]]
    assert run("keys", "revoke", made["key_id"])[1] == f"revoked {made['key_id']} of acme\n"
    assert api_keys.identify(redis, made["key"]) is None
    code, out, _ = run("keys", "list")
    assert (code, made["key"] in out, new["key_id"] in out) == (0, False, True)


def test_a_new_key_alone_is_printed(run: Run, redis: Redis) -> None:
    key = run("keys", "create", "acme")[1].strip()
    new = run("keys", "rotate", key)[1].strip()
    found = api_keys.identify(redis, new)
    assert found is not None
    assert (found.tenant, found.scopes) == ("acme", api_keys.DEFAULT_SCOPES)


def test_a_tenant_is_set_shown_and_listed(run: Run, store: Store) -> None:
    given = [
        "--weight",
        "2",
        "--classes",
        "p1,p3,p2",
        "--max-queued",
        "1000",
        "--rate",
        "2/s",
        "--gpu-seconds-per-day",
        "3600",
    ]
    assert shown(run, "tenants", "set", "acme", *given) == {
        "tenant": "acme", "weight": 2, "classes": ["p1", "p2", "p3"], "max_running": None, "max_queued": 1000,
        "rate_per_minute": 120, "gpu_seconds_per_day": 3600, "max_running_by_class": {},
    }  # fmt: skip
    shown(run, "tenants", "set", "acme", "--unset", "classes", "--rate", "100/m")
    view = shown(run, "tenants", "show", "acme")
    assert (view["classes"], view["rate_per_minute"], view["weight"]) == (["p0", "p1", "p2", "p3"], 100, 2)
    assert shown(run, "tenants", "list") == [view]
    assert {one["scope"] for one in shown(run, "limits", "get")} >= {"weight:acme", "queued:acme", "rate:acme"}
    assert "acme" in run("tenants", "list")[1]
    assert shown(run, "tenants", "set", "acme", "--unset", "rate")["rate_per_minute"] is None


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["tenants", "set", "acme"], Exit.USAGE, "at least one fact"),
        (["tenants", "set", "acme", "--rate", "100/h"], Exit.USAGE, "'100/h' is not such as 100/m"),
        (["tenants", "set", "acme", "--classes", "p9"], Exit.REFUSED, "classes"),
        (["tenants", "set", "acme", "--weight", "0"], Exit.REFUSED, "/weight"),
        (["tenants", "set", "A", "--weight", "1"], Exit.REFUSED, "/tenant"),
        (["tenants", "show", "nobody"], Exit.REFUSED, "no tenant 'nobody'"),
        (["keys", "create", "acme", "--expires", "soon"], Exit.USAGE, "'soon' is not such as 90s"),
        (["keys", "create", "acme", "--scope", "root"], Exit.USAGE, "root"),
        (["usage", "--from", "yesterday"], Exit.USAGE, "not a day"),
        (["usage", "--from", "2020-01-01"], Exit.REFUSED, "1..400 days"),
        (["usage", "--csv", "--json"], Exit.USAGE, "choose one"),
    ],
)
def test_what_is_refused_says_why_and_stores_nothing(
    arguments: list[str], code: int, words: str, run: Run, redis: Redis
) -> None:
    told = run(*arguments)
    assert told[0] == code
    assert words in told[2]
    assert redis.dbsize() == 0


def test_usage_as_json_csv_and_text(run: Run, store: Store, submit: Submit, shapes: Any) -> None:  # noqa: F811
    assert run("usage")[1].startswith("nothing was used from")
    submit("a"), submit("b")
    settle_all(store, shapes, Outcome.FINISHED, result=RESULT, gpu_ms=500)
    assert shown(run, "usage")["total"]["output_bytes"] == 3000
    assert [row["tenant"] for row in shown(run, "usage", "--tenant", "b")["data"]] == ["b"]
    code, out, _ = run("usage", "--csv")
    assert code == 0
    assert {row["tenant"]: row["gpu_seconds"] for row in csv.DictReader(io.StringIO(out))} == {"a": "0.5", "b": "0.5"}
    assert "gpu_seconds" in run("usage", "--to", datetime.now(UTC).date().isoformat())[1]


def test_audit_shows_what_was_done_here(run: Run) -> None:
    assert run("audit")[1] == "nothing was changed\n"
    run("keys", "create", "acme")
    run("tenants", "set", "acme", "--weight", "3")
    run("limits", "set", "all=5")
    run("limits", "unset", "all")
    log = shown(run, "audit")
    assert [entry["action"] for entry in log] == ["limits.change", "limits.change", "tenant.change", "key.create"]
    assert {entry["who"] for entry in log} == {"cli"}
    assert len(shown(run, "audit", "--limit", "1")) == 1
    assert "tenant.change" in run("audit")[1]


def test_at_80_columns_ids_days_and_times_stay_whole(
    run: Run,
    store: Store,
    submit: Submit,  # noqa: F811
    shapes: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("genmill.cli.screen.PIPE_WIDTH", 80)
    key = run("keys", "create", "acme", "--name", "the pictures of the shop", "--scope", "submit")[1].strip()
    submit("acme")
    settle_all(store, shapes, Outcome.FINISHED, result=RESULT, gpu_ms=500)
    today, this_minute = datetime.now(UTC).strftime("%Y-%m-%d"), r"\d{4}-\d\d-\d\d \d\d:\d\d"

    shown = {name: run(*name.split())[1] for name in ("keys list", "audit", "usage")}

    assert all(len(line) <= 80 for text in shown.values() for line in text.splitlines())
    assert re.search(rf"^{api_keys.key_id_of(key)} +acme ", shown["keys list"], re.MULTILINE)
    assert re.search(rf"^{this_minute} ", shown["audit"], re.MULTILINE)
    assert re.search(rf"^{today} +acme +1 ", shown["usage"], re.MULTILINE)


def test_values() -> None:
    assert [seconds(text) for text in ("90", "90s", "1.5m", "24h", "2d")] == [90, 90, 90, 86400, 172800]
    assert [per_minute(text) for text in ("100", "100/m", "5/s")] == [100, 100, 300]
    assert day("2026-01-31").isoformat() == "2026-01-31"
    for read, text in ((seconds, "-1"), (seconds, "1w"), (per_minute, "1/h"), (day, "31.1.2026")):
        with pytest.raises(click.BadParameter):
            read(text)
