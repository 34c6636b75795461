"""Base class of every action: arguments, check mode, errors, and unreachable hosts."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import yaml
from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from kimi_prov.ansible.remote import RemoteError, build_failure, build_unreachable
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.planner.findings import make_finding
from kimi_prov.runner import progress
from kimi_prov.show.text.findings import format_findings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.findings import Finding


class HostAction(ActionBase):  # type: ignore[misc]
    """An action has a method `act`; DOCUMENTATION in its module specifies its arguments.

    A RemoteError or UserError that `act` raises becomes the result of a failed task, with its fix
    and its class.
    """

    TRANSFERS_FILES = False
    _supports_check_mode = True
    # The message of check mode, in which `act` is not called; empty: `act` is called there too.
    SKIPPED_IN_CHECK_MODE: ClassVar[str] = ""
    # The meaning of a RemoteError in check mode, where a needed program may not be installed yet.
    ERROR_IN_CHECK_MODE: Literal["fail", "change", "skip"] = "fail"
    # Whether losing the host fails the task, so that `rescue` and `always` run.
    FAILS_UNREACHABLE: ClassVar[bool] = False
    # The fix of an error without one of its own.
    FIX: str | None = None

    variables: Mapping[str, Any]

    def act(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Do the work of the task and return its result; `args` are checked and complete."""
        raise NotImplementedError

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Call `act`, and turn its errors into results."""
        result: dict[str, Any] = super().run(tmp, task_vars) | {"changed": False}
        self.variables = task_vars or {}
        if self.check_mode and self.SKIPPED_IN_CHECK_MODE:
            return result | {"skipped": True, "msg": f"check mode: {self.SKIPPED_IN_CHECK_MODE}"}
        try:
            return result | self.act(self._read_arguments())
        except AnsibleConnectionFailure as error:
            if not self.FAILS_UNREACHABLE:
                raise
            return result | build_unreachable(error)
        except RemoteError as error:
            return result | self.explain(error)
        except UserError as error:
            code = "blockers" if error.exit_code is ExitCode.BLOCKED else "bad_input"
            return result | build_failure(error.message, error.fix, code)

    def explain(self, error: RemoteError) -> dict[str, Any]:
        """Return the result for an error of the machine."""
        if self.check_mode and self.ERROR_IN_CHECK_MODE == "change":
            return {"changed": True, "msg": f"would be made: {error.line}"}
        if self.check_mode and self.ERROR_IN_CHECK_MODE == "skip":
            return {"skipped": True, "msg": error.line}
        return build_failure(error, self.FIX)

    @property
    def host(self) -> str:
        """The name of the host that the task is for."""
        return str(self.variables.get("inventory_hostname", "the machine"))

    @property
    def address(self) -> str:
        """The address at which Ansible reaches the host."""
        return str(self.variables.get("ansible_host") or self.host)

    @property
    def facts(self) -> Facts:
        """What was found of that host; empty where nothing was."""
        return cast("Facts", self.variables.get("kimi_facts") or {})

    @property
    def check_mode(self) -> bool:
        """Whether nothing may be changed."""
        return bool(self._task.check_mode)

    def add_check(self, *words: str) -> list[str]:
        """Return the words of a command line, with `--check` added in check mode."""
        return [*words, *(["--check"] if self.check_mode else [])]

    def report(self, **update: object) -> None:
        """Report the host's progress."""
        progress.report_progress(Display(), self.host, update)

    def _read_arguments(self) -> dict[str, Any]:
        """Return the arguments with defaults. Raises AnsibleActionFail for one that is wrong."""
        modules = [sys.modules.get(part.__module__) for part in type(self).__mro__]
        text = next(t for m in modules if (t := getattr(m, "DOCUMENTATION", None)))
        _, arguments = self.validate_argument_spec(yaml.safe_load(text).get("options") or {})
        return dict(arguments)


def complete_findings(rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Complete a machine's findings, which only have an id, from the registry.

    Raises RemoteError for an unknown id.
    """
    names = ("observed", "required", "fix")
    try:
        return [make_finding(str(row["id"]), **{name: row[name] for name in names}) for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise RemoteError(f"the machine sent a finding that is unknown here: {error}") from None


def complete_known_findings(rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Complete findings; one that a newer version reports is left out, and the rest is shown."""
    findings: list[Finding] = []
    for row in rows:
        with contextlib.suppress(RemoteError):
            findings += complete_findings([row])
    return findings


def build_refusal(host: str, blockers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the result of an action that stops for a host's blockers, all in one message."""
    message = f"{host} does not meet what the plan requires:\n{format_findings(blockers)}"
    return build_failure(message, code="blockers", findings=blockers)
