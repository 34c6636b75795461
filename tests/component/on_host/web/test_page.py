"""The page's start, change and way back, with systemd's part played by a record of its calls."""

from __future__ import annotations

import getpass
import json
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest

from kimi_prov.contract import paths as layout
from kimi_prov.contract.errors import HostError
from kimi_prov.contract.paths import WEB_ENVS, Paths
from kimi_prov.on_host.web import backup, converge
from kimi_prov.packaging.zipapp import build_zipapp

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

UNIT = "[Service]\nExecStart=/srv/kimi/web-env/current/bin/open-webui serve\n"


class Machine:
    """Starts the environment that the link names; one called bad breaks the database and ends."""

    def __init__(self, root: Path) -> None:
        self.paths = Paths(root)
        self.calls: list[str] = []
        self.active = False
        self.restarts = 0
        self.stamp = ""
        self.admin: dict[str, str] = {}
        for folder in (self.paths.keys, self.paths.units, self.paths.state):
            folder.mkdir(parents=True)
        self.paths.web_key.write_text("sk-kimi-page\n")
        self.data = root / "srv/kimi/web"

    def plan(self, env_name: str) -> dict[str, Any]:
        (self.paths.locate(WEB_ENVS) / env_name / "bin").mkdir(parents=True, exist_ok=True)
        return {
            "version": env_name.rpartition("-")[0],
            "env_name": env_name,
            "backend_port": 8002,
            "data": "/srv/kimi/web",
            "user": getpass.getuser(),
        }

    def show(self, *names: str) -> dict[str, Any]:
        loaded = (self.paths.units / names[0]).exists()
        return {
            names[0]: {
                "state": "active" if self.active else "inactive",
                "enabled": loaded,
                "stale": False,
                "main_pid": 1,
                "restarts": self.restarts,
                "load_state": "loaded" if loaded else "not-found",
            }
        }

    def systemctl(self, verb: str, *_names: str) -> None:
        self.calls.append(verb)
        if verb == "start":
            self._start()
        elif verb in ("stop", "disable"):
            self.active = False

    def _start(self) -> None:
        env = self.paths.web_env.resolve().name
        variables = converge.parse_environment(self.paths.web_secrets.read_text())
        self.stamp = variables["KIMI_STAMP"]
        if self.paths.web_admin.exists():
            self.admin = converge.parse_environment(self.paths.web_admin.read_text())
        database = self.data / "webui.db"
        if "bad" in env:
            database.write_bytes(b"migrated into what the older one does not read")
            self.restarts = 1
            self.active = False
            return
        if not database.exists():
            with sqlite3.connect(database) as made:
                for table in ("user", "auth", "chat"):
                    made.execute(f"create table {table} (text)")
                made.execute("insert into chat values ('answered')")
            made.close()
        self.active, self.restarts = True, 0

    def chats(self) -> list[str]:
        with sqlite3.connect(self.data / "webui.db") as database:
            found = [text for (text,) in database.execute("select text from chat")]
        database.close()
        return found


@pytest.fixture(scope="module")
def zipapp(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build_zipapp(tmp_path_factory.mktemp("lib") / "kimi-target.pyz"))


