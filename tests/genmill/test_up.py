"""`genmill up`: what it decides, what it refuses, and that it leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from honcho.environ import parse_procfile
from redis import Redis

from genmill.errors import GenmillError
from genmill.settings import Durability, load_settings
from genmill.up.fleet import find_procfile
from genmill.up.folder import DataFolder, FolderInUse, UpFailed
from genmill.up.ports import is_free, pick_port, why_not
from genmill.up.run import UpOptions, child_environment, decide, greeting, link_warning, run_up
from genmill.up.valkey import EmbeddedValkey
from tests.fleet import eventually, free_port

API = """
import http.server, os  # on loopback, whatever the host
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_):
        pass
http.server.HTTPServer(("127.0.0.1", int(os.environ["GENMILL_PORT"])), Handler).serve_forever()
"""

WORKER = """
import os, signal, sys
from redis import Redis
def give_back(*_):
    Redis.from_url(os.environ["RQ_REDIS_URL"]).rpush("given back", os.getpid())
    sys.exit(0)
signal.signal(signal.SIGTERM, give_back)
print("working", flush=True)
while True:
    signal.pause()
"""

RUN = """
import signal
import sys
from pathlib import Path
from genmill.up import fleet, run
fleet.KILL_MARGIN_S = 1.0
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where the tests themselves run under nohup
run.find_procfile = lambda: Path(sys.argv[1])
try:
    sys.exit(run.run_up(run.UpOptions(Path(sys.argv[2]), port=int(sys.argv[3]), workers=2)))
except run.UpFailed as err:
    sys.exit(err.detail)
"""


EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 - what is warned of


class Run:
    """One `genmill up` with processes of the test's own in its Procfile."""

    def __init__(self, folder: Path, worker: str = WORKER, **env: str) -> None:
        self.data, self.log, self.port = folder / "data", folder / "up.log", free_port()
        (folder / "api.py").write_text(API)
        (folder / "worker.py").write_text(worker)
        procfile = folder / "Procfile"
        procfile.write_text(f"api: exec python {folder}/api.py\nworker: exec python {folder}/worker.py\n")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("GENMILL_", "RQ_"))}
        command = [sys.executable, "-c", RUN, str(procfile), str(self.data), str(self.port)]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=output, env={**clean, "GENMILL_GRACE_S": "1", **env}
            )

    def says(self, words: str, times: int = 1) -> None:
        eventually(lambda: self.log.read_text().count(words) >= times, within_s=30)

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def make(**given: Any) -> Run:
        folder = tmp_path / str(len(runs))
        folder.mkdir()
        runs.append(Run(folder, **given))
        return runs[-1]

    yield make
    for run in runs:
        if run.process.poll() is None:
            run.process.terminate()
            run.process.wait(30)


def gone(family: list[psutil.Process]) -> bool:
    return not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in family)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_stops_everything_when_asked_and_valkey_last(start: Callable[..., Run], signum: signal.Signals) -> None:
    run = start()
    run.says("genmill listens at")
    run.says("working", times=2)
    family = run.family()
    assert sum("valkey-server" in process.name() for process in family) == 1

    run.process.send_signal(signum)

    assert run.process.wait(30) == 0
    assert eventually(lambda: gone(family))
    assert given_back(run) == 2  # each worker could still write to Valkey while it ended


def test_a_process_that_ends_by_itself_ends_the_run_with_its_code(start: Callable[..., Run]) -> None:
    run = start(worker="import sys; print('working', flush=True); sys.stdin.read(); sys.exit(7)")
    run.says("stopped (rc=7)")

    assert run.process.wait(30) == 7


def test_a_killed_process_ends_the_run_and_the_others(start: Callable[..., Run]) -> None:
    run = start()
    run.says("genmill listens at")
    family = run.family()
    next(process for process in family if "worker.py" in " ".join(process.cmdline())).kill()

    assert run.process.wait(30) == 128 + signal.SIGKILL
    assert eventually(lambda: gone(family))


