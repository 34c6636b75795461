"""Transfer an archive from a machine to a file of this computer, or back.

Decides: what a backup holds, and where it is restored (its way, on the control side).
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleError

from kimi_prov.ansible.host_action import HostAction
from kimi_prov.ansible.remote import RemoteError, build_failure, call
from kimi_prov.errors import UserError
from kimi_prov.operate import encryption

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.answers import ArchiveAnswer
    from kimi_prov.operate.encryption import Recipients

# The options of the actions' DOCUMENTATION.
# Placeholder for the host's name in the name of the file.
HOST = "{host}"
# Larger than any count of an archive; as a time, the year 4147.
_MAX_NUMBER = 1 << 36
_MAX_LENGTH = 300


class FileTransfer(HostAction):
    """On the machine the archive is a temporary file of the login's user."""

    # The subcommand of the code on the machine.
    subcommand: str

    def read_contents(self, contents: Mapping[str, Any], file: Path) -> dict[str, Any]:
        """Return a machine's description of the archive in `file`. Raises RemoteError."""
        raise NotImplementedError

    def act(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Fetch the archive into the file, or restore it."""
        restoring = args["work"] == "restore"
        if self.check_mode:
            return {"changed": restoring, "msg": "check mode: nothing is transferred"}
        hosts = self.variables.get("ansible_play_hosts_all") or []
        if len(hosts) > 1 and HOST not in args["file"]:
            raise UserError(
                f"{args['file']} is one file for {len(hosts)} hosts",
                fix="name one of them with --limit",
            )
        file = Path(args["file"].replace(HOST, self.host))
        try:
            if restoring:
                contents = self._restore(file, Path(args["source"] or file))
            else:
                contents = self._save(file, args["recipients"])
        except OSError as error:
            raise UserError(f"{file}: {error.strerror}") from error
        except AnsibleError as error:
            return build_failure(str(error))
        finally:
            self._end()
        document = {"ok": True, "detail": "", "file": str(file), **contents}
        return {"changed": restoring, "kimi_document": document}

    def _save(self, file: Path, recipients: list[str]) -> dict[str, Any]:
        """Fetch a new archive; it gets the name `file` once it is complete."""
        chosen = encryption.read_recipients(recipients)
        answer: ArchiveAnswer = call(self, self.subcommand, "make", "--for", self._read_login_id())
        # Only the owner can enter the folder, so the mode of the file in it does not matter.
        with tempfile.TemporaryDirectory(dir=file.parent, prefix=f".{file.name}.") as folder:
            part = Path(folder, "archive")
            if chosen is None:
                self._fetch(answer, part)
            else:
                self._fetch_encrypted(answer, part, chosen)
            part.chmod(0o600)
            _sync(part)
            # A file of this name that was created meanwhile is not replaced.
            os.link(part, file)
        _sync(file.parent)
        size = file.stat().st_size
        return {**self.read_contents(answer, file), "sha256": answer["sha256"], "bytes": size}

    def _fetch(self, answer: ArchiveAnswer, part: Path) -> None:
        self._connection.fetch_file(answer["path"], str(part))
        if _compute_sha256(part) != answer["sha256"]:
            raise RemoteError("the archive did not arrive complete", "back up again")

    def _fetch_encrypted(self, answer: ArchiveAnswer, part: Path, chosen: Recipients) -> None:
        with tempfile.TemporaryFile(dir=part.parent) as clear, part.open("xb") as encrypted:
            self._fetch(answer, encryption.make_descriptor_path(clear))
            encryption.encrypt(chosen, clear, encrypted)

    def _restore(self, file: Path, source: Path) -> dict[str, Any]:
        """Send the archive to the machine and restore it there."""
        digest = _compute_sha256(source)
        answer = call(self, self.subcommand, "receive", "--for", self._read_login_id())
        self._connection.put_file(str(source), answer["path"])
        answer = call(self, self.subcommand, "restore", digest)
        size = file.stat().st_size
        return {**self.read_contents(answer, file), "sha256": digest, "bytes": size}

    def _read_login_id(self) -> str:
        """Return the uid of the user that the connection logs in as."""
        done = self._low_level_execute_command("id -u", sudoable=False)
        login = str(done["stdout"]).strip()
        if done["rc"] != 0 or not login.isdigit():
            raise RemoteError("the number of the login's user could not be read")
        return login

    def _end(self) -> None:
        try:
            call(self, self.subcommand, "end")
        except (RemoteError, AnsibleError):
            # A later transfer removes what this one could not.
            return


def read_numbers(contents: Mapping[str, Any], *names: str) -> dict[str, int]:
    """Return counts and times of a machine's answer. Raises RemoteError for other values."""
    numbers = {}
    for name in names:
        value = contents.get(name)
        if not isinstance(value, int) or not 0 <= value < _MAX_NUMBER:
            raise RemoteError(f"the machine's answer has no {name} of the archive")
        numbers[name] = value
    return numbers


def read_texts(contents: Mapping[str, Any], name: str) -> list[str]:
    """Return a list of texts of a machine's answer, each cut to a length that can be shown."""
    values = contents.get(name)
    return [str(value)[:_MAX_LENGTH] for value in values] if isinstance(values, list) else []


def read_text(contents: Mapping[str, Any], name: str) -> str:
    """Return a text of a machine's answer, cut to a length that can be shown."""
    return str(contents.get(name))[:_MAX_LENGTH]


def read_web_data(contents: Mapping[str, Any]) -> dict[str, Any]:
    """Return a machine's description of the web UI's data."""
    return {
        "version": read_text(contents, "version"),
        **read_numbers(contents, "made_unix", "accounts", "chats", "uploads"),
        "left_out": read_texts(contents, "left_out"),
    }


def _compute_sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
