"""The operating system: what is supported, what is tuned, which packages are installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from plan_inputs import (
    found,
    gpu_facts,
    lab_facts,
    metal_facts,
    plan,
)

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.on_host.probe.software import PACKAGES

UBUNTU = Path(__file__).parents[3] / "data" / "facts" / "ubuntu-24.04-h100.json"


def test_a_plan_asks_only_for_packages_that_the_probe_looks_for() -> None:
    for document in (
        plan(),
        plan(engine_args={"enforce-eager": None}),
        plan(gpu_facts()),
    ):
        assert set(document["packages"]) <= set(PACKAGES)


def test_gpg_is_there_where_a_drivers_repository_may_be_trusted() -> None:
    asked = plan(gpu_facts())
    assert asked["driver"]["repository"] is not None
    assert "gpg" in asked["packages"]
    assert "gpg" not in plan()["packages"]


def test_a_system_that_was_not_proven_is_a_warning() -> None:
    facts = lab_facts()
    facts["host"]["os"] |= {"id": "ubuntu", "version_id": "24.04"}
    assert found(plan(facts), "os.supported")[0]["severity"] == "warning"


def test_a_recorded_ubuntu_is_planned_with_its_own_python() -> None:
    """The root of a real Ubuntu 24.04.3 with an H100; systemd did not run in that container."""
    made = plan(json.loads(UBUNTU.read_text()))
    blocked = {row["id"] for row in made["findings"] if row["severity"] == "blocker"}
    assert not blocked & {"os.supported", "os.glibc", "python.lock", "python.venv"}
    assert made["engine"]["python"]
    assert {"haproxy", "nftables", "python3-venv"} <= set(made["packages"])
    assert made["driver"]["action"] == "none"


@pytest.mark.parametrize("id_", ["rhel", "rocky", "almalinux", "sles", "opensuse-tumbleweed"])
def test_a_system_without_apt_is_refused_with_what_to_install(id_: str) -> None:
    facts = lab_facts()
    facts["host"]["os"] |= {"id": id_, "version_id": "9.4", "pretty": "Another Linux 9.4"}
    [row] = found(plan(facts), "os.supported")
    assert row["severity"] == "blocker"
    assert "apt" in row["fix"]
    assert "Debian 12" in row["fix"]


def test_debian_13_is_proven_as_well() -> None:
    facts = lab_facts()
    facts["host"]["os"] |= {"id": "debian", "version_id": "13"}
    assert found(plan(facts), "os.supported")[0]["severity"] == "pass"


@pytest.mark.parametrize(("id_", "version"), [("ubuntu", "20.04"), ("debian", "11"), ("arch", "1")])
def test_another_version_is_refused_with_every_one_that_is_taken(id_: str, version: str) -> None:
    facts = lab_facts()
    facts["host"]["os"] |= {"id": id_, "version_id": version, "pretty": f"{id_} {version}"}
    [row] = found(plan(facts), "os.supported")
    assert row["severity"] == "blocker"
    taken = {f"{row.id} {row.version}" for row in load_catalogue().systems}
    assert {name for name in taken if name in row["fix"].lower()} == taken
    assert "Debian 12 or Debian 13" in row["fix"]


def test_tuning_takes_only_what_the_machine_allows() -> None:
    metal = plan(metal_facts())["tuning"]
    assert metal["sysctl"]["kernel.numa_balancing"] == "0"
    assert metal["thp"] == "always"
    lab = plan()["tuning"]
    assert lab["sysctl"] == {}
    assert lab["thp"] is None
    assert {"kernel.numa_balancing", "transparent huge pages"} <= {
        s["what"] for s in lab["skipped"]
    }
    assert lab["limits"]["nofile"] == 20000


def test_a_higher_limit_is_kept() -> None:
    facts = metal_facts()
    facts["tunables"]["sysctl"]["vm.max_map_count"]["value"] = "2097152"
    assert plan(facts)["tuning"]["sysctl"]["vm.max_map_count"] == "2097152"
