"""Which interpreters the role engine takes away: those that nothing uses any more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.plugins.filter import core, mathstuff
from golden import planned
from jinja2.nativetypes import NativeEnvironment

ROLE = Path(__file__).resolve().parents[3] / "roles" / "engine"
PLAN = planned("dgx-h200")
NOW = PLAN["engine"]["env_name"]
HERE, NEWER, OLD = "3.12.16-a", "3.12.17-b", "3.11.2-c"


def unused(facts: dict[str, Any], *, brought: str | None, keep_old: bool) -> list[str]:
    """The role's own expression, for a machine that tells these facts."""
    role = yaml.safe_load((ROLE / "vars" / "main.yml").read_text())
    environment = NativeEnvironment()
    for filters in (core, mathstuff):
        environment.filters.update(filters.FilterModule().filters())
    python = {"name": brought} if brought else None
    plan = {**PLAN, "installation": {**PLAN["installation"], "python": python}}
    given = {"kimi_plan": plan, "kimi_facts": {"kimi": facts}, "engine_keep_old": keep_old}
    given["__engine_unused"] = environment.from_string(role["__engine_unused"]).render(**given)
    found = environment.from_string(role["__engine_unused_pythons"]).render(**given)
    return sorted(str(name) for name in found)


def facts(link: str | None = NOW, **environments: str) -> dict[str, Any]:
    """A machine with three interpreters; `environments` names those that were brought for some."""
    used = {name: {"here": HERE, "old": OLD}[of] for name, of in environments.items()}
    return {
        "pythons": [HERE, NEWER, OLD],
        "engine_pythons": {NOW if name == "now" else name: of for name, of in used.items()},
        "engine_envs": [NOW, "former"],
        "engine_link": link,
    }


@pytest.mark.parametrize(
    ("told", "brought", "keep_old", "gone"),
    [
        # A former environment that is kept for a rollback keeps its interpreter.
        (facts(now="here", former="old"), HERE, True, [NEWER]),
        (facts(now="here", former="old"), HERE, False, [NEWER, OLD]),
        (facts(former="old"), None, False, [HERE, NEWER, OLD]),
        (facts(former="here"), HERE, False, [NEWER, OLD]),
        # What runs until the switch still reads from the former environment.
        (facts("former", former="old"), HERE, False, []),
        (facts(None), HERE, False, []),
    ],
)
def test_an_interpreter_goes_with_the_last_environment_that_uses_it(
    told: dict[str, Any], brought: str | None, keep_old: bool, gone: list[str]
) -> None:
    assert unused(told, brought=brought, keep_old=keep_old) == sorted(gone)
