"""A folder that `render slurm` made, and its program: run locally, or by ssh on a login node.

The program answers with one JSON document, which is only data.
"""

from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kimi_prov import documents, schemas
from kimi_prov.commands.common.ssh import SSH, find_last_line
from kimi_prov.contract import addresses, clean_text
from kimi_prov.contract.errors import EXIT_PERMANENT, HostError
from kimi_prov.contract.rendered_kinds import RECORD, SLURM
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.render import folder_writer

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SETTINGS = "cluster.env"
# The parent of folders that were copied to the cluster, below its root.
_RENDERS = "renders"
_TIMEOUT_S = 600
# ssh's exit status without a connection; no command of ours ends with it.
_NO_CONNECTION = 255
_NOT_THERE = 66
_MAX_BYTES = 64 << 20
_ENV_BYTES = 1 << 20
# Output of a login shell or a module goes to the messages; the answer is the last line.
_CALL = f"""\
cd -- "$1" 2>/dev/null || exit {_NOT_THERE}
shift
. jobs/prelude.sh >&2 || exit {EXIT_PERMANENT}
exec "${{kimi[@]}}" "$@"
"""
_UNPACK = f"""\
set -e
umask 022
mkdir -p -- "$1"
staged=$(mktemp -d -- "$1/.$2.XXXXXX")
trap 'rm -rf -- "$staged"' EXIT
tar -xf - -C "$staged"
cd -- "$staged"
. jobs/prelude.sh >&2 || exit {EXIT_PERMANENT}
shift
"${{kimi[@]}}" receive "$@"
"""


@dataclass(frozen=True)
class Folder:
    """The folder, and the machine of its program: this one (`login` None), or a login node.

    `there` is the folder's path on that machine.
    """

    path: Path
    login: str | None
    there: str
    record: dict[str, Any]

    @classmethod
    def read(cls, path: Path, login: str | None) -> Folder:
        """Read a folder. `login`: the option; None uses KIMI_LOGIN of its cluster.env, "" none.

        Raises UserError for a folder that `render slurm` did not make, and for a bad login.
        """
        record = folder_writer.read_record(path, SLURM)
        settings = _read_settings(path)
        where = login if login is not None else _read_setting(path, settings, "KIMI_LOGIN")
        if not where:
            return cls(path, None, str(path.absolute()), record)
        check_login(where, "--login" if login is not None else f"{path / SETTINGS}: KIMI_LOGIN")
        root = _read_setting(path, settings, "KIMI_ROOT")
        if not root.startswith("/"):
            raise UserError(
                f"{path / SETTINGS}: KIMI_ROOT: expected an absolute path, found {root!r}",
                fix="name the folder on the cluster's shared file system there",
            )
        name = path.resolve().name
        if not addresses.PLAIN_NAME.fullmatch(name):
            raise UserError(
                f"{path}: the folder's name is its name on the cluster, and {name!r} can be none",
                fix="rename it: letters, digits, dots and dashes",
            )
        return cls(path, where, f"{root.rstrip('/')}/{_RENDERS}/{name}", record)

    def call(self, *words: str, schema: str | None = None) -> Any:  # noqa: ANN401  (of that schema)
        """Run a subcommand of the folder's program; return its document, validated by its schema.

        Raises UserError with the program's error, and exit 4 where ssh does not connect.
        """
        return self._answer(_CALL, [self.there, *words], b"", schema)

    def bring(self, *, force: bool) -> dict[str, Any]:
        """Copy the rendered files to the cluster; files that were changed there by hand stay.

        They are unpacked in a temporary folder and moved one by one. Raises UserError.
        """
        place, _, name = self.there.rpartition("/")
        words = [place, name, *(["--force"] if force else [])]
        return self._answer(_UNPACK, words, self._packed(), None)

    def _packed(self) -> bytes:
        """Return a tar of the present files in the record, and the record."""
        buffer, size = io.BytesIO(), 0
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for name, mode in _list_modes(self.record):
                file = self.path / name
                try:
                    content = file.read_bytes()
                except FileNotFoundError:
                    continue
                except OSError as error:
                    raise UserError(
                        f"{file}: cannot be read: {error.strerror}", fix="make it a file again"
                    ) from None
                size += len(content)
                if size > _MAX_BYTES:
                    raise UserError(
                        f"{self.path}: its files are larger than {_MAX_BYTES >> 20} MiB",
                        fix="copy the folder to the cluster yourself, and run this there",
                    )
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(content), mode
                archive.addfile(entry, io.BytesIO(content))
        return buffer.getvalue()

    def _answer(
        self, script: str, words: list[str], content: bytes, schema: str | None
    ) -> dict[str, Any]:
        done = self._run(script, words, content)
        told = clean_text.clean_block(done.stderr.decode(errors="replace")).strip()
        last = done.stdout.decode(errors="replace").strip().rpartition("\n")[2]
        if self.login and done.returncode == _NO_CONNECTION and not last.startswith("{"):
            raise UserError(
                f"{self.login}: ssh: {find_last_line(told)}",
                fix=f"try  ssh -o BatchMode=yes -- {clean_text.quote_word(self.login)} true",
                exit_code=ExitCode.UNREACHABLE,
            )
        if done.returncode == _NOT_THERE and not last.startswith("{"):
            raise UserError(
                f"{self.where}: there is no folder {clean_text.clean_line(self.there)}",
                fix=f"kimi-prov submit {clean_text.quote_word(self.path)}  brings it there",
            )
        return self._document(done.returncode, last, told, schema)

    def _run(
        self, script: str, words: list[str], content: bytes
    ) -> subprocess.CompletedProcess[bytes]:
        # One line: a login shell of another kind than Bourne's allows no line break in quotes.
        script = script.strip().replace("\n", "; ")
        shell = ["bash", "-lc" if self.login else "-c", script, "kimi-prov", *words]
        line = [*SSH, "-T", "--", self.login, shlex.join(shell)] if self.login else shell
        try:
            return subprocess.run(
                line, input=content, capture_output=True, timeout=_TIMEOUT_S, check=False
            )
        except FileNotFoundError:
            raise UserError(f"{line[0]} is not on this machine", fix="install it") from None
        except subprocess.TimeoutExpired:
            raise UserError(
                f"{self.where}: no answer within {_TIMEOUT_S} s",
                fix="see whether a login there answers",
                exit_code=ExitCode.UNREACHABLE,
            ) from None

    def _document(self, code: int, last: str, told: str, schema: str | None) -> dict[str, Any]:
        where = clean_text.clean_line(self.where)
        try:
            found = json.loads(last)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict) or documents.find_odd_number(found) is not None:
            settings = f"{clean_text.quote_word(self.there)}/{SETTINGS}"
            raise UserError(
                f"{where}: the folder's program did not answer: {find_last_line(told)}",
                fix=f"look at {settings}: KIMI_PYTHON, KIMI_MODULES",
                exit_code=ExitCode.BAD_INPUT if code == EXIT_PERMANENT else ExitCode.FAILED,
            )
        error = HostError.from_answer(found)
        if error is not None:
            raise UserError(
                f"{where}: {clean_text.clean_line(error.message)}",
                fix=clean_text.clean_line(error.fix) if error.fix else None,
                exit_code=ExitCode.FAILED if error.retryable else ExitCode.BAD_INPUT,
            )
        if schema:
            _check(where, found, schema)
        return found

    @property
    def where(self) -> str:
        """The machine of the program, as messages name it."""
        return self.login or "this machine"


