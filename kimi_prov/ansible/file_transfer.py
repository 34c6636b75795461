"""Carries an archive from a machine to a file of this computer, or back; the actions that do.

Decides: what a backup holds, and where it is restored (their way, on the control side).
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase

from kimi_prov.ansible.remote import RemoteError, build_failure, call
from kimi_prov.errors import UserError
from kimi_prov.operate import encryption

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.operate.encryption import Recipients

# Stands for the host's name in the file's.
HOST = "{host}"
# More than any archive has; as a time, the year 4147.
_LARGEST = 1 << 36
_LONGEST = 300


class Carrying(ActionBase):  # type: ignore[misc]
    """The archive goes as a file of the login's user; it is there for as long as it takes.

    Arguments: `work` (backup or restore), `file`; for a restore `source`, where its archive is
    read if not there; for a backup `recipients`, to whom it is encrypted.
    """

    TRANSFERS_FILES = False
    _supports_check_mode = True
    # Of the code on the machine.
    subcommand: str

    def facts(self, told: Mapping[str, Any], file: Path) -> dict[str, Any]:
        """Return what a machine tells of the archive in `file`. Raises RemoteError."""
        raise NotImplementedError

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Write `file` here, or restore it."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        restoring = self._task.args["work"] == "restore"
        if self._task.check_mode:
            return result | {"changed": restoring, "msg": "check mode: nothing is carried"}
        name = str(self._task.args["file"])
        hosts = (task_vars or {}).get("ansible_play_hosts_all") or []
        if len(hosts) > 1 and HOST not in name:
            return result | build_failure(
                f"{name} is one file, and these are {len(hosts)} hosts",
                "name one of them with --limit",
                "bad_input",
            )
        file = Path(name.replace(HOST, str((task_vars or {}).get("inventory_hostname", ""))))
        try:
            told = self._restored(file) if restoring else self._saved(file)
        except UserError as error:
            return result | build_failure(error.message, error.fix, "bad_input")
        except (RemoteError, AnsibleError) as error:
            cause = error if isinstance(error, RemoteError) else str(error)
            return result | build_failure(cause)
        except OSError as error:
            return result | build_failure(f"{file}: {error.strerror}", None, "bad_input")
        finally:
            self._end()
        return result | {
            "changed": restoring,
            "kimi_document": {"ok": True, "detail": "", "file": str(file), **told},
        }

    def _saved(self, file: Path) -> dict[str, Any]:
        """Fetch a fresh archive: it is `file` once it is here whole."""
        chosen = encryption.recipients(self._task.args.get("recipients") or [])
        told = call(self, self.subcommand, "make", "--for", self._login())
        # Only its owner enters the folder, whatever mode the connection writes the file with.
        with tempfile.TemporaryDirectory(dir=file.parent, prefix=f".{file.name}.") as folder:
            part = Path(folder, "archive")
            if chosen is None:
                self._fetch(told, part)
            else:
                self._fetch_encrypted(told, part, chosen)
            part.chmod(0o600)
            _durable(part)
            # A name that has come to be meanwhile is not replaced.
            os.link(part, file)
        _durable(file.parent)
        size = file.stat().st_size
        return {**self.facts(told, file), "sha256": told["sha256"], "bytes": size}

    def _fetch(self, told: Mapping[str, Any], part: Path) -> None:
        self._connection.fetch_file(told["path"], str(part))
        if _sha256(part) != told["sha256"]:
            raise RemoteError("the archive did not come whole", "back up again")

    def _fetch_encrypted(self, told: Mapping[str, Any], part: Path, chosen: Recipients) -> None:
        with tempfile.TemporaryFile(dir=part.parent) as clear, part.open("xb") as encrypted:
            self._fetch(told, encryption.nameless(clear))
            encryption.encrypt(chosen, clear, encrypted)

    def _restored(self, file: Path) -> dict[str, Any]:
        """Bring the archive and have it restored."""
        source = Path(self._task.args.get("source") or file)
        digest = _sha256(source)
        place = call(self, self.subcommand, "receive", "--for", self._login())["path"]
        self._connection.put_file(str(source), place)
        told = call(self, self.subcommand, "restore", digest)
        return {**self.facts(told, file), "sha256": digest, "bytes": file.stat().st_size}

    def _login(self) -> str:
        """Return the number of the user that the connection logs in as."""
        done = self._low_level_execute_command("id -u", sudoable=False)
        number = str(done["stdout"]).strip()
        if done["rc"] != 0 or not number.isdigit():
            raise RemoteError("the number of the login's user could not be read")
        return number

    def _end(self) -> None:
        try:
            call(self, self.subcommand, "end")
        except (RemoteError, AnsibleError):
            # The next one begins with it.
            return


def numbers(told: Mapping[str, Any], *names: str) -> dict[str, int]:
    """Return counts and times that a machine tells. Raises RemoteError for what is none."""
    found = {}
    for name in names:
        value = told.get(name)
        if not isinstance(value, int) or not 0 <= value < _LARGEST:
            raise RemoteError(f"the machine tells no {name} of the archive")
        found[name] = value
    return found


def texts(told: Mapping[str, Any], name: str) -> list[str]:
    """Return a list of texts that a machine tells, each of a length to be shown."""
    values = told.get(name)
    return [str(value)[:_LONGEST] for value in values] if isinstance(values, list) else []


def text(told: Mapping[str, Any], name: str) -> str:
    """Return a text that a machine tells, of a length to be shown."""
    return str(told.get(name))[:_LONGEST]


def page(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a machine tells of what a page keeps."""
    return {
        "version": text(told, "version"),
        **numbers(told, "made_unix", "accounts", "chats", "uploads"),
        "left_out": texts(told, "left_out"),
    }


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _durable(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
