"""Read and check the inventory before a run starts: errors name the file and the line."""

from __future__ import annotations

import difflib
import json
import math
import os
import re
import shlex
import subprocess
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import yaml

from kimi_prov import documents, inventory_files
from kimi_prov.contract import clean_text
from kimi_prov.errors import UserError
from kimi_prov.packaging import resources
from kimi_prov.runner import connection
from kimi_prov.runner.arguments import find_executable
from kimi_prov.runner.connection import Connection
from kimi_prov.runner.private_folder import make_private_folder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kimi_prov.runner.connection import Access

GROUP = "kimi"
# Ansible's variables with arguments of ssh.
_SSH_ARGUMENTS = ("ansible_ssh_common_args", "ansible_ssh_extra_args", "ansible_ssh_args")
_GATEWAYS = "kimi_gateway"
# Limit of one file: room for some hundred thousand hosts.
_MAX_BYTES = 64 << 20
# Ansible names files after hosts, with some letters of its own; Linux ends a name at 255 bytes.
_MAX_NAME_BYTES = 200
# Ansible takes a second for each thousand hosts: a mistyped range would take hours.
_MAX_HOSTS = 10_000
_RANGE = re.compile(r"\[([0-9]{1,18}):([0-9]{1,18})(?::[0-9]+)?\]")
_WORD = re.compile(r"[^\s{},'\"]+")
_MAX_SHOWN_HOSTS = 10
_YAML = {".yml", ".yaml", ".json"}
_TIMEOUT_S = 120
_READER = re.compile(
    r"Failed to parse inventory with '(\w+)' plugin: (.*?)"
    r"(?= Failed to parse inventory with|\s*<<<|\s*Origin:|$)"
)
_INIT = "kimi-prov init DIR --profile lab|localhost"


@dataclass(frozen=True)
class Inventory:
    """An inventory that Ansible can read and that has hosts in the group kimi.

    `hosts`: the hosts of that group with their variables; `gateways`: their gateways, likewise.
    """

    path: Path
    hosts: Mapping[str, Mapping[str, Any]]
    names: frozenset[str]
    sources: tuple[Path, ...] = ()
    gateways: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def machines(self) -> Mapping[str, Mapping[str, Any]]:
        """Serving hosts, then gateways."""
        return {**self.hosts, **self.gateways}

    @property
    def base(self) -> Path:
        """Folder that relative paths in it start from."""
        return self.path if self.path.is_dir() else self.path.parent

    def address(self, host: str) -> str:
        """Return the address of `host`."""
        variables = self.machines.get(host, {})
        if variables.get("ansible_connection") == "local":
            return "127.0.0.1"
        return str(variables.get("ansible_host") or host)

    def ssh_arguments(self, host: str) -> str:
        """Return ssh's arguments for `host`, with which it may be reached through others."""
        variables = self.machines.get(host, {})
        return " ".join(str(variables[name]) for name in _SSH_ARGUMENTS if variables.get(name))


def load_inventory(path: Path, login: Connection | None = None) -> Inventory:
    """Read the inventory at `path`; `login` holds the vault's password where one is needed.

    Raises UserError (exit 2) where it is missing, cannot be parsed, or has no host in `kimi`.
    """
    sources = check_files(path)
    document = _list_inventory(path, sources, login or Connection())
    members = _list_members(document, GROUP, set())
    if GROUP not in document or not members:
        what = "its group kimi has no host" if GROUP in document else "it has no group kimi"
        raise UserError(
            f"{path}: {what}",
            fix=f"list the machines under the group kimi, or start from  {_INIT}",
        )
    variables: Mapping[str, Mapping[str, Any]] = document.get("_meta", {}).get("hostvars", {})
    _check_names(path, [*members, *_list_members(document, _GATEWAYS, set())])
    everybody = frozenset(document) - {"_meta"} | frozenset(variables) | frozenset(members)
    return Inventory(
        path.absolute(),
        {host: variables.get(host, {}) for host in members},
        everybody,
        tuple(source.absolute() for source in sources),
        {host: variables.get(host, {}) for host in _list_members(document, _GATEWAYS, set())},
    )