def check_login(login: str, option: str) -> None:
    """Refuse a text that ssh would not use as a host. Raises UserError naming the `option`."""
    if not addresses.LOGIN.fullmatch(login):
        raise UserError(
            f"{clean_text.clean_line(option)}: expected USER@HOST, found {login!r}",
            fix="name the login node; what else ssh needs for it goes into ~/.ssh/config",
        )


def _check(where: str, document: dict[str, Any], schema: str) -> None:
    import jsonschema  # noqa: PLC0415  (half a tenth of a second)

    try:
        jsonschema.validate(document, schemas.load(schema))
    except jsonschema.ValidationError as error:
        key = ".".join(map(str, error.absolute_path)) or "the document"
        raise UserError(
            f"{where}: the folder's program gave no document kimi-prov/{schema}/v1: "
            f"{clean_text.clean_line(key)}: {clean_text.clean_line(error.message)[:200]}",
            fix="render the folder with this version, and submit it again",
            exit_code=ExitCode.FAILED,
        ) from None


def _read_settings(path: Path) -> str:
    file = path / SETTINGS
    fix = "render the folder again"
    return documents.read_document(file, what="settings", limit=_ENV_BYTES, fix=fix).text


def _read_setting(path: Path, text: str, name: str) -> str:
    """Return a variable of cluster.env, which is not run here; bash reads it on the cluster."""
    rows = re.findall(rf"^\s*(?:export\s+)?{name}=(.*)$", text, re.MULTILINE)
    if not rows:
        return ""
    try:
        words = shlex.split(rows[-1], comments=True)
    except ValueError:
        words = ["$"]
    if len(words) > 1 or any(mark in word for word in words for mark in "$`"):
        raise UserError(
            f"{path / SETTINGS}: {name}: expected plain text, found {rows[-1]!r}",
            fix="write it out: it is read without running the file",
        )
    return words[0] if words else ""


def _list_modes(record: dict[str, Any]) -> Iterable[tuple[str, int]]:
    yield from ((row["path"], int(row["mode"], 8)) for row in record["files"])
    yield RECORD, 0o644
