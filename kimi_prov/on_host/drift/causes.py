"""Finds when something was changed, and by what, in the logs of dpkg, apt and systemd.

Without effects: texts in, causes out. A log is untrusted text: of a command only its program and
its plain words are shown, since an option may hold a password.

Decides: what counts as drift, and its causes (the causes).
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Callable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kimi_prov.on_host.drift.difference import Account

_DPKG = re.compile(
    r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (install|upgrade|remove|purge) "
    r"([^\s:]+)(?::\S+)? (\S+) (\S+)$"
)
_PACKAGE = re.compile(r"([a-z0-9][a-z0-9+.-]+)(?::[a-z0-9-]+)? \(")
_STEPS = ("Install", "Upgrade", "Downgrade", "Reinstall", "Remove", "Purge")
_SUDO = re.compile(r"^\s*(\S+) : .*?COMMAND=(.*)$", re.DOTALL)
_LOGIN = re.compile(r"^Accepted \S+ for (\S+) from (\S+) ")
_BEGUN = re.compile(r"^New session (\S+) of user ([^\s.]+)")
_ENDED = re.compile(r"^(?:Session (\S+) logged out|Removed session (\S+?)\.)")
# Options with a value of their own, which may hold an address with a password.
_VALUED = ("-o", "-c", "-t", "--option", "--config-file", "--target-release")
_WORD = re.compile(r"[A-Za-z0-9./][A-Za-z0-9+._~:=/-]*")
_MAX_WORDS, _MAX_CHARACTERS = 8, 160
# The names in the journal of tools that change accounts.
ACCOUNT_TOOLS = (
    "useradd",
    "userdel",
    "usermod",
    "groupadd",
    "groupdel",
    "groupmod",
    "gpasswd",
    "chsh",
)
IDENTIFIERS = ("sudo", "sshd", "sshd-session", "systemd-logind", *ACCOUNT_TOOLS)
# A transaction's log has whole seconds, and its last file may be written at its end.
_SLACK_S = 1
_KINDS = ("service", "mount", "timer", "socket")
# Seconds before a file's change within which a command that names it may have begun: an editor
# stays open.
_EDITING_S = 1800
_SSH_S = 5

Clock = Callable[[str], int]


@dataclass(frozen=True)
class Cause:
    """`since`: seconds since 1970; `basis`: the source; `by`: what changed it, in words."""

    since: int | None = None
    basis: str | None = None
    by: str | None = None


@dataclass(frozen=True)
class Change:
    """A package's change, as dpkg logged it."""

    at: int
    package: str
    verb: str
    old: str
    new: str


@dataclass(frozen=True)
class Transaction:
    """One call of apt: when, by which command and user, and which packages it changed."""

    start: int
    end: int
    command: str
    user: str | None
    packages: frozenset[str]

    @property
    def description(self) -> str:
        """Describe the command and its user."""
        return f"{shorten_command(self.command)}{f', by {self.user}' if self.user else ''}"


@dataclass(frozen=True)
class Command:
    """A command that a user ran by sudo."""

    at: int
    user: str
    line: str


@dataclass(frozen=True)
class Session:
    """A login; `end` None: the user is still logged in, or the end is unknown."""

    start: int
    end: int | None
    user: str
    address: str | None


@dataclass(frozen=True)
class Logs:
    """The parsed logs, oldest first."""

    changes: tuple[Change, ...] = ()
    transactions: tuple[Transaction, ...] = ()
    commands: tuple[Command, ...] = ()
    sessions: tuple[Session, ...] = ()
    accounts: tuple[tuple[int, str, str], ...] = field(default=())


def parse_local_time(text: str) -> int:
    """Return the seconds since 1970 of a local time, as dpkg and apt write it."""
    return int(time.mktime(time.strptime(" ".join(text.split()), "%Y-%m-%d %H:%M:%S")))


def parse_dpkg_log(text: str, clock: Clock = parse_local_time) -> tuple[Change, ...]:
    """Read dpkg.log."""
    found = (_DPKG.match(line) for line in text.splitlines())
    return tuple(
        Change(clock(match[1]), match[3], match[2], match[4], match[5]) for match in found if match
    )


