"""Call a subcommand on a machine without our code, and leave no file there."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError

from kimi_prov.ansible.remote import PYTHON, RemoteError, execute, read_answer
from kimi_prov.packaging.zipapp import make_zipapp_bytes

if TYPE_CHECKING:
    from ansible.plugins.action import ActionBase

# The zipapp arrives on standard input, is kept in an anonymous file in memory and imported from
# there; the rest of standard input is the subcommand's own.
_RECEIVER = """\
import os, runpy, sys
name = os.memfd_create("kimi-target")
with open(name, "wb", closefd=False) as file:
    file.write(sys.stdin.buffer.read(int(sys.argv.pop(1))))
sys.dont_write_bytecode = True
runpy.run_path("/proc/self/fd/%d" % name, run_name="__main__")
"""

# Ansible loads this module before it forks a process for each task, so it is compressed once.
_PROGRAM = make_zipapp_bytes()


class NoRightsError(RemoteError):
    """The inventory's user may not become root."""


def call_sent(
    action: ActionBase, *arguments: str, stdin: object = None, secret: bool = False
) -> Any:  # noqa: ANN401  (of the type that COMMANDS has for it)
    """Return the JSON answer of a subcommand, in one round trip; `stdin` is sent as JSON.

    `arguments` must hold no secret: the process list shows them; `secret` as in `execute`.
    Raises RemoteError.
    """
    words = (*PYTHON, "-c", _RECEIVER, str(len(_PROGRAM)), *arguments)
    data = _PROGRAM if stdin is None else _PROGRAM + json.dumps(stdin).encode()
    try:
        done = execute(action, shlex.join(words), data, secret=secret)
    except AnsibleConnectionFailure:
        raise
    except AnsibleError as error:
        raise _build_error(1, str(error), arguments[0]) from error
    text = str(done["stdout"])
    start = text.find("{")
    try:
        # A login shell may print a banner before the answer.
        value = json.loads(text[start:]) if start >= 0 else None
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        return read_answer(arguments, value, secret=secret)
    said = "" if secret else f"{done['stderr']}\n{text}"
    raise _build_error(int(done["rc"]), said, arguments[0])


def _build_error(status: int, said: str, subcommand: str) -> RemoteError:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    last = lines[-1] if lines else f"exit status {status}"
    if any("sudo" in line for line in lines):
        return NoRightsError(
            f"no root rights on the machine: {last}",
            "log in as root, or give the user passwordless sudo, or its password (-K)",
        )
    if status == 127 or "No such file" in last:
        return RemoteError(
            f"{PYTHON[0]} cannot be run on the machine: {last}", "apt-get install python3"
        )
    return RemoteError(f"`{subcommand}` failed on the machine: {last}")