def _check_names(path: Path, hosts: Sequence[str]) -> None:
    """Refuse names of hosts that Ansible's own files cannot bear, or no terminal can show."""
    for host in hosts:
        shown = clean_text.clean_line(host)
        # Files of ours are named after the quoted name.
        if len(quote(host, safe="", errors="replace")) > _MAX_NAME_BYTES:
            problem = f"{shown[:40]}...: a host's name has at most {_MAX_NAME_BYTES} letters"
        elif shown != host:
            problem = f"{shown!r}: a host's name has no control character"
        else:
            continue
        raise UserError(
            f"{path}: {problem}", fix="give the host a short name, and its address as ansible_host"
        )


def check_files(path: Path) -> list[Path]:
    """Refuse absent, unreadable and broken files, for which Ansible has poor messages or none.

    Returns the files that hosts are read from.
    """
    if not os.path.lexists(path):
        raise UserError(f"{path}: there is no such inventory", fix=_INIT)
    try:
        sources = inventory_files.list_sources(path, resources.find_ansible_config())
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read: {error.strerror}", fix="name a folder that you may read"
        ) from None
    if not sources:
        raise UserError(
            f"{path}: this inventory folder is empty: no file of hosts lies right in it",
            fix=f"write {path / 'hosts.yml'}, or {_INIT}",
        )
    if path.is_file() and (schema := inventory_files.find_schema(path)):
        # Ansible would run other content as a program.
        raise UserError(
            f"{path}: this is a document {schema}, and no inventory",
            fix=f"kimi-prov check {shlex.quote(str(path))}, or {_INIT}",
        )
    runs = inventory_files.is_program(path)
    for file in sources:
        check_yaml(file, variables=False, runs=runs)
    for file in inventory_files.list_variable_files(path):
        check_yaml(file, variables=True)
    return sources


def check_yaml(file: Path, *, variables: bool, runs: bool = False) -> None:
    """Refuse a file that cannot be read, is no YAML, or (with `variables`) holds no mapping.

    Files of other kinds are only opened. `runs`: Ansible runs the file, and does not read it.
    """
    fix = f"edit {file}"
    content = documents.read_bytes(
        file, what="a file of an inventory", limit=_MAX_BYTES, fix=f"name one to read: {file}"
    )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        if file.suffix not in _YAML:
            return
        raise UserError(f"{file}: this is no text in UTF-8", fix=fix) from None
    # Brackets in a program are its own.
    if not (variables or runs):
        _check_ranges(file, text)
    if text.startswith("$ANSIBLE_VAULT;") or not (file.suffix in _YAML or variables):
        return
    try:
        root = documents.check_yaml(text)
    except documents.FAULTS as error:
        mark = getattr(error, "problem_mark", None)
        location = f"{file}:{mark.line + 1}" if mark else str(file)
        problem = getattr(error, "problem", None) or "it cannot be parsed"
        raise UserError(
            f"{location}: this is not valid YAML: {problem}", fix=f"edit line {location}"
        ) from None
    if root is not None and not isinstance(root, yaml.MappingStartEvent):
        line = root.start_mark.line + 1 if root.start_mark else 1
        raise UserError(
            f"{file}:{line}: expected `name: value` lines, found a "
            f"{'list' if isinstance(root, yaml.SequenceStartEvent) else 'single value'}",
            fix=fix,
        )


def _check_ranges(file: Path, text: str) -> None:
    """Refuse ranges of hosts, node[1:99999], that stand for too many hosts."""
    count = 0
    for line_number, line in enumerate(text.splitlines(), 1):
        if "[" not in line:
            continue
        words = _WORD.findall(line.partition("#")[0])
        for at, word in enumerate(words):
            # A host is the first word of its line, or a key.
            key = word.endswith(":") or (words[at + 1 : at + 2] and words[at + 1].startswith(":"))
            spans = [int(span[2]) - int(span[1]) + 1 for span in _RANGE.finditer(word)]
            count += math.prod(spans) if spans and (at == 0 or key) else 0
            if count > _MAX_HOSTS:
                raise UserError(
                    f"{file}:{line_number}: {word}: its ranges are more than {_MAX_HOSTS} hosts",
                    fix=f"edit {file}",
                )


