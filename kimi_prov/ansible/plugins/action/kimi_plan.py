"""Action `kimi_plan`: describe the machine, and work out what it shall become."""

from __future__ import annotations

import contextlib
import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible import context
from ansible.errors import AnsibleConnectionFailure, AnsibleError, AnsibleUndefinedVariable
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase

from kimi_prov.ansible import (
    apply_lock,
    gateway_hosts,
    role_options,
    serve_units,
    switching,
    weights_hosts,
)
from kimi_prov.ansible.group_hosts import described_hosts, group_of
from kimi_prov.ansible.remote import RemoteError, build_failure
from kimi_prov.ansible.send import NoRightsError, call_sent
from kimi_prov.catalog import loader
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.facts import clock
from kimi_prov.packaging import python_archives
from kimi_prov.planner import gateways
from kimi_prov.planner.findings import Findings
from kimi_prov.planner.hosts import groups, neighbours
from kimi_prov.planner.plan import make_plan_with_curve
from kimi_prov.planner.settings import parsing
from kimi_prov.planner.settings.definitions import INTERNAL, LENGTH_VARIABLES
from kimi_prov.planner.settings.locate import make_locator

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kimi_prov.planner.findings import Finding


class LockedError(Exception):
    """Another apply holds the machine's lock; `result` is what the plugin returns."""

    def __init__(self, result: dict[str, Any]) -> None:
        super().__init__(str(result.get("msg")))
        self.result = result


class ActionModule(ActionBase):  # type: ignore[misc]
    """Returns `plan` and `facts`; the role plan keeps them as `kimi_plan` and `kimi_facts`.

    Of a host of a group the first call returns facts and `shared` settings and no plan; the second,
    with `facts`, makes the plan from what all of the group's hosts were found to be.
    """

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Check the settings before the machine is asked: what is misspelt needs no connection.

        With `lock` the machine's apply lock is taken before it is described, in the same round
        trip, and released again where no plan can be made. Check mode takes no lock.
        """
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        requested = boolean(self._task.args.get("lock", False), strict=True)
        locking = requested and not self._task.check_mode
        locate = make_locator(_sources(variables), extra=_extra())
        try:
            host = str(variables.get("inventory_hostname", ""))
            settings = self._settings(variables, locate)
            role_options.check_names(variables, host, locate)
            members = _group(variables, settings)
        except UserError as error:
            return result | build_failure(error.message, error.fix, "bad_input")
        given: dict[str, Any] | None = self._task.args.get("facts")
        try:
            facts = given or self._facts(variables, locking=locking)
            found = {
                "plan": None,
                "facts": facts,
                "shared": groups.select_shared_settings(settings),
            }
            if members is None or given is not None:
                found |= self._planned(variables, facts, settings, members, locate)
        except NoRightsError as error:
            return result | build_failure(error, code="bad_input")
        except AnsibleConnectionFailure:
            raise  # what cannot be reached cannot be released either
        except BaseException as error:
            if locking:
                with contextlib.suppress(RemoteError, AnsibleError):
                    apply_lock.release(self)
            if isinstance(error, LockedError):
                return result | error.result
            if isinstance(error, UserError):
                code = "blockers" if error.exit_code is ExitCode.BLOCKED else "bad_input"
                return result | build_failure(error.message, error.fix, code)
            if isinstance(error, RemoteError):
                return result | build_failure(error)
            raise
        return result | {"changed": False} | found

    def _planned(
        self,
        variables: Mapping[str, Any],
        facts: dict[str, Any],
        settings: parsing.Settings,
        members: tuple[str, list[str]] | None,
        locate: Callable[[str], str | None],
    ) -> dict[str, Any]:
        """Make the plan of a host that serves, or of a gateway, which is no plan for documents."""
        before = gateway_hosts.before(variables)
        if gateway_hosts.is_gateway(variables):
            serving = gateway_hosts.behind(variables)
            plan = gateways.make_plan(facts, settings, loader.load_catalogue(), serving, before)
            _check_archive(plan, facts)
            document = {}
        else:
            hosts = described_hosts(members, variables) if members else None
            plan = make_plan_with_curve(facts, settings, loader.load_catalogue(), hosts, before)
            near = weights_hosts.near(variables) if settings.weights_from != "source" else []
            own, port = str(settings.host), settings.weights_port
            neighbours.add_neighbours(plan, own, settings.weights_from, port, near)
            plan["findings"] = _with_restarts(plan, facts)
            plan["upgrade"]["switches"] = switching.needed(plan, facts)
            _check_archive(plan, facts)
            document = {"kimi_document": plan}
        self._check_role_options(variables, {"kimi_plan": plan, "kimi_facts": facts}, locate)
        return {"plan": plan, **document}

    def _facts(self, variables: Mapping[str, Any], *, locking: bool) -> dict[str, Any]:
        """Describe the machine, after taking its lock; raises LockedError where another has it."""
        facts = self._probe(*_lock_arguments(locking=locking))
        answer = facts.pop("lock", None)
        if answer is None or answer["held"]:
            return facts
        answer = apply_lock.taken_over(self, answer)
        if not answer["held"]:
            host = str(variables.get("inventory_hostname", "the machine"))
            raise LockedError(apply_lock.refusal(host, answer))
        return self._probe()

    def _probe(self, *arguments: str) -> dict[str, Any]:
        """Describe the machine, and tell how far its clock is from this one's."""
        asked = time.time()
        facts = call_sent(self, "probe", *arguments)
        return clock.add_clock_offset(facts, asked, time.time())

    def _settings(
        self, variables: Mapping[str, Any], locate: Callable[[str], str | None]
    ) -> parsing.Settings:
        values = {}
        if gateway_hosts.is_gateway(variables):
            variables = {**variables, **gateway_hosts.of_hosts(variables)}
        names = [n for n in variables if str(n).startswith("kimi_") and n not in INTERNAL]
        for name in [*names, *LENGTH_VARIABLES, "ansible_host"]:
            if name in variables:
                values[str(name)] = self._value(name, variables[name], locate)
        folder = variables.get("inventory_dir")
        return parsing.parse_settings(
            values,
            host=str(variables.get("inventory_hostname", "")),
            base=Path(str(folder)) if folder else None,
            locate=locate,
        )

    def _check_role_options(
        self,
        variables: Mapping[str, Any],
        planned: Mapping[str, Any],
        locate: Callable[[str], str | None],
    ) -> None:
        """Check what the inventory sets of the roles' options; a value may refer to the plan."""
        options = role_options.given(variables)
        if options:
            templar = self._templar.copy_with_new_env(available_variables={**variables, **planned})
            values = {}
            for name in options:
                # What refers to a role's own variables has no value before that role runs.
                with contextlib.suppress(AnsibleError):
                    values[name] = templar.template(variables[name])
            role_options.check(values, options, locate)

    def _value(self, name: str, value: Any, locate: Callable[[str], str | None]) -> Any:  # noqa: ANN401
        """Fill in the templates of a variable, whatever YAML can hold."""
        try:
            return self._templar.template(value)
        except AnsibleError as error:
            undefined = isinstance(error, AnsibleUndefinedVariable)
            raise UserError(
                f"{locate(name) or 'the inventory'}: {name}: {str(error).splitlines()[0]}",
                fix="define the variable that it refers to"
                if undefined
                else f"correct the template in the value of {name}",
            ) from error


