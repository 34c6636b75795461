"""Compares two versions of a unit: what its running process depends on, and what differs.

Left out are comments, descriptions, orders without a meaning for systemd, and what takes effect
without a new process: checks before and after a start, timeouts, restarts, logging. An unknown
directive counts as one that a process depends on.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from typing import TYPE_CHECKING

from kimi_prov.contract.cpu_lists import format_list, parse_list

if TYPE_CHECKING:
    from collections.abc import Sequence

DIGEST_VARIABLE = "KIMI_STAMP"
UNKNOWN = "the unit that its process was started with is not known"
# Category, name, value.
Form = dict[str, dict[str, str]]

_PYTHON = re.compile(r".*/bin/python[0-9.]*")
_FLAG = re.compile(r"--?[A-Za-z]")
_COMMAND_LINE = "command line"
# The subcommand of the program on the machine that starts an engine behind the machine key, and the
# one that does so once the other hosts of a group are there.
_GATED = "engine"
_SUPERVISED = "group"
# Its options that are limits of a start: they take effect at the next start, like those of a unit.
LOADING, ROUNDS = "--loading", "--rounds"
_LIMITS = (LOADING, ROUNDS)
_MACHINE_KEY = "machine key"
_ASSIGNED = ("environment", "limits", "protection")
_LATER = re.compile(
    r"Exec(Condition|StartPre|StartPost|Reload|Stop|StopPost)|(Timeout|Restart|Log|Syslog|Standard)"
    r"\w*|Type|KillMode|(Kill|FinalKill|RestartKill)Signal|SendSIG\w+|SuccessExitStatus|OOMPolicy|"
    r"Watchdog\w+|NotifyAccess|RuntimeDirectory\w*|MemoryMax"
)
# Each assignment adds words, an empty one removes all; systemd reads them in any order.
_WORDS = re.compile(
    r"AmbientCapabilities|CapabilityBoundingSet|IPAddress(Allow|Deny)|SupplementaryGroups|"
    r"(ReadWrite|ReadOnly|Inaccessible|Exec|NoExec)Paths|Restrict(AddressFamilies|FileSystems)|"
    r"SystemCall(Architectures|Filter|Log)|SocketBind(Allow|Deny)"
)
_BINDING = re.compile(r"CPUAffinity|NUMA\w+|Allowed\w+")
_SECRET = re.compile(
    r"(keys?|token|passwords?|passwd|secrets?|credentials?)(?![a-z])", re.IGNORECASE
)
_HIDDEN = "hidden:"
_BOOLEANS = {"true": "yes", "on": "yes", "false": "no", "off": "no"}
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[0-7]{3}|.)", re.DOTALL)
_NAMED = {"n": "\n", "t": "\t", "r": "\r", "s": " ", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_WORD = re.compile(r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\\.|[^\s"'\\])+""", re.DOTALL)
_PART = re.compile(r'"((?:[^"\\]|\\.)*)"|\'((?:[^\'\\]|\\.)*)\'|((?:\\.|[^\s"\'\\])+)', re.DOTALL)


def build_gated_command(
    argv: list[str], program: str, supervision: Sequence[str] = ()
) -> list[str]:
    """Return the command line by which `program` starts the engine, behind the machine key.

    `argv` is `PYTHON -m MODULE ARGUMENT...`. `supervision`: options of the supervisor that starts
    it as a member of a group.
    """
    supervised = [_SUPERVISED, *supervision, "--"] if supervision else []
    return [argv[0], program, *supervised, _GATED, *argv[1:]]


def is_gated(of: Form) -> bool:
    """Return whether the engine of a unit requires the machine key."""
    return _MACHINE_KEY in of["protection"]


def is_supervised(of: Form) -> bool:
    """Return whether the engine of a unit is a member of a group."""
    return "group" in of


