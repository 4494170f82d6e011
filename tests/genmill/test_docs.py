"""The docs that repeat what the code says are held against it."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any

import pytest
import yaml
from honcho.environ import parse_procfile
from standardwebhooks import Webhook

from api.schemas import SCHEMAS
from api.submission import JobBody
from bench import publish_api, publish_engine, publish_queue
from genmill import keys
from genmill.batches.states import TRANSITIONS as BATCH_TRANSITIONS
from genmill.environment import WORKER_THREADS
from genmill.jobs import TRANSITIONS, JobState
from genmill.registry import load_registry
from genmill.settings import Settings

ROOT = Path(__file__).parent.parent.parent
STATES = (ROOT / "docs" / "states.md").read_text()
OPERATING = (ROOT / "docs" / "operating.md").read_text()


JOBS, _, BATCHES = STATES.partition("\n## Batches\n")
Table = Mapping[tuple[StrEnum | None, str], StrEnum]


@pytest.mark.parametrize(("text", "transitions"), [(JOBS, TRANSITIONS), (BATCHES, BATCH_TRANSITIONS)])
def test_the_state_diagram_draws_the_table_of_transitions(text: str, transitions: Table) -> None:
    drawn = re.findall(r"^    (\S+) --> (\S+): (\S+)$", text, re.MULTILINE)

    table = {(str(before or "[*]"), str(after), event) for (before, event), after in transitions.items()}
    assert set(drawn) == table
    assert len(drawn) == len(table)


def test_the_example_of_a_models_file_is_one(tmp_path: Path) -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", OPERATING, re.DOTALL)
    (tmp_path / "models.toml").write_text(example)

    assert load_registry(tmp_path / "models.toml").get("sdxl").max_batch == 8


def named_in(marker: str) -> set[str]:
    """The words in code style of the first cells of the table of docs/jobs.md that begins with this line."""
    table = (ROOT / "docs" / "jobs.md").read_text().partition(marker)[2].partition("\n\n")[0]
    cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    assert cells
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def test_the_page_of_jobs_has_every_field_state_and_reason() -> None:
    job = SCHEMAS["Job"]["properties"]
    assert named_in("<!-- fields of a submission -->") == set(JobBody.model_fields)
    assert named_in("<!-- fields of a job -->") == set(job)
    assert named_in("| `state` | meaning |") == set(JobState)
    reasons = job["waiting_for"]["properties"]["reason"]["enum"]
    assert named_in("| `reason` of `waiting_for` | what") == set(reasons)


def test_the_receiver_of_the_page_of_webhooks_verifies() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "webhooks.md").read_text(), re.DOTALL)
    secret = f"whsec_{b64encode(b'x' * 32).decode()}"
    scope: dict[str, Any] = {"__name__": "receiver"}
    exec(code.replace("whsec_...", secret), scope)  # noqa: S102 - the page's own example
    body, now = '{"type": "job.succeeded", "data": {"id": "01jq"}}', datetime.now(UTC)
    headers = {
        "webhook-id": "cb_1",
        "webhook-timestamp": f"{int(now.timestamp())}",
        "webhook-signature": Webhook(secret).sign("cb_1", now, body),
    }
    client = scope["app"].test_client()
    assert client.post("/", data=body, headers=headers).status_code == 204
    assert client.post("/", data=body + " ", headers=headers).status_code == 401


def test_every_redis_key_is_described_once() -> None:
    described = re.findall(r"^\| `((?:rq|gm):[^`]+)` \|", STATES, re.MULTILINE)
    beside_jobs = [key for key in described if key.endswith(tuple(keys.SUFFIXES.values()))]

    assert sorted(key.split("<")[0] for key in described if key not in beside_jobs) == sorted(keys.PREFIXES.values())
    assert len(beside_jobs) == len(keys.SUFFIXES)


@pytest.mark.parametrize(("text", "transitions"), [(JOBS, TRANSITIONS), (BATCHES, BATCH_TRANSITIONS)])
def test_every_event_has_a_row(text: str, transitions: Table) -> None:
    events = {event for _, event in transitions}
    rows = re.search(r"\| event \| who .*?\n\n", text, re.DOTALL)

    assert rows
    cells = [row.split("|")[1] for row in rows[0].strip().splitlines()[2:]]
    assert {event.strip() for cell in cells for event in cell.split(",")} == events


def test_the_settings_table_has_every_setting_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(GENMILL_[A-Z_]+)` \| (.+?) \| ", OPERATING, re.MULTILINE))

    assert set(rows) == {f"GENMILL_{name.upper()}" for name in Settings.model_fields}
    for name, field in Settings.model_fields.items():
        if name != "models":  # a path on this machine
            assert rows[f"GENMILL_{name.upper()}"] == shown(field.get_default(call_default_factory=True)), name


def shown(default: Any) -> str:
    """A default as the environment would spell it."""
    if default is None:
        return "none"
    if isinstance(default, str | Enum):
        return f"`{default}`"
    if isinstance(default, tuple):
        default = [float(item) if isinstance(item, int) else item for item in default]
    return f"`{json.dumps(default)}`"


def test_the_threat_model_names_tests_that_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs" / "security.md").read_text())

    assert len(named) > 40
    for path, test in named:
        assert f"def {test}(" in (ROOT / path).read_text(), f"{path}::{test}"


def test_every_threat_has_a_test() -> None:
    text = (ROOT / "docs" / "security.md").read_text().split("## Threats")[1].split("## Out of scope")[0]
    rows = [row for row in text.splitlines() if row.startswith("| ") and not row.startswith("| threat")]

    assert len(rows) > 30
    for row in rows:
        assert "::test_" in row.split(" | ")[-1], row


def test_the_documented_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return document


def test_compose_runs_the_processes_of_the_procfile() -> None:
    services = compose()["services"]
    procfile = parse_procfile((ROOT / "Procfile").read_text()).processes

    assert set(services) == {"valkey", *procfile}
    for name, command in procfile.items():
        program = command.split("exec ", 1)[1].removeprefix("nice -n 10 ").split()
        assert services[name]["command"].split()[0] == program[0]
        assert services[name]["command"].split()[-1] == program[-1]


def test_the_threads_of_every_worker_wait_alike() -> None:
    ((name, value),) = WORKER_THREADS.items()

    assert f"{name}={value} exec" in parse_procfile((ROOT / "Procfile").read_text()).processes["worker"]
    assert compose()["services"]["worker"]["environment"][name] == value
    assert f"export {name}={value} " in OPERATING


@pytest.mark.parametrize("setting", ["--appendonly yes", "--maxmemory-policy noeviction"])
def test_compose_keeps_the_queue(setting: str) -> None:
    assert setting in compose()["services"]["valkey"]["command"]


def test_compose_names_only_settings_that_exist() -> None:
    named = {name for service in compose()["services"].values() for name in service.get("environment", {})}
    known = {f"GENMILL_{name.upper()}" for name in Settings.model_fields}

    assert {name for name in named if name.startswith("GENMILL_")} <= known


@pytest.mark.parametrize(
    ("page", "name", "tables"),
    [
        ("api", "api", publish_api.figures_table),
        ("engines", "engine", publish_engine.tables),
        *((page, name, table) for page, tables in publish_queue.TABLES.items() for name, table in tables.items()),
    ],
)
def test_pages_show_what_was_measured(page: str, name: str, tables: Callable[[Any], str]) -> None:
    report = json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text())
    text = (ROOT / "docs" / f"{page}.md").read_text()
    assert publish_queue.with_figures(text, f"{name}.json", tables(report)) == text
