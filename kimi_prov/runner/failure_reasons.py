"""Explain in one sentence why a task or a host failed, and what to do.

Decides: messages for failed hosts, and exit codes.
Held by: tests/unit/runner/test_failure_reasons.py, tests/lab/test_failures.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import clean_text
from kimi_prov.errors import ExitCode
from kimi_prov.runner import jump_hosts

if TYPE_CHECKING:
    from kimi_prov.runner.events import TaskFinished

_CODES = {
    "bad_input": ExitCode.BAD_INPUT,
    "blockers": ExitCode.BLOCKED,
    "locked": ExitCode.BLOCKED,
    "failed": ExitCode.FAILED,
}
_MAX_LENGTH = 500
_PREFIX = re.compile(r"^(?:(?:Task|Module) failed[:.]\s*)+")
LOG = "read the log"


@dataclass(frozen=True)
class Failure:
    """Why one host failed. `findings` are its blockers, if they are the reason.

    `hop_unknown`: a host on the way to it failed, and Ansible does not know which. `is_explained`:
    the cause is a sentence of our own, which needs no title of a task.
    """

    host: str
    phase: str
    task: str
    cause: str
    fix: str
    exit_code: ExitCode
    findings: tuple[Mapping[str, Any], ...] = ()
    hop_unknown: bool = False
    is_explained: bool = False


@dataclass(frozen=True)
class _Reason:
    pattern: re.Pattern[str]
    cause: str
    fix: str
    command: str = ""


def _define_reason(pattern: str, cause: str, fix: str, command: str = "") -> _Reason:
    return _Reason(re.compile(pattern, re.IGNORECASE), cause, fix, command)


# The sentences may hold {host} and {address}. A command, which follows the fix, is meant to be
# pasted: its {address} is the inventory's own, quoted, and never one from a message.
_CONNECTION = (
    _define_reason(
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|Host key verification failed",
        "the SSH host key of {address} is unknown here or is not the one known before",
        "if the machine is the right one, correct ~/.ssh/known_hosts",
        ":  ssh-keygen -R {address}; ssh-keyscan {address} >> ~/.ssh/known_hosts",
    ),
    _define_reason(
        r"UNPROTECTED PRIVATE KEY FILE|bad permissions",
        "the SSH key file for {address} may be read by others, so ssh does not use it",
        "chmod 600 the file that ansible_ssh_private_key_file names",
    ),
    _define_reason(
        r"Permission denied|Authentication failed|Too many authentication failures",
        "{address} refused the SSH login: wrong user or key",
        "set ansible_user and ansible_ssh_private_key_file of {host} in the inventory",
        ", or  ssh-copy-id USER@{address}",
    ),
    _define_reason(
        r"Could not resolve hostname",
        "the name {address} cannot be resolved",
        "correct ansible_host of {host} in the inventory",
    ),
    _define_reason(
        r"Connection refused",
        "{address} refused the connection: no SSH server listens on that port",
        "start sshd there, or correct ansible_host and ansible_port of {host}",
    ),
    _define_reason(
        r"No route to host|Network is unreachable|Host is down",
        "there is no route to {address}",
        "switch the machine on, or correct ansible_host of {host} in the inventory",
    ),
    _define_reason(
        r"timed out",
        "{address} did not answer in time",
        "switch the machine on, let its firewall allow SSH, or correct ansible_host of {host}",
    ),
    # Ansible waits a millisecond for ssh's reason, and then only reports the broken pipe.
    _define_reason(
        r"Data could not be sent to remote host",
        "{address} ended the SSH connection at its start, and ssh's reason was lost",
        "try  ssh USER@{address}  : a wrong user or key may look like this. Then run this again",
    ),
    _define_reason(
        r"Connection (?:closed|reset)|kex_exchange_identification|Broken pipe",
        "{address} cut the SSH connection",
        "look at sshd's journal on {host}, then run this again",
    ),
)
# The address that ssh itself reports: extra variables may have changed the inventory's.
_PLACE = r"([\w.:%-]{1,255})"
_PLACES = (
    re.compile(rf"connect to host {_PLACE} port", re.ASCII),
    re.compile(rf"Could not resolve hostname {_PLACE}:", re.ASCII),
    re.compile(rf"\S+@{_PLACE}: Permission denied", re.ASCII),
    re.compile(rf"Connection (?:closed|reset) by {_PLACE} port", re.ASCII),
)
# The machine was reached, but the inventory's user may not manage it.
_SUDO = (
    _define_reason(
        r"a (?:terminal|password) is required|Missing sudo password|is not in the sudoers"
        r"|Incorrect sudo password|a password is required|not allowed to execute",
        "the user on {host} may not become root without a password",
        "give its password (-K, or --become-password-file FILE), log in as root (-u root), or "
        "allow it NOPASSWD in sudoers",
    ),
    _define_reason(
        r"sudo: (?:not found|command not found)|sudo: No such file",
        "there is no sudo on {host}",
        "log in as root (ansible_user: root), or install sudo there",
    ),
)
# The machine was reached, but cannot be managed.
_PYTHON = (
    _define_reason(
        r"python3?[0-9.]*: (?:not found|command not found|No such file)"
        r"|interpreter .{0,80}(?:not found|was not found|No such file)"
        r"|No python interpreters found",
        "there is no /usr/bin/python3 on {host}",
        "install python3 there (3.9 or newer)",
    ),
)
_GENERAL = (
    _define_reason(
        r"No space left on device",
        "a disk of {host} is full",
        "make room there, then run this again",
    ),
    _define_reason(
        r"Unable to locate package|has no installation candidate|No package matching '([^']+)'",
        "a Debian package is not available on {host}",
        "check kimi_apt_mirror and the machine's apt sources",
    ),
    _define_reason(
        r"Could not get lock /var|Unable to acquire the dpkg",
        "another program on {host} is installing packages",
        "wait until it ends, then run this again; as long as it runs,  "
        "fuser -v /var/lib/dpkg/lock-frontend  names it there",
    ),
    _define_reason(
        r"dpkg was interrupted|dpkg --configure -a",
        "packages on {host} are half installed, so apt installs no others",
        "dpkg --configure -a  there, then run this again",
    ),
)


def explain_unreachable(finished: TaskFinished, address: str, ssh_arguments: str = "") -> Failure:
    """Explain why a host could not be reached; the address and arguments are the inventory's."""
    text = _read_text(finished.result)
    hops = jump_hosts.read_hops(ssh_arguments)
    if of_hop := jump_hosts.explain_hop(text, finished.host, address, hops):
        where = (finished.host, finished.phase, finished.task)
        return Failure(*where, *of_hop, ExitCode.UNREACHABLE)
    if jump_hosts.is_through(text, ssh_arguments):
        cause, fix = jump_hosts.describe_unknown(finished.host, address, hops)
        where = (finished.host, finished.phase, finished.task)
        return Failure(*where, cause, fix, ExitCode.UNREACHABLE, hop_unknown=True)
    went = next((m[1] for m in (pattern.search(text) for pattern in _PLACES) if m), address)
    known = went == address
    reason = _match_reason(_CONNECTION + _SUDO + _PYTHON, text, finished.host, went, known=known)
    by_hand = f"ssh {clean_text.quote_word(address)}" if known else "ssh"
    cause, fix = reason or (
        f"{went} cannot be reached: {_find_first_line(text)}",
        f"try  {by_hand}  by hand",
    )
    return Failure(finished.host, finished.phase, finished.task, cause, fix, ExitCode.UNREACHABLE)


