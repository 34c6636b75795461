"""`web-backup`: an archive of the web UI's data, made while it runs, and restored.

    web-backup make --for UID        an archive that this user may fetch
    web-backup receive --for UID     an empty folder that this user may write one to
    web-backup restore SHA256        replace the web UI's data by the archive there
    web-backup end                   remove the archive

Root stays out of the web UI's folder, where the web UI could redirect it by a link: `store` works
there, as the web UI's user.

Decides: what of the web UI is backed up, and how it is restored (as root).
Applied by: playbooks/web.yml.
Held by: tests/component/on_host/web/test_store.py, tests/component/on_host/web/test_backup.py,
  tests/lab/test_web_page.py.
"""

from __future__ import annotations

import http.client
import json
import os
import pwd
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import gateways
from kimi_prov.contract import paths as layout
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.system import plans, transfer, units
from kimi_prov.on_host.system.files import sync_directory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kimi_prov.contract.documents.plan.service import WebUiPlan
    from kimi_prov.contract.paths import Paths

# A web UI that migrates an old archive on a busy machine takes minutes.
START_S = 600.0
_ASK_S = 5.0
_POLL_INTERVAL_S = 0.5
# Every digit of the version but the last decides whether an archive is newer.
Version = tuple[int, ...]


def copy_database(web: Mapping[str, Any], to: Path) -> bool:
    """Write a consistent copy of the database to `to`, for root alone; the web UI may run.

    Returns False where there is none yet.
    """
    descriptor, part = tempfile.mkstemp(dir=str(to.parent), prefix=f".{to.name}.")
    try:
        told = run_in_folder(web, "copy", descriptor)
        if not told["there"]:
            return False
        os.replace(part, str(to))
        sync_directory(str(to.parent))
        return True
    finally:
        os.close(descriptor)
        Path(part).unlink(missing_ok=True)


def restore_database(web: Mapping[str, Any], copy: Path) -> None:
    """Replace the web UI's database by a copy, in one step; the web UI must not run."""
    with copy.open("rb") as stream:
        run_in_folder(web, "take", stream.fileno())


def run_in_folder(web: Mapping[str, Any], action: str, descriptor: int = 0) -> dict[str, Any]:
    """Run an action of `store` as the web UI's user; `descriptor` is the file read or written."""
    command = [*_build_program(), "web-data", action, web["data"], web["version"], str(descriptor)]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        pass_fds=[descriptor] if descriptor else [],
        cwd="/",
        env={"LC_ALL": "C.UTF-8", "PATH": os.environ.get("PATH", os.defpath)},
        check=False,
        **_build_identity(web["user"]),
    )
    lines = done.stdout.strip().splitlines()
    try:
        told = json.loads(lines[-1]) if lines else None
    except ValueError:
        told = None
    if not isinstance(told, dict):
        said = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        raise HostError(f"the action in the web UI's folder {web['data']} failed: {said}")
    error = HostError.from_answer(told)
    if error is not None:
        raise error
    return told


def _build_program() -> Sequence[str]:
    return (sys.executable or "/usr/bin/python3", "-I", layout.ZIPAPP)


def _build_identity(user: str) -> dict[str, Any]:
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise HostError(
            f"there is no user {user} on the machine: its web UI was never installed",
            "run `kimi-prov apply` first",
        ) from None
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def read_planned(paths: Paths) -> WebUiPlan:
    """Return the plan's `web`; raises HostError where no web UI is planned."""
    plan = plans.read_plan(paths.plan)
    web, first = plan.get("web"), gateways.find_key_gateway(plan)
    if not isinstance(web, dict) and first:
        raise gateways.make_first_gateway_error(first, "the web UI is")
    if not isinstance(web, dict):
        raise HostError(
            "there is no web UI on this machine", "set kimi_web_ui: true and run `kimi-prov apply`"
        )
    return web


def make_archive(paths: Paths, reader: int) -> dict[str, Any]:
    """Make an archive that the user `reader` may fetch; return its path and its contents."""
    web = read_planned(paths)
    return transfer.make_archive(
        paths, reader, lambda descriptor: run_in_folder(web, "save", descriptor)
    )


