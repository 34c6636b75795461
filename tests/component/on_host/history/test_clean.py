"""`clean` takes away what no version needs that can be put back, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kimi_prov.contract import paths as layout
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.history import clean, open_switch

if TYPE_CHECKING:
    from applied_machine import Applied


def test_what_no_kept_version_needs_goes(machine: Applied) -> None:
    machine.entry()
    machine.version("2", model="b")
    machine.entry()
    machine.put(f"{layout.ENGINES}/vllm-0/bin/python", "x" * 5000)
    machine.put(f"{layout.MODELS}/a/old/shard", "x" * 9000)
    machine.put(f"{layout.MODELS}/c/r/shard", "x")
    machine.put(f"{layout.PYTHONS}/3.12/bin/python", "x")

    found = clean.remove_unneeded(machine.places, remove=False)
    assert [(row["kind"], row["of"]) for row in found["items"]] == [
        ("environment", "vllm-0"),
        ("python", "3.12"),
        ("weights", "a old"),
        ("weights", "c r"),
    ]
    assert found["bytes"] >= 14000
    assert all(machine.places.locate(row["path"]).is_dir() for row in found["items"])

    assert clean.remove_unneeded(machine.places, remove=True)["removed"] is True
    assert not any(machine.places.locate(row["path"]).exists() for row in found["items"])
    assert not machine.places.locate(f"{layout.MODELS}/c").exists()
    assert machine.places.locate(f"{layout.MODELS}/a/r").is_dir()
    assert clean.remove_unneeded(machine.places, remove=True)["items"] == []


def test_an_interpreter_of_an_environment_that_stays_stays(machine: Applied) -> None:
    machine.put(f"{layout.PYTHONS}/3.12/bin/python", "x")
    machine.put(f"{layout.ENGINES}/vllm-1/pyvenv.cfg", f"home = {layout.PYTHONS}/3.12/bin\n")
    assert clean.remove_unneeded(machine.places, remove=False)["items"] == []


def test_nothing_is_removed_while_a_switch_is_open(machine: Applied) -> None:
    machine.entry()
    machine.put(layout.SWITCH, '{"phase": "writing", "from": 1, "to": 2, "since": "now"}')
    assert open_switch.read(machine.places)
    with pytest.raises(HostError, match="a switch is open"):
        clean.remove_unneeded(machine.places, remove=True)


def test_without_a_plan_nothing_is_known_to_be_unneeded(machine: Applied) -> None:
    machine.places.plan.unlink()
    with pytest.raises(HostError, match="nothing is applied"):
        clean.remove_unneeded(machine.places, remove=True)
