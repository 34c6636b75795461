"""Call the code that is installed on a managed machine, from inside an action plugin.

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
from kimi_prov.contract.errors import NOT_APPLIED, HostError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ansible.plugins.action import ActionBase

# Isolated: root imports no code from the login user's directory, in which sudo starts it, and
# none that variables name.
PYTHON = ("/usr/bin/python3", "-I")
# Pause before an unreachable machine is asked again.
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
    """Return a subcommand's answer, clean: every answer of a machine comes through here.

    `words`: the subcommand and its arguments. `secret`: no part of the answer is shown.
    Raises RemoteError for an error, and for an answer that does not fit its type in COMMANDS.
    """
    error = HostError.from_answer(value)
    if error is not None:
        raise RemoteError(error.message, error.fix, retryable=error.retryable)
    misfit = answer_types.find_misfit(words, value)
    if misfit is not None:
        problem = misfit.key if secret else f"{misfit.key}: {misfit.problem}"
        raise RemoteError(
            f"the machine's answer to `{words[0]}` has another form than expected: {problem}",
            "run `kimi-prov apply` first if the machine has another version of kimi-prov",
        )
    return clean_document(value)


def clean_document(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a machine's document without control characters.

    It reaches the plan, documents, and Ansible's own output of a task. Raises RemoteError where it
    is nested too deeply.
    """
    try:
        document: dict[str, Any] = clean_text.clean_data(value)
    except RecursionError:
        raise RemoteError("the machine's answer is nested too deeply") from None
    return document


def execute(
    action: ActionBase, command: str, data: bytes | None = None, *, secret: bool = False
) -> dict[str, Any]:
    """Run a command on the machine, with `data` as its standard input; return Ansible's result.

    `secret` keeps the output out of the connection plugin's own -vvv lines. Raises
    AnsibleConnectionFailure, with ssh's own reason, where the machine is not reached.
    """
    context = action._connection._play_context
    censored, context.no_log = context.no_log, secret or context.no_log
    try:
        done: dict[str, Any] = action._low_level_execute_command(command, in_data=data)
    except AnsibleConnectionFailure as error:
        context.no_log = censored
        # Ansible hides ssh's reason of a secret command, and may see a closed pipe before ssh
        # prints its reason. A command without a secret and without input fails with that reason.
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
    # The program reports its failures as JSON on standard output, with any exit status.
    text = run_shell(
        action,
        f"test -r {shlex.quote(zipapp)} || {{ echo absent; exit 0; }}; {command} || true",
        stdin=None if stdin is None else json.dumps(stdin),
        secret=secret,
    ).strip()
    if text == "absent":
        raise RemoteError(*NOT_APPLIED)
    try:
        value = json.loads(text.splitlines()[-1]) if text else None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        said = "nothing" if secret or not text else text.splitlines()[-1][:300]
        raise RemoteError(f"`{arguments[0]}` on the machine answered {said} instead of JSON")
    return read_answer(arguments, value, secret=secret)


def wait_reachable(action: ActionBase, patience_s: float, ask: Callable[[], _Answer]) -> _Answer:
    """Return the result of `ask`; wait for a machine that is unreachable (cut link, reboot).

    Raises AnsibleConnectionFailure after more than `patience_s` seconds without the machine.
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
    """Return the result of a plugin whose machine was lost: a failed task.

    For a host that is unreachable Ansible runs neither `rescue` nor `always`.
    """
    return build_failure(str(error), code="unreachable")


def build_failure(
    error: HostError | str,
    fix: str | None = None,
    code: str = "failed",
    findings: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return the result of a plugin that failed: message, one fix, and class.

    An error's own fix is preferred to `fix`, the plugin's default.
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