def parse_apt_log(text: str, clock: Clock = parse_local_time) -> tuple[Transaction, ...]:
    """Parse apt's history.log; a transaction without an end was cut off, or still runs."""
    found = []
    for block in text.split("\n\n"):
        pairs = dict(line.split(": ", 1) for line in block.strip().splitlines() if ": " in line)
        if "Start-Date" not in pairs:
            continue
        try:
            start = clock(pairs["Start-Date"])
            end = clock(pairs.get("End-Date", pairs["Start-Date"]))
        except ValueError:
            continue
        named = [name for step in _STEPS for name in _PACKAGE.findall(pairs.get(step, ""))]
        user = pairs.get("Requested-By", "").partition(" (")[0].strip()
        found.append(
            Transaction(start, end, pairs.get("Commandline", ""), user or None, frozenset(named))
        )
    return tuple(found)


def parse_journal(text: str) -> Logs:
    """Parse lines of `journalctl --output=json` of IDENTIFIERS; other lines are left out."""
    commands: list[Command] = []
    accounts: list[tuple[int, str, str]] = []
    sessions: dict[str, Session] = {}
    logins: list[tuple[int, str, str]] = []
    for at, name, message in _parse_rows(text):
        if name == "sudo" and (sudo := _SUDO.match(message)):
            commands.append(Command(at, sudo[1], sudo[2].strip()))
        elif name in ACCOUNT_TOOLS:
            accounts.append((at, name, message))
        elif name.startswith("sshd") and (login := _LOGIN.match(message)):
            logins.append((at, login[1], login[2]))
        elif name == "systemd-logind":
            if begun := _BEGUN.match(message):
                sessions[begun[1]] = Session(
                    at, None, begun[2], _find_address(logins, begun[2], at)
                )
            elif (ended := _ENDED.match(message)) and (key := ended[1] or ended[2]) in sessions:
                there = sessions[key]
                if there.end is None:
                    sessions[key] = Session(there.start, at, there.user, there.address)
    return Logs(
        commands=tuple(commands), accounts=tuple(accounts), sessions=tuple(sessions.values())
    )


def _parse_rows(text: str) -> Iterable[tuple[int, str, str]]:
    for line in text.splitlines():
        try:
            row = json.loads(line)
            at = int(row["__REALTIME_TIMESTAMP"]) // 1_000_000
            name, message = row["SYSLOG_IDENTIFIER"], row["MESSAGE"]
        except (ValueError, KeyError, TypeError):
            continue
        # A message that is not UTF-8 comes as a list of numbers.
        if isinstance(name, str) and isinstance(message, str):
            yield at, name, message


def _find_address(logins: list[tuple[int, str, str]], user: str, at: int) -> str | None:
    known = [address for then, name, address in logins if name == user and 0 <= at - then <= _SSH_S]
    return known[-1] if known else None


def shorten_command(command: str) -> str:
    """Return a command's program and plain words, without options and their values."""
    words = command.split()
    kept: list[str] = []
    skip = False
    for at, word in enumerate(words):
        if skip or word in _VALUED:
            skip = not skip
        elif at == 0:
            kept.append(word.rpartition("/")[2])
        elif _WORD.fullmatch(word) and "://" not in word:
            kept.append(word)
    more = " ..." if len(kept) > _MAX_WORDS else ""
    return (" ".join(kept[:_MAX_WORDS]) + more)[:_MAX_CHARACTERS]


def find_package_cause(name: str, logs: Logs) -> Cause:
    """Return when a package was changed last, and by what."""
    changes = [change for change in logs.changes if change.package == name]
    if not changes:
        return Cause()
    last = changes[-1]
    words = [last.verb, *(v for v in (last.old, last.new) if v != "<none>")]
    for run in reversed(logs.transactions):
        if name in run.packages and run.start - _SLACK_S <= last.at <= run.end + _SLACK_S:
            return Cause(
                last.at, "dpkg.log and apt's history.log", f"{run.description} ({' '.join(words)})"
            )
    return Cause(last.at, "dpkg.log", f"dpkg itself, not through apt ({' '.join(words)})")


