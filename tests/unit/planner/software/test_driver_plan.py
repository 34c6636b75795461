"""What the plan says of the NVIDIA driver: version, packages, and what stands in the way."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from plan_inputs import HUGE, blocked_by, found, gpu_facts, plan

from kimi_prov.errors import UserError
from kimi_prov.planner.plan import find_refusals
from kimi_prov.planner.software.driver import MIN_BOOT_BYTES

OLD = "570.133.20"


def machine(driver: str | None = OLD, *, switches: int = 4) -> dict[str, Any]:
    """Eight H200 on bare metal, whose driver came as packages."""
    facts = gpu_facts(driver=driver or "")
    facts["origin"] = {"kind": "probe", "name": "h1", "detail": None}
    facts["nvidia"] |= {
        "driver_loaded": driver,
        "driver_installed": driver,
        "nvswitch_devices": switches,
        "packages": {"nvidia-driver-cuda": f"{driver}-1"} if driver else {},
        "fabric_manager": {"package_version": driver, "active": True} if driver else None,
    }
    return facts


def test_an_old_driver_is_installed_in_one_version_with_its_fabric_manager() -> None:
    driver = plan(machine(), **HUGE)["driver"]
    assert (driver["action"], driver["restart"]) == ("install", True)
    assert (driver["required_branch"], driver["version"]) == (580, "580.159.04")
    assert driver["packages"][0] == "nvidia-kernel-open-dkms"
    assert "nvidia-fabricmanager|nvidia-fabricmanager-580" in driver["packages"]
    assert driver["replaced"] == ["nvidia-kernel-dkms"]
    assert driver["repository"]["url"].endswith("/debian12/x86_64")
    assert driver["repository"]["key_url"].endswith("/debian12/x86_64/3bf863cc.pub")


def test_what_shall_be_there_is_the_same_before_and_after() -> None:
    before, after = (plan(machine(version), **HUGE) for version in (OLD, "580.159.04"))
    moving = {"action", "restart"}
    kept = [{k: v for k, v in p["driver"].items() if k not in moving} for p in (before, after)]
    assert kept[0] == kept[1]
    assert before["packages"] == after["packages"]
    assert after["driver"]["action"] == "none"


def test_the_hosts_own_fabric_manager_is_left_alone() -> None:
    driver = plan(machine(switches=0), **HUGE)["driver"]
    assert driver["fabric_manager"] is False
    assert not [name for name in driver["packages"] if "fabric" in name]


def test_a_fabric_manager_of_another_version_is_mended_without_a_restart() -> None:
    facts = machine("580.159.04")
    facts["nvidia"]["fabric_manager"]["package_version"] = "580.126.09"
    document = plan(facts, **HUGE)
    assert (document["driver"]["action"], document["driver"]["restart"]) == ("install", False)
    assert "driver.fabric_manager" in blocked_by(document)
    assert not find_refusals(document)


def test_an_installed_imex_goes_with_the_driver_and_is_told_of_when_it_differs() -> None:
    facts = machine()
    facts["nvidia"]["packages"]["nvidia-imex-570"] = f"{OLD}-1"
    document = plan(facts, **HUGE)
    assert "nvidia-imex|nvidia-imex-580" in document["driver"]["packages"]
    assert not found(document, "driver.imex")
    facts = machine("580.159.04")
    facts["nvidia"]["packages"]["nvidia-imex-570"] = f"{OLD}-1"
    document = plan(facts, **HUGE)
    assert "nvidia-imex-570 570.133.20-1" in found(document, "driver.imex")[0]["observed"]
    # One engine on one machine does without it: no reason to change a driver that is right.
    assert document["driver"]["action"] == "none"


def test_what_apply_mends_does_not_keep_it_from_starting() -> None:
    document = plan(machine(), **HUGE)
    assert blocked_by(document) == {"driver.branch"}
    assert "nvidia_driver_reboot_ok" in found(document, "driver.branch")[0]["fix"]
    assert not find_refusals(document)


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("driver.secure_boot", {"host": {"secure_boot": True}}),
        ("driver.held", {"packages": {"held": ["nvidia-driver-cuda"]}}),
        ("driver.foreign", {"nvidia": {"packages": {}}}),
        (
            "driver.failed_here",
            {"kimi": {"driver": {"failed": {"version": "580.159.04", "why": "silence"}}}},
        ),
    ],
)
def test_what_keeps_packages_away(rule: str, change: dict[str, dict[str, Any]]) -> None:
    facts = copy.deepcopy(machine())
    for part, values in change.items():
        facts[part] |= values
    document = plan(facts, **HUGE)
    assert rule in {row["id"] for row in find_refusals(document)}
    current = copy.deepcopy(machine("580.159.04"))
    for part, values in change.items():
        current[part] |= values
    assert rule not in blocked_by(plan(current, **HUGE))


def boot(facts: dict[str, Any], free: int | None) -> dict[str, Any]:
    facts["filesystems"] += [{"mount": "/boot", "holds": ["/boot"], "free_bytes": free}]
    return facts


def test_a_full_boot_is_refused_where_a_driver_is_to_be_installed_and_nowhere_else() -> None:
    document = plan(boot(machine(), 40 << 20), **HUGE)
    (row,) = [row for row in find_refusals(document) if row["id"] == "driver.boot"]
    assert row["observed"] == "40.0 MiB free on /boot"
    assert "autoremove" in row["fix"]
    assert "driver.boot" not in blocked_by(plan(boot(machine("580.159.04"), 40 << 20), **HUGE))
    for free in (MIN_BOOT_BYTES, None):
        assert "driver.boot" not in blocked_by(plan(boot(machine(), free), **HUGE))


def test_our_own_hold_and_an_enrolled_key_are_in_nobodys_way() -> None:
    facts = machine()
    facts["packages"]["held"] = ["nvidia-driver-cuda"]
    facts["kimi"]["driver"] = {"held": ["nvidia-driver-cuda"]}
    facts["host"]["secure_boot"] = True
    facts["nvidia"]["module_key_enrolled"] = True
    assert not find_refusals(plan(facts, **HUGE))


def test_cards_without_a_driver_are_told_by_the_bus() -> None:
    facts = machine(None)
    facts["gpus"] = []
    facts["nvidia"]["pci_ids"] = ["2335"] * 8
    document = plan(facts, **HUGE)
    assert document["driver"]["action"] == "install"
    assert document["driver"]["gpus"] == 8
    assert "driver.missing" in blocked_by(document)
    assert not find_refusals(document)
    assert document["parallel"]["tensor"] == 8
    assert document["engine"]["variant"] == "cuda"


def test_a_card_that_nobody_knows_is_still_given_a_driver() -> None:
    facts = machine(None)
    facts["gpus"] = []
    facts["nvidia"]["pci_ids"] = ["ffff"] * 8
    driver = plan(facts, **HUGE)["driver"]
    assert (driver["action"], driver["required_branch"]) == ("install", 580)


def test_the_operators_version_wins_and_one_too_old_is_refused() -> None:
    newer = plan(machine("580.159.04"), nvidia_driver_version="590.44.01", **HUGE)
    assert newer["driver"]["version"] == "590.44.01"
    assert newer["driver"]["action"] == "install"
    older = plan(machine("580.159.04"), nvidia_driver_version="570.133.20", **HUGE)
    assert "driver.version" in {row["id"] for row in find_refusals(older)}


def test_a_mirror_and_its_key() -> None:
    settings = {
        "nvidia_repo_url": "https://mirror.example.com/nvidia/",
        "nvidia_repo_key_fingerprint": " ".join(["ab12"] * 10),
    }
    repository = plan(machine(), **settings, **HUGE)["driver"]["repository"]
    assert repository == {
        "url": "https://mirror.example.com/nvidia",
        "host": "mirror.example.com",
        "key_url": "https://mirror.example.com/nvidia/3bf863cc.pub",
        "fingerprint": "AB12" * 10,
    }
    with pytest.raises(UserError, match="40 hexadecimal digits"):
        plan(machine(), nvidia_repo_key_fingerprint="3bf863cc", **HUGE)


def test_a_machine_without_such_cards_has_no_driver_to_bring() -> None:
    driver = plan()["driver"]
    assert driver["required_branch"] is None
    assert driver["action"] == "none"
    assert driver["repository"] is None


def after_a_restart_of_its_own(
    loaded: str | None, *, over: bool = True, **kept: object
) -> dict[str, Any]:
    """A machine with 580 on its disk that restarted itself for it."""
    facts = machine("580.159.04")
    facts["nvidia"]["driver_loaded"] = loaded
    restarted = {"version": "580.159.04", "over": over}
    facts["kimi"]["driver"] = {"restarted": restarted, **kept}
    return facts


@pytest.mark.parametrize("loaded", [None, OLD, "580.159.04"])
def test_after_its_own_restart_the_driver_has_to_answer_and_no_other_restart_comes(
    loaded: str | None,
) -> None:
    document = plan(after_a_restart_of_its_own(loaded), **HUGE)
    assert (document["driver"]["action"], document["driver"]["restart"]) == ("confirm", False)
    assert not find_refusals(document)
    # Cut before the restart: it is still to come.
    cut = plan(after_a_restart_of_its_own(None, over=False), **HUGE)
    assert (cut["driver"]["action"], cut["driver"]["restart"]) == ("restart", True)


def test_a_driver_that_stayed_without_an_answer_is_refused_and_not_restarted_for() -> None:
    failed = {"version": "580.159.04", "why": "nvidia-smi does not answer"}
    facts = machine("580.159.04")
    facts["nvidia"]["driver_loaded"] = None
    facts["kimi"]["driver"] = {"failed": failed}
    document = plan(facts, **HUGE)
    assert document["driver"]["action"] == "none"
    (row,) = [row for row in find_refusals(document) if row["id"] == "driver.failed_here"]
    assert "nvidia-smi does not answer" in row["observed"]
    assert "kimi_nvidia_driver_version" in row["fix"]
    # As soon as another is named, or this one answers after all, nothing stands in the way.
    other = plan(facts, **HUGE, nvidia_driver_version="590.44.01")
    assert other["driver"]["action"] == "install"
    assert not find_refusals(other)
    facts["nvidia"]["driver_loaded"] = "580.159.04"
    assert "driver.failed_here" not in blocked_by(plan(facts, **HUGE))
    # Its module is loaded and the cards do not come up.
    facts["gpus"] = facts["gpus"][:7]
    assert "driver.failed_here" in blocked_by(plan(facts, **HUGE))