def parse_form(text: str) -> Form:
    """Return what a process started from this unit depends on; secrets are hashed.

    `text` is the unit's file with its drop-ins after it.
    """
    found: Form = {"engine": {}, _COMMAND_LINE: {}, "environment": {}, "binding": {}}
    found.update({"limits": {}, "protection": {}})
    start: list[str] = []
    for name, value in parse_assignments(text):
        if name == "ExecStart":
            start = [word.replace("$$", "$") for word in split_value(value)]
        elif name == "Environment":
            _add_environment(found["environment"], value)
        elif not _LATER.fullmatch(name):
            _add_directive(found, name, value)
    found["environment"].pop(DIGEST_VARIABLE, None)
    bare, supervision = _split_gate(start)
    binding, found["engine"], found[_COMMAND_LINE] = _split_command(bare)
    if bare != start:
        found["protection"][_MACHINE_KEY] = ""
    if supervision:
        # Only where there is one: the digests of engines that run alone stay as they are.
        flags = _parse_flags(supervision)
        found["group"] = {name: flags[name] for name in flags if name not in _LIMITS}
    if binding:
        found["binding"][binding[0]] = shlex.join(binding[1:])
    return {
        category: {name: _hide_secret(name, value) for name, value in sorted(named.items())}
        for category, named in found.items()
    }


def compute_digest(of: Form) -> str:
    """Return the digest of a form; a process with the same digest need not be restarted."""
    return hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()[:16]


def read_digest(text: str) -> str:
    """Return the config digest that a unit gives its process; empty where it gives none."""
    environment: dict[str, str] = {}
    for name, value in parse_assignments(text):
        if name == "Environment":
            _add_environment(environment, value)
    return environment.get(DIGEST_VARIABLE, "")


def describe_differences(old: Form, new: Form) -> list[str]:
    """Return in sentences what differs between a process of form `old` and one of form `new`."""
    return [
        f"{category}: {_describe_difference(category, name, was.get(name), will.get(name))}"
        for category in list(dict.fromkeys([*new, *old]))
        for was, will in [(old.get(category, {}), new.get(category, {}))]
        for name in list(dict.fromkeys([*will, *was]))
        if was.get(name) != will.get(name)
    ]


def list_restart_reasons(current_stamp: str, had: Form | None, wanted: Form) -> list[str]:
    """Return why a process must be restarted; empty where it need not.

    `had` is the form of the unit with which the process was started, None where it is unknown.
    """
    if current_stamp == compute_digest(wanted):
        return []
    return [UNKNOWN] if had is None else describe_differences(had, wanted)


