"""Actions on a machine that is a function: what it is asked, and what it answers."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from kimi_prov.packaging.zipapp import make_zipapp_bytes

if TYPE_CHECKING:
    from kimi_prov.ansible.host_action import HostAction


@dataclass
class Question:
    """One round trip: the subcommand's words, its standard input, and how it went there."""

    words: list[str]
    input: Any
    sent: bool
    secret: bool


@dataclass
class Machine:
    """Answers each question with the same, or with the next of several; raises what is raised."""

    answers: Any
    questions: list[Question] = field(default_factory=list)
    context: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(no_log=False))

    def execute(self, command: str, in_data: bytes | None = None, **_: object) -> dict[str, Any]:
        """Take what Ansible would run there."""
        words = shlex.split(command)
        program = make_zipapp_bytes()
        sent = in_data is not None and in_data.startswith(program)
        data = (in_data or b"")[len(program) if sent else 0 :]
        words = words[words.index("-c") + 3 :] if sent else words[words.index("-I") + 2 : -2]
        value = json.loads(data) if data else None
        self.questions.append(Question(words, value, sent, self.context.no_log))
        answer = self.answers.pop(0) if isinstance(self.answers, list) else self.answers
        if isinstance(answer, BaseException):
            raise answer
        text = answer if isinstance(answer, str) else json.dumps(answer)
        return {"rc": 0, "stdout": text, "stderr": ""}


def make_action(
    module: type[HostAction],
    machine: Machine,
    args: dict[str, Any],
    *,
    check: bool = False,
    delegate_to: str | None = None,
    transport: str = "ssh",
) -> HostAction:
    """Return the action of a task with these arguments."""
    action = module(
        task=SimpleNamespace(
            args=args, async_val=0, check_mode=check, delegate_to=delegate_to, diff=False
        ),
        connection=SimpleNamespace(
            _play_context=machine.context,
            _shell=SimpleNamespace(tmpdir=None),
            has_pipelining=True,
            transport=transport,
        ),
        play_context=SimpleNamespace(),
        loader=None,
        templar=None,
        shared_loader_obj=None,
    )
    action._low_level_execute_command = machine.execute
    return action


def run_action(
    module: type[HostAction], machine: Machine, args: dict[str, Any], **options: Any
) -> dict[str, Any]:
    """Return the result of a task with these arguments, for the host h1."""
    variables = {"inventory_hostname": "h1", **options.pop("variables", {})}
    return make_action(module, machine, args, **options).run(task_vars=variables)
