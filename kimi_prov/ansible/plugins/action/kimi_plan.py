"""Action `kimi_plan`: describe the machine, and work out what it shall become. Changes nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible import context
from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase

from kimi_prov.ansible import serve_units
from kimi_prov.ansible.remote import RemoteError, failure
from kimi_prov.ansible.send import NoRightsError, run_sent
from kimi_prov.catalog import loader
from kimi_prov.errors import UserError
from kimi_prov.planner.findings import Findings
from kimi_prov.planner.plan import make_plan
from kimi_prov.planner.settings import parsing
from kimi_prov.planner.settings.definitions import INTERNAL
from kimi_prov.planner.settings.locate import locator

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.planner.findings import Finding


class ActionModule(ActionBase):  # type: ignore[misc]
    """Returns `plan` and `facts`; the play keeps them as `kimi_plan` and `kimi_facts`."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Check the wishes before the machine is asked: what is misspelt needs no connection."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        try:
            wanted = self._wishes(variables)
            facts = run_sent(self, "probe")
            plan = make_plan(facts, wanted, loader.load())
            plan["findings"] = _with_restarts(plan, facts)
        except UserError as error:
            return result | failure(error.message, error.fix, "bad_input")
        except NoRightsError as error:
            return result | failure(str(error), code="bad_input")
        except RemoteError as error:
            return result | failure(str(error))
        document = {"plan": plan, "facts": facts}
        return result | {"changed": False, **document, "kimi_document": plan}

    def _wishes(self, variables: Mapping[str, Any]) -> parsing.Wishes:
        values = {}
        names = [n for n in variables if str(n).startswith("kimi_") and n not in INTERNAL]
        for name in [*names, "ansible_host"]:
            if name in variables:
                values[str(name)] = self._value(name, variables[name])
        folder = variables.get("inventory_dir")
        return parsing.parse(
            values,
            host=str(variables.get("inventory_hostname", "")),
            base=Path(str(folder)) if folder else None,
            locate=locator(_sources(variables), extra=_extra()),
        )

    def _value(self, name: str, value: Any) -> Any:  # noqa: ANN401  (whatever YAML can hold)
        try:
            return self._templar.template(value)
        except AnsibleError as error:
            raise UserError(
                f"{name}: {str(error).splitlines()[0]}",
                fix="define the variable that it refers to",
            ) from error


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