@pytest.fixture
def machine(tmp_path: Path, zipapp: str, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(layout, "ZIPAPP", zipapp)
    made = Machine(tmp_path)
    monkeypatch.setattr(converge.units, "read_states", made.show)
    monkeypatch.setattr(converge.units, "run_systemctl", made.systemctl)
    monkeypatch.setattr(converge.units, "read_journal", lambda *_: ["ImportError: no such module"])
    monkeypatch.setattr(backup, "is_answering", lambda _port: made.active)
    monkeypatch.setattr(converge.started, "read_running_digest", lambda *_: made.stamp)
    return made


@pytest.fixture
def ensure(machine: Machine) -> Callable[..., dict[str, Any]]:
    def run(env_name: str, *, unit: str = UNIT, check: bool = False, **admin: str) -> Any:
        wanted = converge.WebUi(machine.paths, machine.plan(env_name), unit, 0.0)
        return wanted.ensure(admin or None, check=check)

    return run


def test_it_starts_once_and_is_left_alone_then(machine: Machine, ensure: Any) -> None:
    assert ensure("1.0-a")["changed"]
    machine.calls.clear()
    assert not ensure("1.0-a")["changed"]
    assert machine.calls == []
    assert machine.paths.web_secrets.stat().st_mode & 0o777 == 0o600
    assert machine.data.stat().st_mode & 0o777 == 0o700


def test_a_check_changes_nothing(machine: Machine, ensure: Any) -> None:
    assert ensure("1.0-a", check=True)["changed"]
    assert machine.calls == []
    assert not machine.paths.web_secrets.exists()
    assert not machine.data.exists()


def test_the_administrator_is_made_once_and_the_password_is_kept_nowhere(
    machine: Machine, ensure: Any
) -> None:
    ensure("1.0-a", email="a@example.com", password='p"$ \\x')
    assert machine.admin["WEBUI_ADMIN_EMAIL"] == '"a@example.com"'
    assert machine.admin["WEBUI_ADMIN_PASSWORD"] == '"p\\"\\$ \\\\x"'
    assert not machine.paths.web_admin.exists()
    assert not machine.paths.web_admin_new.exists()
    machine.admin = {}
    ensure("1.0-a", unit=UNIT + "#\n", email="a@example.com", password="another")
    assert machine.admin == {}


def test_a_password_is_made_where_none_is_given_and_waits_to_be_shown(
    machine: Machine, ensure: Any
) -> None:
    ensure("1.0-a")
    shown = json.loads(machine.paths.web_admin_new.read_text())
    assert machine.admin["WEBUI_ADMIN_PASSWORD"] == f'"{shown["password"]}"'
    assert machine.paths.web_admin_new.stat().st_mode & 0o777 == 0o600
    assert len(shown["password"]) >= 20


def test_another_key_starts_it_again_and_sessions_last(machine: Machine, ensure: Any) -> None:
    ensure("1.0-a")
    before = converge.parse_environment(machine.paths.web_secrets.read_text())
    machine.paths.web_key.write_text("sk-kimi-other\n")
    assert ensure("1.0-a")["changed"]
    after = converge.parse_environment(machine.paths.web_secrets.read_text())
    assert after["OPENAI_API_KEY"] == "sk-kimi-other"
    assert after["WEBUI_SECRET_KEY"] == before["WEBUI_SECRET_KEY"]


def test_a_new_version_takes_over(machine: Machine, ensure: Any) -> None:
    ensure("1.0-a")
    ensure("2.0-b")
    assert machine.paths.web_env.resolve().name == "2.0-b"
    assert not machine.paths.web_before.exists()


def test_one_version_stays_beside_the_one_in_use(machine: Machine, ensure: Any) -> None:
    for env_name in ("1.0-a", "2.0-b", "3.0-c"):
        ensure(env_name)
    ensure("3.0-c")
    there = {path.name for path in machine.paths.locate(WEB_ENVS).iterdir()}
    assert there == {"current", "2.0-b", "3.0-c"}


def test_a_version_that_does_not_answer_goes_back_with_the_database(
    machine: Machine, ensure: Any
) -> None:
    ensure("1.0-a")
    with pytest.raises(HostError, match=r"2\.0.* did not answer: ImportError.*rolled back to 1\.0"):
        ensure("2.0-bad", unit=UNIT + "# of 2.0\n")
    assert machine.active
    assert machine.paths.web_env.resolve().name == "1.0-a"
    assert (machine.paths.units / "kimi-web.service").read_text() == UNIT
    assert machine.chats() == ["answered"]
    # What is planned is tried again, and what runs is not taken for it.
    with pytest.raises(HostError, match=r"rolled back to 1\.0"):
        ensure("2.0-bad", unit=UNIT + "# of 2.0\n")
    assert machine.chats() == ["answered"]
    # What failed is not kept, and what runs is left alone.
    assert ensure("1.0-a")["changes"] == ["/srv/kimi/web-env/2.0-bad is removed: nothing uses it"]
    assert ensure("1.0-a")["changed"] is False


def test_a_database_that_a_killed_run_kept_is_not_lost(machine: Machine, ensure: Any) -> None:
    ensure("1.0-a")
    machine.plan("2.0-bad")
    # Killed after the new version was started, which has changed the database.
    wanted = converge.WebUi(machine.paths, machine.plan("2.0-bad"), UNIT, 0.0)
    wanted._stop()
    wanted._keep_database({"env": "1.0-a", "unit": UNIT})
    wanted._start(UNIT, "2.0-bad")
    with pytest.raises(HostError, match="rolled back to"):
        ensure("2.0-bad")
    assert machine.chats() == ["answered"]
    assert not machine.paths.web_before.exists()


def test_a_copy_that_a_killed_run_kept_is_not_put_over_what_was_said_since(
    machine: Machine, ensure: Any
) -> None:
    ensure("1.0-a")
    # Killed before the new version was started; the one from before came back with the machine.
    wanted = converge.WebUi(machine.paths, machine.plan("2.0-bad"), UNIT, 0.0)
    wanted._stop()
    wanted._keep_database({"env": "1.0-a", "unit": UNIT})
    machine.systemctl("start")
    with sqlite3.connect(machine.data / "webui.db") as database:
        database.execute("insert into chat values ('since')")
    database.close()
    with pytest.raises(HostError, match=r"rolled back to 1\.0"):
        ensure("2.0-bad")
    assert machine.chats() == ["answered", "since"]


def test_a_copy_that_cannot_be_put_back_is_kept_and_named(
    machine: Machine, ensure: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure("1.0-a")
    real = backup.run_in_folder

    def full(web: Any, action: str, descriptor: int = 0) -> Any:
        if action == "take":
            raise HostError("No space left on device")
        return real(web, action, descriptor)

    monkeypatch.setattr(backup, "run_in_folder", full)
    with pytest.raises(HostError, match=r"ImportError.*web-before\.db, could not be restored"):
        ensure("2.0-bad")
    monkeypatch.undo()
    assert machine.paths.web_before.exists()


def test_what_answers_since_a_killed_run_is_what_one_goes_back_to(
    machine: Machine, ensure: Any
) -> None:
    ensure("1.0-a")
    wanted = converge.WebUi(machine.paths, machine.plan("2.0-b"), UNIT, 0.0)
    wanted._stop()
    wanted._keep_database({"env": "1.0-a", "unit": UNIT})
    wanted._start(UNIT, "2.0-b")
    with sqlite3.connect(machine.data / "webui.db") as database:
        database.execute("insert into chat values ('since')")
    database.close()
    with pytest.raises(HostError, match=r"rolled back to 2\.0"):
        ensure("3.0-bad")
    assert machine.chats() == ["answered", "since"]


def test_without_room_for_the_copy_the_page_runs_as_before(
    machine: Machine, ensure: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure("1.0-a")

    def full(*_: object) -> None:
        raise HostError("No space left on device")

    monkeypatch.setattr(backup, "run_in_folder", full)
    with pytest.raises(HostError, match="No space left on device; the web UI runs as before"):
        ensure("2.0-b")
    assert machine.active
    assert machine.paths.web_env.resolve().name == "1.0-a"


def test_a_first_version_that_does_not_answer_says_why(machine: Machine, ensure: Any) -> None:
    with pytest.raises(HostError, match="did not answer: ImportError"):
        ensure("1.0-bad")
    assert machine.paths.web_admin.exists()


def test_no_link_is_followed_out_of_the_data(machine: Machine, ensure: Any) -> None:
    ensure("1.0-a")
    outside = machine.paths.root / "outside"
    outside.write_text("secret")
    (machine.data / "webui.db-wal").symlink_to(outside)
    with pytest.raises(HostError):
        ensure("2.0-bad")
    assert outside.read_text() == "secret"


def test_a_page_that_is_planned_no_more_goes_and_its_data_stay(
    machine: Machine, ensure: Any
) -> None:
    ensure("1.0-a")
    assert converge.remove_web_ui(machine.paths, check=True)["changed"]
    assert machine.active
    assert converge.remove_web_ui(machine.paths, check=False)["changed"]
    assert not (machine.paths.units / "kimi-web.service").exists()
    assert machine.chats() == ["answered"]
    assert not converge.remove_web_ui(machine.paths, check=False)["changed"]


def test_a_password_that_nobody_has_seen_outlives_a_page_that_is_switched_off(
    machine: Machine, ensure: Any
) -> None:
    ensure("1.0-a")
    made = machine.paths.web_admin_new.read_text()
    converge.remove_web_ui(machine.paths, check=False)
    ensure("1.0-a")
    assert machine.paths.web_admin_new.read_text() == made
    assert machine.chats() == ["answered"]


def test_a_page_that_was_switched_off_has_a_way_back_when_it_comes_again_newer(
    machine: Machine, ensure: Any
) -> None:
    ensure("1.0-a")
    converge.remove_web_ui(machine.paths, check=False)
    with pytest.raises(HostError, match=r"2\.0.* did not answer: ImportError.*rolled back to 1\.0"):
        ensure("2.0-bad")
    assert machine.active
    assert machine.chats() == ["answered"]


def test_a_removal_that_was_killed_is_completed(
    machine: Machine, ensure: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure("1.0-a")
    real = converge.remove

    def killed(path: str) -> None:
        if path == str(machine.paths.web_secrets):
            raise KeyboardInterrupt
        real(path)

    with monkeypatch.context() as patch:
        patch.setattr(converge, "remove", killed)
        with pytest.raises(KeyboardInterrupt):
            converge.remove_web_ui(machine.paths, check=False)
    assert converge.remove_web_ui(machine.paths, check=False)["changed"]
    assert not machine.paths.web_secrets.exists()


def test_an_administrator_that_is_given_takes_the_place_of_a_password_that_was_made(
    machine: Machine, ensure: Any
) -> None:
    with pytest.raises(HostError):
        ensure("1.0-bad")
    (machine.data / "webui.db").unlink()
    assert machine.paths.web_admin_new.exists()
    ensure("1.0-a", email="a@example.com", password="given-by-hand")
    assert machine.admin["WEBUI_ADMIN_PASSWORD"] == '"given-by-hand"'
    assert not machine.paths.web_admin_new.exists(), "it would be shown, and opens nothing"
