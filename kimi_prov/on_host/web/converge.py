"""`web-ensure` runs the planned web UI, and rolls back if it does not answer.

The running process is compared with the plan: it carries a config digest of its unit, secrets and
environment, so a run that was killed is completed by the next apply. Before a change the database
is copied; a web UI that does not answer is rolled back with its unit, environment and database.
Root reads and writes nothing in the web UI's folder: `backup` does that as the web UI's user.

Decides: the web UI: its ports and variables (its start, and the way back).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import sys
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import unit_names
from kimi_prov.contract.errors import HostError, describe_error
from kimi_prov.contract.paths import WEB_ADMIN_NEW, WEB_ENVS, WEB_USER, Paths
from kimi_prov.contract.unit_comparison import DIGEST_VARIABLE
from kimi_prov.on_host.system import kept_state, started, units
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.files import (
    find_owner_ids,
    make_directory,
    read_json,
    read_text,
    remove,
    write_atomic,
)
from kimi_prov.on_host.web import backup
from kimi_prov.on_host.web.store import DATABASE

if TYPE_CHECKING:
    from kimi_prov.contract.documents.answers import WebUiAnswer
    from kimi_prov.contract.documents.plan.service import WebUiPlan

_ADMIN = "admin@kimi.local"


def main(argv: list[str]) -> int:
    """Read {"web": PLAN or null, "unit": TEXT, "admin": {...} or null, "timeout_s": N}.

    `web-ensure [--check]`; the answer is {"changed", "did", "changes"} and has no secret.
    """
    wanted = json.load(sys.stdin)
    check = "--check" in argv
    paths = Paths()
    if wanted["web"] is None:
        return answer({"ok": True, **remove_web_ui(paths, check=check)})
    page = WebUi(paths, wanted["web"], wanted["unit"], float(wanted["timeout_s"]))
    return answer({"ok": True, **page.ensure(wanted.get("admin"), check=check)})


def remove_web_ui(paths: Paths, *, check: bool) -> WebUiAnswer:
    """Remove the unit; keep the accounts' data and the record of the last working version."""
    unit = paths.units / unit_names.WEB
    if not unit.exists():
        return {"changed": False, "did": "nothing", "changes": []}
    if not check:
        units.run_systemctl("disable", "--now", unit_names.WEB)
        # The unit is removed last, so a run that is killed before is completed by the next. A
        # password that was not shown yet stays, as its account does.
        for path in (paths.web_secrets, paths.web_admin, paths.web_before, unit):
            remove(str(path))
        units.run_systemctl("daemon-reload")
    return {
        "changed": True,
        "did": "remove",
        "changes": [f"{unit_names.WEB} is removed: it is no longer planned"],
    }


