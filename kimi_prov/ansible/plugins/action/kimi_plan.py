"""Action `kimi_plan`: describe the machine, and make its plan."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ansible.errors import AnsibleConnectionFailure, AnsibleError

from kimi_prov.ansible import (
    apply_lock,
    gateway_hosts,
    host_settings,
    role_options,
    serve_units,
    switching,
    weights_hosts,
)
from kimi_prov.ansible.group_hosts import find_group, gather_hosts
from kimi_prov.ansible.host_action import HostAction
from kimi_prov.ansible.remote import RemoteError, build_failure
from kimi_prov.ansible.send import NoRightsError, call_sent
from kimi_prov.catalog import loader
from kimi_prov.facts import clock
from kimi_prov.operate.bundle import coverage
from kimi_prov.packaging import python_archives
from kimi_prov.planner import gateways
from kimi_prov.planner.findings import Findings
from kimi_prov.planner.hosts import groups, neighbours
from kimi_prov.planner.plan import make_plan_with_curve

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kimi_prov.contract.documents.facts import Facts, ProbeAnswer
    from kimi_prov.contract.documents.findings import Finding
    from kimi_prov.contract.documents.plan import MachinePlan, Plan
    from kimi_prov.planner.settings import parsing


DOCUMENTATION = """
module: kimi_plan
short_description: Describes the machine and makes its plan
description:
  - Returns C(facts), C(shared) settings and C(plan).
  - For a host of a group the first call makes no plan; the second, with C(facts), makes it from
    the facts of all hosts of the group.
options:
  lock:
    type: bool
    default: false
    description:
      - Take the apply lock before the machine is described, in the same round trip. Check mode
        takes none.
  facts:
    type: dict
    description: The facts that the first call returned.
"""


class LockedError(Exception):
    """Another apply holds the machine's lock; `result` is what the plugin returns."""

    def __init__(self, result: dict[str, Any]) -> None:
        super().__init__(str(result.get("msg")))
        self.result = result


class ActionModule(HostAction):
    """Checks the settings first: a misspelt name is reported without a connection."""

    def act(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Describe the machine and make its plan; without a plan the lock is released again."""
        variables = self.variables
        locking = args["lock"] and not self.check_mode
        locate = host_settings.make_host_locator(self)
        settings = host_settings.read_settings(self, locate)
        role_options.check_names(variables, self.host, locate)
        members = _find_members(variables, settings)
        try:
            facts = args["facts"] or self._describe(locking=locking)
            shared = groups.select_shared_settings(settings)
            result = {"plan": None, "facts": facts, "shared": shared}
            if members is None or args["facts"]:
                result |= self._plan_host(facts, settings, members, locate)
        except NoRightsError as error:
            return build_failure(error, code="bad_input")
        except AnsibleConnectionFailure:
            raise  # the lock of an unreachable machine cannot be released
        except BaseException as error:
            if locking:
                with contextlib.suppress(RemoteError, AnsibleError):
                    apply_lock.release(self)
            if isinstance(error, LockedError):
                return error.result
            raise
        return result

    def _plan_host(
        self,
        facts: Facts,
        settings: parsing.Settings,
        members: tuple[str, list[str]] | None,
        locate: Callable[[str], str | None],
    ) -> dict[str, Any]:
        """Make the plan of a serving host, or of a gateway, whose plan is of another type."""
        variables = self.variables
        before = gateway_hosts.list_gateways(variables)
        if gateway_hosts.is_gateway(variables):
            serving = gateway_hosts.list_served_hosts(variables)
            plan: Plan = gateways.make_plan(
                facts, settings, loader.load_catalogue(), serving, before
            )
            document = {}
        else:
            hosts = gather_hosts(members, variables) if members else None
            made = make_plan_with_curve(facts, settings, loader.load_catalogue(), hosts, before)
            source, port = settings.weights_from, settings.weights_port
            near = weights_hosts.list_neighbours(variables) if source != "source" else []
            neighbours.add_neighbours(made, str(settings.host), source, port, near)
            made["findings"] = _add_restarts(made, facts)
            made["upgrade"]["switches"] = switching.is_needed(made, facts)
            plan = made
            document = {"kimi_document": made}
        if "bundle" in plan["site"]:
            plan["findings"] = coverage.judge_bundle(plan, facts, settings.bundle_key)
        else:
            _check_archive(plan, facts)
        self._check_role_options({"kimi_plan": plan, "kimi_facts": facts}, locate)
        return {"plan": plan, **document}

    def _describe(self, *, locking: bool) -> Facts:
        """Describe the machine, after taking its lock; raises LockedError where another has it."""
        lock = ["--lock", json.dumps(apply_lock.describe_holder())] if locking else []
        facts = self._probe(*lock)
        answer = facts.get("lock")
        facts.pop("lock", None)
        if answer is None or answer["held"]:
            return facts
        answer = apply_lock.take_over(self, answer)
        if not answer["held"]:
            raise LockedError(apply_lock.build_refusal(self.host, answer))
        return self._probe()

    def _probe(self, *arguments: str) -> ProbeAnswer:
        """Describe the machine, with the difference between its clock and this one's."""
        started = time.time()
        facts = cast("ProbeAnswer", call_sent(self, "probe", *arguments))
        return clock.add_clock_offset(facts, started, time.time())

    def _check_role_options(
        self, planned: Mapping[str, Any], locate: Callable[[str], str | None]
    ) -> None:
        """Check the roles' options that the inventory sets; a value may refer to the plan."""
        variables = self.variables
        options = role_options.find_options(variables)
        if options:
            templar = self._templar.copy_with_new_env(available_variables={**variables, **planned})
            values = {}
            for name in options:
                # A value that refers to a role's own variables is unknown before that role runs.
                with contextlib.suppress(AnsibleError):
                    values[name] = templar.template(variables[name])
            role_options.check_values(values, options, locate)


def _find_members(
    variables: Mapping[str, Any], settings: parsing.Settings
) -> tuple[str, list[str]] | None:
    many = settings.hosts_per_model
    if many == 1 or gateway_hosts.is_gateway(variables):
        return None
    return find_group(variables, many)


def _check_archive(plan: Plan, facts: Facts) -> None:
    """Refuse a directory of the control machine that lacks the bundled interpreter."""
    # A gateway needs an interpreter only for the web UI.
    installation, mirror = plan.get("installation"), plan["site"]["python_mirror"]
    python = installation["python"] if installation else None
    if python and mirror and python["archive"] and python["name"] not in facts["kimi"]["pythons"]:
        python_archives.find(Path(mirror), python)


def _add_restarts(plan: MachinePlan, facts: Facts) -> list[Finding]:
    findings = Findings()
    findings.extend(plan["findings"])
    serve_units.find_restarts(plan, facts, findings)
    return findings.rows()