def _group(
    variables: Mapping[str, Any], settings: parsing.Settings
) -> tuple[str, list[str]] | None:
    many = settings.hosts_per_model
    if many == 1 or gateway_hosts.is_gateway(variables):
        return None
    return group_of(variables, many)


def _lock_arguments(*, locking: bool) -> list[str]:
    return ["--lock", json.dumps(apply_lock.holder())] if locking else []


def _check_archive(plan: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Refuse a directory of the control machine without the interpreter that has to be brought."""
    # A gateway installs something only where it has the page.
    python = plan.get("installation", {}).get("python")
    if python and python["archive"] and python["name"] not in facts["kimi"]["pythons"]:
        python_archives.find(Path(plan["site"]["python_mirror"]), python)


def _with_restarts(plan: Mapping[str, Any], facts: Mapping[str, Any]) -> list[Finding]:
    findings = Findings()
    findings.extend(plan["findings"])
    serve_units.restarts(plan, facts, findings)
    return findings.rows()


def _given() -> list[str]:
    return [str(text) for text in context.CLIARGS.get("extra_vars") or ()]


def _extra() -> list[str]:
    """Names that were set with -e on the command line itself."""
    texts = [text for text in _given() if not text.startswith("@")]
    return [name for text in texts for name in re.findall(r"\bkimi_\w+", text)]


def _sources(variables: Mapping[str, Any]) -> list[str]:
    """Inventories and files of extra variables that were named on the command line."""
    files = [text[1:] for text in _given() if text.startswith("@")]
    return [*files, *(str(source) for source in variables.get("ansible_inventory_sources") or ())]