def test_what_ignores_the_end_is_killed_after_the_grace(start: Callable[..., Run]) -> None:
    stubborn = (
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('working', flush=True)\nsignal.pause()"
    )
    run = start(worker=stubborn, GENMILL_GRACE_S="0")
    run.says("genmill listens at")
    run.says("working", times=2)
    family = run.family()
    run.process.terminate()

    run.process.wait(30)
    assert eventually(lambda: gone(family))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children of their parent's death")
def test_a_killed_run_leaves_nothing_behind(start: Callable[..., Run]) -> None:
    run = start()
    run.says("working", times=2)
    family = run.family()
    run.process.kill()

    run.process.wait(30)
    assert eventually(lambda: gone(family))


def test_the_end_of_valkey_ends_the_run(start: Callable[..., Run]) -> None:
    run = start()
    run.says("genmill listens at")
    next(process for process in run.family() if process.name() == "valkey-server").kill()

    run.says("Valkey ended by itself")
    assert run.process.wait(30) != 0


def test_a_second_run_on_the_same_folder_or_port_is_refused(start: Callable[..., Run], tmp_path: Path) -> None:
    run = start()
    run.says("genmill listens at")
    procfile = run.data.parent / "Procfile"

    def refusal(data: Path, port: int) -> str:
        done = subprocess.run(
            [sys.executable, "-c", RUN, str(procfile), str(data), str(port)],
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        assert done.returncode == 1
        return done.stderr

    assert f"genmill up (pid {run.process.pid}) already runs on {run.data}" in refusal(run.data, free_port())
    assert f"port {run.port} on 127.0.0.1 is in use; choose another with --port" in refusal(
        tmp_path / "other", run.port
    )


def given_back(run: Run) -> int:
    valkey = EmbeddedValkey(DataFolder(run.data), Durability.EVERYSEC)
    valkey.start()
    try:
        with Redis.from_url(valkey.url) as redis:
            return int(redis.llen("given back"))
    finally:
        valkey.stop()


def test_valkey_keeps_its_jobs_and_its_port(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    urls = []
    for _ in range(2):
        valkey = EmbeddedValkey(folder, Durability.ALWAYS)
        valkey.start()
        urls.append(valkey.url)
        with Redis.from_url(valkey.url) as redis:
            config = redis.config_get("append*") | redis.config_get("maxmemory-policy")
            count = redis.incr("runs")
        valkey.stop()

    assert count == 2
    assert urls[0] == urls[1] == folder.redis_url()
    assert config["appendonly"] == "yes"
    assert config["appendfsync"] == "always"
    assert config["maxmemory-policy"] == "noeviction"


def test_a_valkey_left_by_a_killed_run_is_named(tmp_path: Path) -> None:
    leftover = EmbeddedValkey(DataFolder(tmp_path), Durability.EVERYSEC)
    leftover.start()
    try:
        with pytest.raises(FolderInUse, match=r"Valkey \(pid \d+\) of an earlier run still serves .*kill \d+"):
            EmbeddedValkey(DataFolder(tmp_path), Durability.EVERYSEC).start()
    finally:
        leftover.stop()


def test_valkey_that_cannot_start_says_why(tmp_path: Path) -> None:
    aof = tmp_path / "valkey" / "appendonlydir"
    aof.mkdir(parents=True)
    (aof / "appendonly.aof.manifest").write_text("nonsense\n")

    with pytest.raises(UpFailed, match=r"Valkey ended at its start \(exit code 1\): .*valkey.log"):
        EmbeddedValkey(DataFolder(tmp_path), Durability.EVERYSEC).start()


def test_the_secret_is_made_once_and_private(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    first = folder.secret_key()

    assert folder.secret_key() == first
    assert len(first) >= 32
    assert (tmp_path / "secret.key").stat().st_mode & 0o777 == 0o600


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UpFailed, match="cannot use the data folder"), DataFolder(tmp_path / "file").locked():
        pass


@pytest.fixture
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in [name for name in os.environ if name.startswith("GENMILL_")]:
        monkeypatch.delenv(name)
    return monkeypatch


def test_keys_are_off_on_loopback_only_and_the_environment_wins(
    bare_environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = DataFolder(tmp_path)

    assert decide(UpOptions(tmp_path), folder).auth is False
    assert decide(UpOptions(tmp_path, host="0.0.0.0"), folder).auth is True  # noqa: S104 - nothing listens
    bare_environment.setenv("GENMILL_AUTH", "on")
    assert decide(UpOptions(tmp_path), folder).auth is True


def test_options_beat_the_environment_and_outputs_lie_in_the_folder(
    bare_environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bare_environment.setenv("GENMILL_PORT", "9001")
    assert decide(UpOptions(tmp_path), DataFolder(tmp_path)).port == 9001
    assert decide(UpOptions(tmp_path), DataFolder(tmp_path)).workers_per_host is None
    several = decide(UpOptions(tmp_path, workers=3), DataFolder(tmp_path))
    assert child_environment(several)["GENMILL_WORKERS_PER_HOST"] == "3"
    settings = decide(UpOptions(tmp_path, port=9002), DataFolder(tmp_path))

    assert settings.port == 9002
    assert settings.storage_url == f"file://{tmp_path}/outputs"


def test_processes_get_the_decisions_and_rq_the_same_redis() -> None:
    settings = load_settings(redis_url="redis://127.0.0.1:7/0", secret_key="0123456789abcdef", auth=False)
    env = child_environment(settings)

    assert env["GENMILL_AUTH"] == "false"
    assert env["GENMILL_SECRET_KEY"] == "0123456789abcdef"
    assert env["GENMILL_REDIS_URL"] == env["RQ_REDIS_URL"] == "redis://127.0.0.1:7/0"
    assert env["RQ_WORKER_CLASS"] == "worker.BatchWorker"
    assert env["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)


def test_the_procfile_lists_the_four_kinds_of_process() -> None:
    assert list(parse_procfile(find_procfile().read_text()).processes) == ["api", "worker", "callbacks", "scheduler"]


def test_the_greeting_tells_how_to_submit_and_make_keys(tmp_path: Path) -> None:
    text = "\n".join(greeting(load_settings(auth=True, port=9003), DataFolder(tmp_path)))

    assert "http://127.0.0.1:9003/openapi.json" in text
    assert "--url http://127.0.0.1:9003" in text
    assert "genmill keys create" in text


def test_links_that_lead_nowhere_are_warned_of(start: Callable[..., Run]) -> None:
    run = start(GENMILL_HOST=EVERY_ADDRESS)
    run.says(f"genmill listens at http://127.0.0.1:{run.port} ")
    told = run.log.read_text()
    assert told.count(f"warning: links will begin with http://{EVERY_ADDRESS}:{run.port}; set GENMILL_PUBLIC_URL") == 1


def test_the_greeting_names_what_this_machine_can_call(bare_environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = load_settings(host=EVERY_ADDRESS, port=9003)
    assert "--url http://127.0.0.1:9003" in "\n".join(greeting(settings, DataFolder(tmp_path)))

    bare_environment.setenv("GENMILL_PUBLIC_URL", "https://mill.example")
    told = load_settings(host=EVERY_ADDRESS, port=9003)
    assert link_warning(told) == link_warning(load_settings(host="192.0.2.1")) == []
    assert "--url https://mill.example" in "\n".join(greeting(told, DataFolder(tmp_path)))


def test_what_is_wrong_with_the_environment_is_told_before_anything_starts(
    bare_environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bare_environment.setenv("GENMILL_REDIS_URL", f"redis://127.0.0.1:{free_port()}/0")
    with pytest.raises(UpFailed, match=r"GENMILL_REDIS_URL=redis://127\.0\.0\.1:\d+/0 does not answer"):
        run_up(UpOptions(tmp_path / "data"))
    bare_environment.setenv("GENMILL_MODELS", str(tmp_path / "none.toml"))
    with pytest.raises(GenmillError, match=r"none\.toml"):
        run_up(UpOptions(tmp_path / "data"))
    assert not (tmp_path / "data").exists()


def test_an_address_of_another_machine_is_not_called_a_port_in_use() -> None:
    assert "cannot listen on 203.0.113.1" in str(why_not("203.0.113.1", 8091))
    assert why_not("127.0.0.1", free_port()) is None


def test_ports() -> None:
    wanted = free_port()

    assert is_free("127.0.0.1", wanted)
    assert pick_port(wanted) == wanted