def hide_secrets(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with the values of flags that hold a secret hidden."""
    shown: list[str] = []
    secret = False
    for word in words:
        name, mark, _ = word.partition("=")
        flag = bool(_FLAG.match(word))
        if secret and not flag:
            shown.append("***")
        elif mark and _SECRET.search(name):
            shown.append(f"{name}=***")
        else:
            shown.append(word)
        secret = flag and not mark and bool(_SECRET.search(name))
    return shown


def has_secret_name(line: str) -> bool:
    """Return whether a line has a name by which values are hidden."""
    return bool(_SECRET.search(line))


def parse_assignments(text: str) -> list[tuple[str, str]]:
    """List the assignments of the section [Service], in order."""
    found: list[tuple[str, str]] = []
    section = ""
    for line in re.sub(r"\\\n", " ", text).split("\n"):
        bare = line.strip()
        if not bare or bare[0] in "#;":
            continue
        if bare.startswith("["):
            section = bare
        elif section == "[Service]" and "=" in bare:
            name, _, value = bare.partition("=")
            found.append((name.strip(), value.strip()))
    return found


def split_value(text: str) -> list[str]:
    """Split a value as systemd does: quotes, escapes, and `%%` for a per cent sign."""
    return [
        "".join(_unescape(part) for part in _split_parts(match.group())).replace("%%", "%")
        for match in _WORD.finditer(text)
    ]


def _split_parts(word: str) -> list[str]:
    return [next(g for g in m.groups() if g is not None) for m in _PART.finditer(word)]


def _unescape(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        code = match.group(1)
        if len(code) == 1:
            return _NAMED.get(code, code)
        return chr(int(code, 8) if code[0].isdigit() else int(code[1:], 16))

    return _ESCAPE.sub(character, text)


def _add_environment(into: dict[str, str], value: str) -> None:
    if not value:
        into.clear()
    for word in split_value(value):
        name, _, content = word.partition("=")
        into[name] = content


def _add_directive(found: Form, name: str, value: str) -> None:
    if name == "CPUAffinity":
        value = format_list(parse_list(value.replace(" ", ",")))
    value = _BOOLEANS.get(value.lower(), value)
    if _BINDING.fullmatch(name):
        category = "binding"
    else:
        category = "limits" if name.startswith("Limit") else "protection"
    if _WORDS.fullmatch(name) and value:
        every = [*found[category].get(name, "").split(), *value.split()]
        # With `~` the later word removes from the earlier.
        ordered = every if "~" in "".join(every) else sorted(set(every))
        value = " ".join(ordered)
    elif value and category == "protection" and name in found[category]:
        # systemd may take it several times: no part of it may be lost.
        value = f"{found[category][name]}\n{value}".lstrip("\n")
    found[category][name] = value


def _split_gate(line: list[str]) -> tuple[list[str], list[str]]:
    """Undo `build_gated_command`: return the engine's line, and its supervision."""
    at = next((n for n in range(2, len(line)) if line[n : n + 2] == [_GATED, "-m"]), 0)
    start = at
    if at and line[at - 1] == "--" and _SUPERVISED in line[:at]:
        start = line.index(_SUPERVISED)
    if start < 2 or not _PYTHON.fullmatch(line[start - 2]):
        return line, []
    return [*line[: start - 1], *line[at + 1 :]], line[start + 1 : at - 1]


def _split_command(line: list[str]) -> tuple[list[str], dict[str, str], dict[str, str]]:
    """Split a command line: the binding before the engine, the engine, its arguments by flag."""
    at = next((n for n, word in enumerate(line) if _PYTHON.fullmatch(word)), 0)
    rest = line[at + 1 :]
    engine = {"python": line[at]} if line else {}
    if rest[:1] == ["-m"]:
        engine["module"], rest = " ".join(rest[1:2]), rest[2:]
    return line[:at], engine, _parse_flags(rest)


def _parse_flags(words: list[str]) -> dict[str, str]:
    """Return the values of each flag.

    A parser of flags ignores their order, except among `--x`, `--x` and `--no-x`.
    """
    flags: dict[str, list[str]] = {}
    family = ""
    for word in words:
        name, mark, value = word.partition("=")
        if _FLAG.match(word):
            family = re.sub(r"^--no-", "--", name)
            parts = flags.setdefault(family, [])
            if parts or name != family:
                parts.append(name)
            if mark:
                parts.append(shlex.quote(value))
        else:
            flags.setdefault(family, []).append(shlex.quote(word))
    return {name: " ".join(values) for name, values in flags.items()}


def _hide_secret(name: str, value: str) -> str:
    if value and _SECRET.search(name):
        return _HIDDEN + hashlib.sha256(value.encode()).hexdigest()[:8]
    return value


def _describe_difference(category: str, name: str, old: str | None, new: str | None) -> str:
    hidden = any((value or "").startswith(_HIDDEN) for value in (old, new))
    joint = "=" if category in _ASSIGNED else " "
    if old is None or new is None:
        text = name if hidden else _format_assignment(name, joint, old if new is None else new)
        return f"{text} {'removed' if new is None else 'added'}"
    if hidden:
        return f"{name} changed (not shown)"
    if old and new and "--no-" not in (old[:5], new[:5]):
        return f"{name} {old} -> {new}"
    return f"{_format_assignment(name, joint, old)} -> {_format_assignment(name, joint, new)}"


def _format_assignment(name: str, joint: str, value: str | None) -> str:
    """Return `name=value`; `--no-x` counts as a value of `--x`."""
    if not value:
        return name
    return value if value.startswith("--no-") else f"{name}{joint}{value}"
