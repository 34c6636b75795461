"""What roles run by the engine's own Python: in the sandbox's protection, and nowhere else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from golden import planned
from jinja2.nativetypes import NativeEnvironment

from kimi_prov.ansible.plugins.filter.kimi import FilterModule

ROLES = Path(__file__).resolve().parents[3] / "roles"
PLAN = planned("dgx-h200")


def evaluated(expression: str, **variables: object) -> list[str]:
    environment = NativeEnvironment()
    environment.filters.update(FilterModule().filters())
    made = environment.from_string(expression).render(kimi_plan=PLAN, **variables)
    assert isinstance(made, list)
    return [str(word) for word in made]


def tuner() -> list[str]:
    given = yaml.safe_load((ROLES / "tune_moe" / "vars" / "main.yml").read_text())
    return evaluated(given["__tune_moe_run"], __tune_moe_home="/srv/x", tune_moe_timeout_s=60)


def commands() -> dict[str, str]:
    """Each `argv` of the role that installs the engine, by its task's name."""

    def tasks(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [task for row in rows for task in [row, *tasks(row.get("block", []))]]

    found = tasks(yaml.safe_load((ROLES / "engine" / "tasks" / "install.yml").read_text()))
    rows = {task["name"]: task.get("ansible.builtin.command", {}).get("argv") for task in found}
    return {name: argv for name, argv in rows.items() if isinstance(argv, str)}


def prover() -> list[str]:
    (argv,) = [argv for argv in commands().values() if "kt-prove" in argv]
    return evaluated(argv, __engine_offline=["systemd-run", "--property=UMask=0022"])


@pytest.mark.parametrize("made", [tuner, prover])
def test_it_is_the_service_s_user_and_held_as_the_server(made: Any) -> None:
    argv = made()
    given = dict(word.partition("=")[2].split("=", 1) for word in argv if "--property=" in word)
    assert given["User"] == "kimi"
    assert given["ProtectSystem"] == "strict"
    assert given["CapabilityBoundingSet"] == ""
    assert given["IPAddressDeny"] == "any"
    assert given["DeviceAllow"].startswith("char-nvidia")
    assert given["UMask"] == "0077"


def test_root_calls_the_environment_s_python_through_uv_alone() -> None:
    """uv asks the environment that it fills for its version: the docs say so."""
    called = re.compile(r"(?<!=' ~ )kimi_plan\.engine\.env_dir ~ '/bin/python'")
    by_root = [n for n, argv in commands().items() if called.search(argv) and "sandbox" not in argv]
    assert by_root == []