class WebUi:
    """The web UI as it is planned, and as it is on the machine."""

    def __init__(self, paths: Paths, plan: WebUiPlan, unit: str, timeout_s: float) -> None:
        self.paths = paths
        self.plan = plan
        self.unit = unit
        self.timeout_s = timeout_s
        self.data = paths.locate(plan["data"])
        self.unit_file = paths.units / unit_names.WEB

    def ensure(self, admin: dict[str, str] | None, *, check: bool) -> WebUiAnswer:
        """Make it run as planned; raises HostError where it does not answer."""
        text = self._secrets()
        wanted = compute_digest(self.unit, text, self.plan["env_name"])
        state = units.read_states(unit_names.WEB).get(unit_names.WEB, {})
        runs = state.get("state") == "active" and self._running(state) == wanted
        if runs and state.get("enabled") and not state.get("stale") and self._answers():
            gone = self._settle(check=check)
            changes = [f"{WEB_ENVS}/{name} is removed: nothing uses it" for name in gone]
            return {"changed": bool(gone), "did": "nothing", "changes": changes}
        if check:
            return {
                "changed": True,
                "did": "start",
                "changes": [f"{unit_names.WEB} starts with {self.plan['version']}"],
            }
        self._own_directory()
        write_atomic(self.paths.web_secrets, f"{text}{DIGEST_VARIABLE}={wanted}\n", 0o600)
        self._first_administrator(admin)
        self._adopt(state)
        before = self._before()
        self._stop()
        if before is not None and before["env"] != self.plan["env_name"]:
            self._keep_database(before)
        self._start(self.unit, self.plan["env_name"])
        cause = self._wait()
        if cause:
            self._go_back(before, cause)
        self._settle(check=False)
        return {
            "changed": True,
            "did": "start",
            "changes": [f"{unit_names.WEB} runs {self.plan['version']}"],
        }

    def _secrets(self) -> str:
        """Return the secrets with which it starts; the secret that signs sessions is kept."""
        kept = parse_environment(read_text(self.paths.web_secrets))
        own = kept.get("WEBUI_SECRET_KEY") or secrets.token_urlsafe(32)
        key = read_text(self.paths.web_key).strip()
        return f"OPENAI_API_KEY={key}\nWEBUI_SECRET_KEY={own}\n"

    def _running(self, state: dict[str, Any]) -> str:
        places = started.UnitPaths(str(self.paths.root))
        return started.read_running_digest(str(state.get("main_pid", 0)), places) or ""

    def _own_directory(self) -> None:
        """Give its data folder to its user alone; data that `destroy` kept belongs to root."""
        self.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        state, owner = self.data.stat(), find_owner_ids(WEB_USER, WEB_USER)
        if os.geteuid() == 0 and (state.st_uid, state.st_gid) != owner:
            for folder, names, files in os.walk(str(self.data)):
                for name in (*names, *files):
                    os.chown(os.path.join(folder, name), *owner, follow_symlinks=False)
            os.chown(str(self.data), *owner)
        self.data.chmod(0o700)

    def _first_administrator(self, given: dict[str, str] | None) -> None:
        """Write the first administrator's name and password, where there is no account yet."""
        started_before = (self.data / DATABASE).exists()
        if started_before and not self.paths.web_admin.exists():
            return
        if given is not None and not started_before:
            # The password of an earlier run is not valid any more.
            remove(str(self.paths.web_admin_new))
        if given is None:
            made = kept_state.read(self.paths, WEB_ADMIN_NEW)
            given = made or {"email": _ADMIN, "password": secrets.token_urlsafe(15)}
            if not made:
                text = json.dumps(given) + "\n"
                write_atomic(self.paths.web_admin_new, text, 0o600)
        lines = {
            "WEBUI_ADMIN_EMAIL": given["email"],
            "WEBUI_ADMIN_PASSWORD": given["password"],
        }
        text = "".join(f"{name}={quote_value(value)}\n" for name, value in lines.items())
        write_atomic(self.paths.web_admin, text, 0o600)

    def _adopt(self, state: dict[str, Any]) -> None:
        """Record the version that answers as the one to roll back to, if a killed run did not."""
        link, kept = self.paths.web_env, read_json(self.paths.web_state)
        env_name = os.readlink(str(link)) if link.is_symlink() else ""
        if not env_name:
            return
        if env_name != kept.get("env"):
            if state.get("state") != "active" or not self._answers():
                return
            self._remember({"env": env_name, "unit": read_text(self.unit_file)})
        # The copy of a killed run is older than what the web UI has stored since.
        remove(str(self.paths.web_before))

    def _keep_database(self, before: dict[str, str]) -> None:
        """Copy the database of a stopped web UI, unless a killed run has copied it already.

        Uploads are only added to: they need no copy.
        """
        if self.paths.web_before.exists():
            return
        try:
            backup.copy_database(self._web(), self.paths.web_before)
        except (HostError, OSError) as error:
            self._start(before["unit"], before["env"])
            raise HostError(
                f"the web UI's database was not copied to {self.paths.web_before}: "
                f"{describe_error(error)}; the web UI runs as before",
                "free disk space there, and run `kimi-prov apply` again",
            ) from None

    def _web(self) -> dict[str, Any]:
        return {**self.plan, "data": str(self.data)}

    def _before(self) -> dict[str, str] | None:
        """Return the web UI that answered last: its unit and its environment."""
        kept = read_json(self.paths.web_state)
        name = str(kept.get("env", ""))
        there = (self.paths.locate(WEB_ENVS) / name / "bin").is_dir()
        return {"env": name, "unit": str(kept.get("unit", ""))} if name and there else None

    def _stop(self) -> None:
        if units.read_states(unit_names.WEB).get(unit_names.WEB, {}).get("load_state") == "loaded":
            units.run_systemctl("stop", unit_names.WEB)

    def _restore_database(self, cause: str) -> None:
        """Restore the copied database in place of what a failed version made of it."""
        kept = self.paths.web_before
        if not kept.exists():
            return
        try:
            backup.restore_database(self._web(), kept)
        except (HostError, OSError) as error:
            version = self.plan["version"]
            raise HostError(
                f"{unit_names.WEB} ({version}) did not answer: {cause}; it is stopped: its "
                f"database from before, {kept}, could not be restored: {describe_error(error)}",
                "free disk space there, and run `kimi-prov apply` again",
            ) from None

    def _start(self, unit: str, env_name: str) -> None:
        link = self.paths.web_env
        fresh = link.with_name(f".{link.name}.new")
        remove(str(fresh))
        fresh.symlink_to(env_name)
        os.replace(str(fresh), str(link))
        write_atomic(self.unit_file, unit, 0o644)
        units.run_systemctl("daemon-reload")
        units.run_systemctl("enable", "--quiet", unit_names.WEB)
        # Failures of an earlier start do not count to this one.
        with contextlib.suppress(HostError):
            units.run_systemctl("reset-failed", unit_names.WEB)
        # Where the start itself fails, the wait below reports it.
        with contextlib.suppress(HostError):
            units.run_systemctl("start", unit_names.WEB)

    def _wait(self) -> str:
        """Wait until it answers; else return why it does not."""
        return backup.wait_ready(unit_names.WEB, self.plan["backend_port"], self.timeout_s)

    def _answers(self) -> bool:
        return backup.is_answering(self.plan["backend_port"])

    def _go_back(self, before: dict[str, str] | None, cause: str) -> None:
        """Start the web UI that answered last again, with its database; raises in any case."""
        version = self.plan["version"]
        log = f"read its journal (journalctl -u {unit_names.WEB}), and run `kimi-prov apply` again"
        if before is None:
            raise HostError(f"{unit_names.WEB} ({version}) did not answer: {cause}", log)
        self._stop()
        if before["env"] != self.plan["env_name"]:
            self._restore_database(cause)
        # Its digest differs from the planned one, so that the next apply tries the planned one
        # again.
        text = self._secrets()
        old = compute_digest(before["unit"], text, before["env"])
        write_atomic(self.paths.web_secrets, f"{text}{DIGEST_VARIABLE}={old}\n", 0o600)
        self._start(before["unit"], before["env"])
        again = self._wait()
        shown = before["env"].rpartition("-")[0]
        if again:
            raise HostError(
                f"{unit_names.WEB} ({version}) did not answer: {cause}; {shown} from before "
                f"does not answer either: {again}",
                log,
            )
        remove(str(self.paths.web_before))
        raise HostError(
            f"{unit_names.WEB} ({version}) did not answer: {cause}; rolled back to {shown}, with "
            "its settings and its data from before",
            log,
        )

    def _remember(self, state: dict[str, Any]) -> None:
        make_directory(self.paths.state, 0o700)
        write_atomic(self.paths.web_state, json.dumps(state) + "\n", 0o600)

    def _settle(self, *, check: bool) -> list[str]:
        """Record the web UI that answers, and remove what only its start needed.

        Returns the environments that nothing uses, which are removed.
        """
        kept, name = read_json(self.paths.web_state), self.plan["env_name"]
        # One version stays beside the one in use: a rollback then needs no installation.
        former = kept.get("env") if kept.get("env") != name else kept.get("former")
        state = {"env": name, "unit": self.unit, "former": former}
        unused = [
            path
            for path in self.paths.locate(WEB_ENVS).iterdir()
            if path.is_dir() and not path.is_symlink() and path.name not in (name, former)
        ]
        if not check and (kept != state or unused or self.paths.web_admin.exists()):
            for path in unused:
                shutil.rmtree(str(path))
            self._remember(state)
            remove(str(self.paths.web_admin))
        if not check:
            remove(str(self.paths.web_before))
        return sorted(path.name for path in unused)


def compute_digest(unit: str, text: str, env_name: str) -> str:
    """Return the config digest of what a process depends on."""
    whole = "\0".join((unit, text, env_name))
    return hashlib.sha256(whole.encode()).hexdigest()[:16]


def parse_environment(text: str) -> dict[str, str]:
    """Parse lines NAME=VALUE of our own files."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {name: value for name, sign, value in pairs if sign}


def quote_value(value: str) -> str:
    """Return a value as an environment file of systemd takes it, whatever characters it has."""
    escaped = re.sub(r'(["\\$`])', r"\\\1", value)
    return f'"{escaped}"'
