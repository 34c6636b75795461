"""Which hop failed on the way to a host behind a jump host, what it said, and how to try it alone.

Decides: messages for failed hosts, and exit codes (behind a jump host).
Held by: tests/unit/runner/test_jump_hosts.py.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# ssh's own words where what it reads through, and not a host, ended the connection: closed, reset,
# or gone before ssh wrote its first line ("banner exchange: Connection to UNKNOWN port 65535").
_THROUGH = re.compile(r"UNKNOWN port 65535|stdio forwarding failed|channel \d+: open failed")
_PROXY = re.compile(r"(?i)-J|ProxyJump|ProxyCommand")
_CUT = re.compile(
    r"Connection (?:closed|reset)|Broken pipe|kex_exchange|could not be sent|timed out"
)
# The host itself spoke, and not what lies before it.
_ANSWERED = re.compile(r"Permission denied|Host key verification failed|IDENTIFICATION HAS CHANGED")
_BEYOND = re.compile(r"channel \d+: open failed: (?:connect failed: )?([^\r\n]{1,120})")
_PROGRAM = re.compile(r"(?:exec: )?([\w./-]{1,80}): (?:command )?not found")
_NAME = r"([\w.:%-]{1,255})"
_FAULTS = (
    (rf"connect to host {_NAME} port \d+: Connection refused", "refused the connection"),
    (rf"connect to host {_NAME} port \d+: [^\r\n]{{0,40}}timed out", "did not answer in time"),
    (rf"connect to host {_NAME} port \d+: ([^\r\n]{{1,60}})", "cannot be reached"),
    (rf"Could not resolve hostname {_NAME}:", "has a name that cannot be resolved"),
    (rf"\S+@{_NAME}: Permission denied", "refused the SSH login: wrong user or key"),
    (r"Host key verification failed|IDENTIFICATION HAS CHANGED", "has an unknown SSH host key"),
    (r"Too many authentication failures", "refused the SSH login: too many keys were offered"),
    (r"[Cc]onnection timed out|Operation timed out", "did not answer in time"),
)
_JUMP = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^:\[\]]+))(?::(\d+))?")


# A connection of its own, which asks nobody.
_ALONE = (
    *("-o", "ControlMaster=no", "-o", "ControlPath=none", "-o", "BatchMode=yes"),
    *("-o", "ConnectTimeout=10"),
)
_LOGIN = ("user", "port", "ssh_private_key_file")
_TIMEOUT_S = 20
_MAX_TEXT = 4000


@dataclass(frozen=True)
class Hop:
    """A host on the way: its name, and the command that tries it alone."""

    name: str
    command: str


def read_hops(arguments: str) -> list[Hop]:
    """Return the hops of ssh's arguments, as ansible_ssh_common_args has them: -J or ProxyCommand.

    What cannot be read has none.
    """
    try:
        words = shlex.split(arguments)
    except ValueError:
        return []
    for option, value in _list_options(words):
        if option == "proxyjump":
            return _read_jumps(value)
        if option == "proxycommand":
            return _read_command(value)
    return []


def _list_options(words: list[str]) -> list[tuple[str, str]]:
    found = []
    for at, word in enumerate(words):
        behind = words[at + 1] if at + 1 < len(words) else ""
        if word.startswith("-J"):
            found.append(("proxyjump", word[2:] or behind))
        elif word.startswith("-o"):
            name, _, value = re.sub(r"\s*=\s*|\s+", "=", word[2:] or behind, count=1).partition("=")
            found.append((name.lower(), value))
    return found


def _read_jumps(value: str) -> list[Hop]:
    """Return the hops of a ProxyJump; each is reached through those before it."""
    hops: list[Hop] = []
    before: list[str] = []
    for jump in value.removeprefix("ssh://").split(","):
        user, mark, target = jump.strip().rpartition("@")
        match = _JUMP.fullmatch(target)
        if match is None:
            return []
        name = match[1] or match[2]
        words = ["ssh", *(["-J", ",".join(before)] if before else [])]
        words += [*(["-p", match[3]] if match[3] else []), f"{user}{mark}{name}"]
        hops.append(Hop(name, shlex.join(words)))
        before.append(jump.strip())
    return hops


def _read_command(value: str) -> list[Hop]:
    """Return the hop of a ProxyCommand that is ssh's."""
    try:
        words = shlex.split(value)
    except ValueError:
        return []
    if not words or words[0].rpartition("/")[2] != "ssh":
        return []
    kept = [word for at, word in enumerate(words) if word != "-W" and words[at - 1] != "-W"]
    places = [word for word in kept[1:] if "@" in word and "=" not in word] or kept[-1:]
    return [Hop(places[0].rpartition("@")[2], shlex.join(kept))]