def prepare_folder(paths: Paths, writer: int) -> dict[str, Any]:
    """Make an empty folder into which the user `writer` may put an archive."""
    read_planned(paths)
    return transfer.prepare_folder(paths, writer)


def restore(paths: Paths, sha256: str) -> dict[str, Any]:
    """Replace the web UI's data by the archive that came.

    Raises HostError as `stage` and `switch` do.
    """
    web = read_planned(paths)
    with transfer.open_received(paths, sha256) as descriptor:
        told = stage(web, descriptor)
    switch(web)
    return told


def stage(web: Mapping[str, Any], descriptor: int) -> dict[str, Any]:
    """Unpack an archive beside the web UI's data, and return its contents.

    Raises HostError for an archive that does not fit, and leaves nothing of it.
    """
    told = run_in_folder(web, "stage", descriptor)
    try:
        require_not_newer(str(told["version"]), web["version"])
    except HostError:
        run_in_folder(web, "go-back")
        raise
    return told


def switch(web: Mapping[str, Any]) -> None:
    """Replace the web UI's data by what was staged.

    The web UI is stopped for the switch alone. Where it does not answer with the restored data, it
    gets its own data again, and HostError is raised.
    """
    units.run_systemctl("stop", web["unit"])
    try:
        run_in_folder(web, "switch")
        _start(web)
    except HostError as error:
        _give_back(web, error)
    run_in_folder(web, "finish")


def _start(web: Mapping[str, Any]) -> None:
    units.control("start", web["unit"])
    cause = wait_ready(web["unit"], int(web["backend_port"]), START_S)
    if cause:
        raise HostError(cause)


def _give_back(web: Mapping[str, Any], error: HostError) -> None:
    """Give the web UI its own data again and report it; raises in any case."""
    log = f"read its journal: journalctl -u {web['unit']}"
    units.run_systemctl("stop", web["unit"])
    run_in_folder(web, "go-back")
    try:
        _start(web)
    except HostError as again:
        raise HostError(
            f"the web UI did not start with what was restored: {error.message}; it "
            f"does not start with its own either, which is back: {again.message}",
            log,
        ) from error
    raise HostError(
        f"the web UI did not start with what was restored: {error.message}; it runs with its own "
        "again",
        log,
    ) from error


def wait_ready(unit: str, port: int, seconds: float) -> str:
    """Wait until the web UI answers, its database included; else return why it does not.

    If it ended and systemd starts it again, this gives up.
    """
    until = time.monotonic() + seconds
    while not is_answering(port):
        state = units.read_states(unit).get(unit, {})
        lost = state.get("restarts", 0) > 0 or state.get("state") == "failed"
        if lost or time.monotonic() > until:
            line = units.explain_failure(unit, units.read_journal(unit)).reason
            return line if lost else f"no answer after {seconds:.0f} s; {line}"
        time.sleep(_POLL_INTERVAL_S)
    return ""


def is_answering(port: int) -> bool:
    """Return whether the web UI answers, its database included."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_ASK_S)
    try:
        connection.request("GET", "/ready")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def require_not_newer(archived: str, installed: str) -> None:
    """Raise HostError for an archive of a newer web UI: an older one cannot read its database.

    The web UI itself migrates an older archive when it starts.
    """
    old, new = _parse_version(archived), _parse_version(installed)
    if old is None or new is None or old > new:
        raise HostError(
            f"the archive is of version {archived[:80]} of the web UI, and this machine has "
            f"{installed}",
            "use a version of kimi-prov that has that version: run its apply, then restore again",
        )


def _parse_version(text: str) -> Version | None:
    parts = text.split(".")
    whole = len(parts) <= 4 and all(part.isascii() and part.isdigit() for part in parts)
    return tuple(int(part) for part in parts) if whole and len(text) < 40 else None


def main(argv: list[str]) -> int:
    """Run one of the four actions; print JSON."""
    return transfer.run_command(
        "web-backup", transfer.Steps(make_archive, prepare_folder, restore), argv
    )