def check_limit(inventory: Inventory, limit: str | None) -> None:
    """Refuse a --limit that names no host or group; patterns are left to Ansible."""
    for name in (limit or "").split(","):
        plain = re.fullmatch(r"[\w.-]+", name.strip())
        if plain and plain.group() not in inventory.names:
            near = difflib.get_close_matches(plain.group(), inventory.names, n=1)
            hosts = ", ".join(sorted(inventory.hosts)[:_MAX_SHOWN_HOSTS])
            hosts += ", ..." if len(inventory.hosts) > _MAX_SHOWN_HOSTS else ""
            raise UserError(
                f"--limit: {inventory.path} has no host or group {plain.group()!r}",
                fix=f"did you mean {near[0]}?" if near else f"hosts of the group kimi: {hosts}",
            )


def find_vars_file(text: str) -> Path:
    """Return the file that `-e @FILE` names; UserError for anything else."""
    if not text.startswith("@"):
        name = text.partition("=")[0]
        raise UserError(
            f"-e {name}...: extra variables come from a file, so that their types are kept and "
            "no secret is on a command line",
            fix="write them into a YAML file:  -e @FILE",
        )
    try:
        path = Path(text[1:]).expanduser()
    except RuntimeError:  # ~ of an unknown user
        path = Path(text[1:])
    if not os.path.lexists(path):
        raise UserError(f"-e {text}: there is no such file", fix="name a YAML or JSON file")
    check_yaml(path, variables=True)
    return path.absolute()


def _list_inventory(path: Path, sources: Sequence[Path], login: Connection) -> Mapping[str, Any]:
    """Let Ansible itself list the inventory."""
    with make_private_folder(uuid.uuid4().hex) as private:
        access = connection.write_access(login, private.folder)
        return _ask_ansible(path, sources, access, private.temporary)


def _ask_ansible(
    path: Path, sources: Sequence[Path], access: Access, temporary: Path
) -> Mapping[str, Any]:
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(access.config),
        # Ansible's default folder would be in a home that may belong to another user.
        "ANSIBLE_LOCAL_TEMP": str(temporary),
        "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "true",
        **inventory_files.choose_readers(
            path, access.config, os.environ, own=resources.find_ansible_config()
        ),
        **dict.fromkeys(connection.ASKS.values(), "False"),
        "ANSIBLE_NOCOLOR": "1",
        "LC_ALL": "C.UTF-8",
    }
    named = [word for source in sources for word in ("-i", str(source.absolute()))]
    command = [find_executable("ansible-inventory"), *named, *access.inventory_arguments, "--list"]
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env=environment,
            stdin=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
        )
        document = json.loads(done.stdout) if done.returncode == 0 else None
    except FileNotFoundError:
        raise UserError(
            "ansible-inventory is not installed beside kimi-prov",
            fix="pip install --force-reinstall kimi-prov",
        ) from None
    except subprocess.TimeoutExpired:
        raise UserError(
            f"{path}: Ansible had not read this inventory after {_TIMEOUT_S} s",
            fix=shlex.join(command),
        ) from None
    except ValueError:
        document = None
    if not isinstance(document, dict):
        complaint = _extract_complaint(done.stderr)
        fix = f"correct it; `{shlex.join(['ansible-inventory', *named, '--list'])}` tells more"
        if "vault" in complaint.lower():
            fix = "give the vault's password: --vault-password-file FILE, or --ask-vault-pass"
        raise UserError(f"{path}: Ansible cannot read this inventory: {complaint}", fix=fix)
    return document


def _extract_complaint(stderr: str) -> str:
    """Return the message that matters: Ansible prints one for each inventory plugin."""
    text = " ".join(re.sub(r"\[(?:ERROR|WARNING)\]:|ERROR!", " ", stderr).split())
    readers = dict(_READER.findall(text))
    message = readers.get("yaml") or readers.get("ini") or next(iter(readers.values()), text)
    message = re.sub(r"\"?<class '[\w.]*?Tagged(\w+)'>\"?", r"a \1", message)
    origin = re.search(r"Origin: (/[^\s<>]+)", text)
    return (
        message.strip()[:400] + (f" ({origin.group(1)})" if origin else "") or "it gave no reason"
    )


def _list_members(document: Mapping[str, Any], group: str, seen: set[str]) -> list[str]:
    """Return the hosts of a group and of its child groups, in the inventory's order."""
    if group in seen:
        return []
    seen.add(group)
    entry = document.get(group) or {}
    members = list(entry.get("hosts") or [])
    for child in entry.get("children") or []:
        members += _list_members(document, child, seen)
    return list(dict.fromkeys(members))