def is_through(text: str, arguments: str) -> bool:
    """Whether a connection was cut on its way to a host, as far as Ansible's text tells."""
    return bool(
        _THROUGH.search(text)
        or (_PROXY.search(arguments) and _CUT.search(text) and not _ANSWERED.search(text))
    )


def describe_unknown(host: str, address: str, hops: list[Hop]) -> tuple[str, str]:
    """Return cause and fix where ssh's words about a hop are lost."""
    names = " and ".join(hop.name for hop in hops) or "another host"
    command = f":  {hops[0].command}" if hops else ""
    return (
        f"{address} is behind {names}, and the way there failed",
        f"try the first hop alone{command}  (ansible_ssh_common_args of {host} names it)",
    )


def ask_ssh(login: Mapping[str, object], arguments: str) -> str:
    """Return what ssh itself says on the way to a host, of its inventory's variables.

    Ansible shares connections (ControlPersist), for which ssh throws a jump host's words away. A
    hop whose ssh is told to be quiet is tried alone.
    """
    user, port, key = (login.get(f"ansible_{name}") for name in _LOGIN)
    try:
        words = shlex.split(arguments)
    except ValueError:
        return ""
    words += [*(["-l", str(user)] if user else []), *(["-p", str(port)] if port else [])]
    words += [*(["-i", str(key)] if key else []), "--", str(login["address"])]
    text = _run_ssh(words)
    hops = read_hops(arguments)
    if is_through(text, arguments) and hops and _find_fault(text, hops)[1] is None:
        alone = [word for word in shlex.split(hops[0].command)[1:] if word != "-q"]
        text += "\n" + _run_ssh(alone)
    return text


def _run_ssh(words: list[str]) -> str:
    """Return what ssh writes on standard error."""
    try:
        done = subprocess.run(
            ["ssh", *_ALONE, *words, "true"],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        return (late.stderr or b"").decode(errors="replace") + "\nConnection timed out"
    except OSError:
        return ""
    return done.stderr.decode(errors="replace")[:_MAX_TEXT]


def explain_hop(text: str, host: str, address: str, hops: list[Hop]) -> tuple[str, str] | None:
    """Return cause and fix where a jump host is to blame; None where the host itself is."""
    if not _THROUGH.search(text):
        return None
    if beyond := _BEYOND.search(text):
        return _explain_beyond(beyond[1].strip(), host, address, hops)
    if program := _PROGRAM.search(text):
        cause = f"its program {program[1]} is not on this computer"
        setting = f"-o ProxyJump=USER@JUMPHOST  in ansible_ssh_common_args of {host}"
        return (
            f"{address} is reached by a ProxyCommand, and {cause}",
            f"install it here, or use  {setting}",
        )
    hop, fault = _find_fault(text, hops)
    if fault is None:
        return None
    name = hop.name if hop else "that ssh's arguments name"
    # A command is the inventory's own, never one with words of a message.
    command = f":  {hop.command}  " if hop and hop.command else " with ssh,"
    return (
        f"{address} is behind the jump host {name}, which {fault}",
        f"try that hop alone{command} and correct it in ansible_ssh_common_args of {host}",
    )


def _explain_beyond(reason: str, host: str, address: str, hops: list[Hop]) -> tuple[str, str]:
    names = " and ".join(hop.name for hop in hops) or "the jump host"
    command = f":  {hops[-1].command}  " if hops else ""
    fix = (
        f"log in to the jump host{command} and try  ssh {shlex.quote(address)}  from it; correct "
        f"ansible_host and ansible_port of {host}, or let the jump host forward "
        "(AllowTcpForwarding of its sshd)"
    )
    return f"{names} was reached, and cannot reach {address} from there: {reason}", fix


def _find_fault(text: str, hops: list[Hop]) -> tuple[Hop | None, str | None]:
    """Return the hop that failed and what it did; without a name in the text the first hop."""
    for pattern, fault in _FAULTS:
        match = re.search(pattern, text, re.ASCII)
        if match:
            said = match[1] if match.re.groups else ""
            hop = next((one for one in hops if one.name == said), None)
            named = hop or (hops[0] if hops and not said else None)
            return named or (Hop(said, "") if said and not hops else None), fault
    return None, None
