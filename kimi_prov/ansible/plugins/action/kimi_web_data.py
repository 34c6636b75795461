"""Action `kimi_web_data`: fetch an archive of what the page keeps, or bring one and restore it."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase

from kimi_prov.ansible.remote import RemoteError, failure, target

if TYPE_CHECKING:
    from collections.abc import Mapping

# Stands for the host's name in the file's.
HOST = "{host}"
# More than any archive has; as a time, the year 4147.
_LARGEST = 1 << 36
_LONGEST = 300


class ActionModule(ActionBase):  # type: ignore[misc]
    """The archive goes as a file of the login's user; it is there for as long as it takes."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Write `file` here (`work: backup`), or restore it (`work: restore`)."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        restoring = self._task.args["work"] == "restore"
        if self._task.check_mode:
            return result | {"changed": restoring, "msg": "check mode: nothing is carried"}
        name = str(self._task.args["file"])
        hosts = (task_vars or {}).get("ansible_play_hosts_all") or []
        if len(hosts) > 1 and HOST not in name:
            return result | failure(
                f"{name} is one file, and these are {len(hosts)} hosts",
                "name one of them with --limit",
                "bad_input",
            )
        file = Path(name.replace(HOST, str((task_vars or {}).get("inventory_hostname", ""))))
        try:
            told = self._restored(file) if restoring else self._saved(file)
        except (RemoteError, AnsibleError) as error:
            cause = error if isinstance(error, RemoteError) else str(error)
            return result | failure(cause)
        except OSError as error:
            return result | failure(f"{file}: {error.strerror}", None, "bad_input")
        finally:
            self._end()
        return result | {
            "changed": restoring,
            "kimi_document": {"ok": True, "detail": "", "file": str(file), **told},
        }

    def _saved(self, file: Path) -> dict[str, Any]:
        """Fetch a fresh archive: it is `file` once it is here whole."""
        told = target(self, "web-backup", "make", "--for", self._login())
        # Only its owner enters the folder, whatever mode the connection writes the file with.
        with tempfile.TemporaryDirectory(dir=file.parent, prefix=f".{file.name}.") as folder:
            part = Path(folder, "archive")
            self._connection.fetch_file(told["path"], str(part))
            if _sha256(part) != told["sha256"]:
                raise RemoteError("the archive did not come whole", "back up again")
            part.chmod(0o600)
            _durable(part)
            # A name that has come to be meanwhile is not replaced.
            os.link(part, file)
        _durable(file.parent)
        return {**_facts(told), "sha256": told["sha256"], "bytes": file.stat().st_size}

    def _restored(self, file: Path) -> dict[str, Any]:
        """Bring the archive and have it restored."""
        digest = _sha256(file)
        place = target(self, "web-backup", "receive", "--for", self._login())["path"]
        self._connection.put_file(str(file), place)
        told = target(self, "web-backup", "restore", digest)
        return {**_facts(told), "sha256": digest, "bytes": file.stat().st_size}

    def _login(self) -> str:
        """Return the number of the user that the connection logs in as."""
        done = self._low_level_execute_command("id -u", sudoable=False)
        number = str(done["stdout"]).strip()
        if done["rc"] != 0 or not number.isdigit():
            raise RemoteError("the number of the login's user could not be read")
        return number

    def _end(self) -> None:
        try:
            target(self, "web-backup", "end")
        except (RemoteError, AnsibleError):
            # The next one begins with it.
            return


def _facts(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a machine tells of an archive, where it is of that form."""
    found: dict[str, Any] = {"version": str(told.get("version"))[:_LONGEST]}
    for name in ("made_unix", "accounts", "chats", "uploads"):
        value = told.get(name)
        if not isinstance(value, int) or not 0 <= value < _LARGEST:
            raise RemoteError(f"the machine tells no {name} of the archive")
        found[name] = value
    names = told.get("left_out")
    found["left_out"] = [str(name)[:_LONGEST] for name in names] if isinstance(names, list) else []
    return found


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _durable(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
