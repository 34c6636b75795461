"""Runs the code that lies on a managed machine, from inside an action plugin.

Decides: which characters of foreign text are shown (in answers of machines).
"""

from __future__ import annotations

import json
import shlex
import time
from typing import TYPE_CHECKING, Any, TypeVar

from ansible.errors import AnsibleConnectionFailure

from kimi_prov.ansible import answer_types
from kimi_prov.contract import clean_text, paths
from kimi_prov.contract.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ansible.plugins.action import ActionBase

# Isolated: what root imports comes neither from the login user's directory, where sudo leaves it,
# nor from variables.
PYTHON = ("/usr/bin/python3", "-I")
# Before a machine that is away is asked again.
_POLL_INTERVAL_S = 1.0

_Answer = TypeVar("_Answer")


class RemoteError(HostError):
    """The machine's code answered with an error, or did not answer at all."""

    def __init__(self, message: str, fix: str | None = None, *, retryable: bool = False) -> None:
        super().__init__(
            clean_text.clean_block(message),
            clean_text.clean_block(fix) if fix else None,
            retryable=retryable,
        )


def read_answer(words: Sequence[str], value: Mapping[str, Any], *, secret: bool = False) -> Any:  # noqa: ANN401  (of the type that COMMANDS has for it)
    """Return what a subcommand answered, clean: every answer of a machine comes through here.

    `words`: the subcommand and what it was asked. `secret`: what it answered is shown to nobody.
    Raises RemoteError where it is an error instead, or not of the type that COMMANDS has for it.
    """
    error = HostError.from_answer(value)
    if error is not None:
        raise RemoteError(error.message, error.fix, retryable=error.retryable)
    misfit = answer_types.find_misfit(words, value)
    if misfit is not None:
        problem = misfit.key if secret else f"{misfit.key}: {misfit.problem}"
        raise RemoteError(
            f"the machine's answer to `{words[0]}` is not of its form: {problem}",
            "run `kimi-prov apply` first, where the kimi-prov on it is of another version",
        )
    return clean_document(value)


def clean_document(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document of a machine without control characters, raises RemoteError for no such.

    What passes here reaches the plan, documents, and what Ansible itself prints of a task.
    """
    try:
        document: dict[str, Any] = clean_text.clean_data(value)
    except RecursionError:
        raise RemoteError("the machine's answer is nested too deeply") from None
    return document


def execute(
    action: ActionBase, command: str, data: bytes | None = None, *, secret: bool = False
) -> dict[str, Any]:
    """Run a command on the machine, with `data` as its standard input; return what Ansible does.

    `secret` keeps the output out of the connection plugin's own -vvv lines. Raises
    AnsibleConnectionFailure, with ssh's own reason, where the machine is not reached.
    """
    context = action._connection._play_context
    censored, context.no_log = context.no_log, secret or context.no_log
    try:
        done: dict[str, Any] = action._low_level_execute_command(command, in_data=data)
    except AnsibleConnectionFailure as error:
        context.no_log = censored
        # Ansible leaves the reason out with a secret, and may see that ssh takes no more data
        # before ssh says why. What holds no secret and sends nothing fails for the same.
        if secret or isinstance(error.__context__, OSError):
            action._low_level_execute_command("true")
        raise
    finally:
        context.no_log = censored
    return done


def run_shell(
    action: ActionBase, command: str, *, stdin: str | None = None, secret: bool = False
) -> str:
    """Return the standard output of a shell command on the machine; `secret` as in `execute`.

    Raises RemoteError on a return code other than 0.
    """
    data = None if stdin is None else stdin.encode()
    done = execute(action, command, data, secret=secret)
    if done["rc"] != 0:
        said = (done["stderr"] or done["stdout"]).strip().splitlines()
        words = shlex.split(command)[0]
        raise RemoteError(said[-1] if said and not secret else f"{words} failed ({done['rc']})")
    return str(done["stdout"])


def call(
    action: ActionBase,
    *arguments: str,
    stdin: object = None,
    secret: bool = False,
    zipapp: str = paths.ZIPAPP,
) -> Any:  # noqa: ANN401  (of the type that COMMANDS has for it)
    """Return the JSON answer of a subcommand of the code on the machine; `stdin` is sent as JSON.

    Raises RemoteError when there is no such code, or when it answers with an error.
    """
    command = " ".join(shlex.quote(word) for word in (*PYTHON, zipapp, *arguments))
    # Its own failures come as JSON on standard output, whatever the exit status.
    text = run_shell(
        action,
        f"test -r {shlex.quote(zipapp)} || {{ echo absent; exit 0; }}; {command} || true",
        stdin=None if stdin is None else json.dumps(stdin),
        secret=secret,
    ).strip()
    if text == "absent":
        raise RemoteError(f"there is no {zipapp} on the machine", "run `kimi-prov apply` first")
    try:
        value = json.loads(text.splitlines()[-1]) if text else None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        said = "nothing" if secret or not text else text.splitlines()[-1][:300]
        raise RemoteError(f"`{arguments[0]}` on the machine answered {said} instead of JSON")
    return read_answer(arguments, value, secret=secret)


def wait_reachable(action: ActionBase, patience_s: float, ask: Callable[[], _Answer]) -> _Answer:
    """Return what `ask` does, waiting out a machine that is away (a cut link, a reboot).

    Raises AnsibleConnectionFailure where it is away for more than `patience_s` seconds.
    """
    gone = time.monotonic()
    while True:
        try:
            return ask()
        except AnsibleConnectionFailure:
            if time.monotonic() - gone > patience_s:
                raise
            action._connection.reset()
            time.sleep(_POLL_INTERVAL_S)


def build_unreachable(error: AnsibleConnectionFailure) -> dict[str, Any]:
    """Return the result of a plugin whose machine is not reached any more: that of a failure.

    For a host that Ansible calls unreachable it runs neither `rescue` nor `always`.
    """
    return build_failure(str(error), code="unreachable")


def build_failure(
    error: HostError | str,
    fix: str | None = None,
    code: str = "failed",
    findings: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return the result of a plugin that failed: what went wrong, one fix, and its class.

    The fix of an error goes before `fix`, which is the plugin's own for an error that has none.
    """
    message = clean_text.clean_block(error.message if isinstance(error, HostError) else error)
    fix = (error.fix if isinstance(error, HostError) else None) or fix
    fix = clean_text.clean_block(fix) if fix else None
    text = (
        f"{clean_text.clean_entry(message)}\n  fix: {clean_text.clean_entry(fix)}"
        if fix
        else message
    )
    shown = {
        "code": code,
        "message": message,
        "fix": fix,
        "findings": clean_text.clean_data(findings),
    }
    return {"failed": True, "msg": text, "kimi": shown}