def explain_failed(finished: TaskFinished, address: str, ssh_arguments: str = "") -> Failure:
    """Explain why a task failed: by the plugin's own message, or by a known reason."""
    result = finished.result
    ours = result.get("kimi")
    if isinstance(ours, Mapping) and ours.get("code") == "unreachable":
        return explain_unreachable(finished, address, ssh_arguments)
    text = _read_text(result)
    if not (isinstance(ours, Mapping) and ours.get("code") in {"bad_input", "blockers", "unit"}):
        for reasons, code in ((_SUDO, ExitCode.BAD_INPUT), (_PYTHON, ExitCode.UNREACHABLE)):
            if reason := _match_reason(reasons, text, finished.host, address):
                return Failure(finished.host, finished.phase, finished.task, *reason, code)
    if isinstance(ours, Mapping):
        cause = str(ours.get("message") or result.get("msg") or "it failed").strip()
        rows = ours.get("findings")
        return Failure(
            finished.host,
            finished.phase,
            finished.task,
            cause.strip(),
            str(ours.get("fix") or LOG),
            _CODES.get(str(ours.get("code")), ExitCode.FAILED),
            tuple(rows) if isinstance(rows, list | tuple) else (),
            is_explained=True,
        )
    cause, fix = _match_reason(_GENERAL, text, finished.host, address) or (
        _extract_cause(result),
        LOG,
    )
    return Failure(finished.host, finished.phase, finished.task, cause, fix, ExitCode.FAILED)


def _match_reason(
    reasons: tuple[_Reason, ...], text: str, host: str, address: str, *, known: bool = True
) -> tuple[str, str] | None:
    """Return cause and fix of the first reason that fits, with its command if `known`.

    `known`: the address is the inventory's own.
    """
    for reason in reasons:
        if reason.pattern.search(text):
            named = {"host": host, "address": address}
            command = reason.command.format(address=clean_text.quote_word(address)) if known else ""
            return reason.cause.format(**named), reason.fix.format(**named) + command
    return None


def _read_text(result: Mapping[str, Any]) -> str:
    keys = ("msg", "stderr", "module_stderr", "module_stdout", "stdout")
    return "\n".join(str(result[key]) for key in keys if result.get(key))


def _find_first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return _PREFIX.sub("", lines[0])[:_MAX_LENGTH] if lines else "it gave no reason"


def _extract_cause(result: Mapping[str, Any]) -> str:
    """Return the message of a module's result; of a loop, the message of the failed item."""
    for item in result.get("results") or []:
        if isinstance(item, Mapping) and (item.get("failed") or item.get("unreachable")):
            return _extract_cause(item)
    message = _find_first_line(str(result.get("msg") or ""))
    last = [line.strip() for line in str(result.get("stderr") or "").splitlines() if line.strip()]
    if "non-zero return code" in message.lower() or message == "it gave no reason":
        words = result.get("cmd")
        command = (
            " ".join(map(str, words)) if isinstance(words, list) else str(words or "a command")
        )
        reason = last[-1][:_MAX_LENGTH] if last else f"status {result.get('rc', '?')}"
        return f"{command[:120]} failed: {reason}"
    return message