def find_account_cause(account: Account, logs: Logs) -> Cause:
    """Return when an account or group was changed to its present state, and by which program.

    Empty where no message says exactly that: for another change by a tool, and for an edited file.
    """
    wanted = re.compile("|".join(_build_account_patterns(account)))
    for at, tool, message in reversed(logs.accounts):
        if wanted.match(message):
            return Cause(at, "the journal", _describe_tool(tool, at, logs))
    return Cause()


# The tools' names for the fields of a user.
_FIELDS = {"uid": "UID", "gid": "GID", "home": "home", "shell": "shell"}
_END = r"(?![\w.-])"


def _build_account_patterns(account: Account) -> Iterable[str]:
    """Return patterns of the tools' messages about a change to an account's present state."""
    name = re.escape(account.name)
    if account.gone:
        yield rf"delete user '{name}'"
        yield rf"removed group '{name}' owned by "
        yield rf"group '{name}' removed"
        yield rf"change user name '{name}' to "
        yield rf"group changed in \S+ \(group {name}/\d+, new name: "
    for key, value in account.fields:
        what, now = _FIELDS[key], re.escape(value)
        yield rf"change user '{name}' {what} from '.*' to '{now}'$"
        yield rf"changed user '{name}' {what} to '{now}'$"
        yield rf"new user: name={name}, .*\b{what}={now}(,|$)"
    for user in map(re.escape, account.joined):
        yield rf"add '{user}' to group '{name}'"
        yield rf"user {user} added by \S+ to group {name}{_END}"
        yield rf"members of group {name} set by \S+ to (\S+,)?{user}{_END}"
    for user in map(re.escape, account.left):
        yield rf"delete '{user}' from group '{name}'"
        yield rf"user {user} removed by \S+ from group {name}{_END}"
        yield rf"members of group {name} set by "


def find_command_cause(words: Iterable[str], logs: Logs, after: int) -> Cause:
    """Return who last ran a command with all of these words by sudo."""
    wanted = {*words}
    for command in reversed(logs.commands):
        if command.at >= after and wanted and wanted <= _split_words(command.line):
            return Cause(command.at, "the journal", _describe_sudo(command))
    return Cause()


def find_cause_at(at: int, basis: str, words: Iterable[str], logs: Logs) -> Cause:
    """Describe what ran at a time: a command under sudo that names the path, apt, a login.

    `words`: all of them must be in such a command.
    """
    wanted = {*words}
    for command in reversed(logs.commands):
        close = -_SLACK_S <= at - command.at <= _EDITING_S
        if close and wanted and wanted <= _split_words(command.line):
            return Cause(at, basis, _describe_sudo(command))
    for run in logs.transactions:
        if run.start - _SLACK_S <= at <= run.end + _SLACK_S:
            return Cause(at, basis, f"while this ran: {run.description}")
    return Cause(at, basis, _describe_login(at, logs))


def _split_words(line: str) -> frozenset[str]:
    """Split a command into words: complete, and without folders before them and a unit's suffix."""
    found = set()
    for word in line.split():
        name = word.rpartition("/")[2]
        stem, _, kind = name.rpartition(".")
        found |= {word, name, *([stem] if kind in _KINDS else [])}
        found |= {part for part in word.split("=") if "=" in word}
    return frozenset(found)


def _describe_tool(tool: str, at: int, logs: Logs) -> str:
    for command in reversed(logs.commands):
        if 0 <= at - command.at <= _SLACK_S and tool in command.line:
            return _describe_sudo(command)
    told = _describe_login(at, logs)
    return f"{tool}, {told}" if told else tool


def _describe_sudo(command: Command) -> str:
    program = command.line.split(" ", 1)[0]
    return f"{program.rpartition('/')[2]}, by {command.user} through sudo"


def _describe_login(at: int, logs: Logs) -> str | None:
    there = [s for s in logs.sessions if s.start <= at and (s.end is None or at <= s.end + 1)]
    if not there:
        return None
    who = {
        f"{session.user}{f' from {session.address}' if session.address else ''}": None
        for session in there
    }
    return f"while {', '.join(sorted(who))} was logged in"
