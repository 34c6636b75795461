"""A machine whose systemd runs on control groups of version 1: emulated, told so as it boots."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from machines import kimi_prov, make_lab

if TYPE_CHECKING:
    from collections.abc import Iterator

    from machines import Host

pytestmark = [pytest.mark.lab, pytest.mark.slow]


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """One host, nothing provisioned."""
    made = make_lab(
        tmp_path_factory.mktemp("v1") / "inv",
        "10.93.84",
        nodes=["version1"],
        settings={
            "lab_kind": "qemu",
            "lab_memory_mb": 4096,
            "lab_kernel_arguments": "systemd.unified_cgroup_hierarchy=0 "
            "systemd.legacy_systemd_cgroup_controller=1",
        },
    )
    made.up()
    yield made.hosts["version1"]
    made.down()


# Nobody listens on that port: a process that may try is refused, one that may not gets no answer.
TRY = (
    "systemd-run --quiet --wait --pipe --property=IPAddressDeny=any bash -c "
    "'timeout 5 bash -c \"exec 3<>/dev/tcp/10.0.2.2/9\" 2>&1; echo $?'"
)


def test_it_is_refused_for_there_units_reach_what_they_shall_not(emulated: Host) -> None:
    done = kimi_prov("plan", emulated.inventory, "--format", "json", timeout=1800)
    assert done.returncode == 3, done.stdout + done.stderr
    rows = json.loads(done.stdout)["hosts"][emulated.name]["findings"]
    (row,) = [row for row in rows if row["id"] == "os.cgroups"]
    assert (row["severity"], row["observed"]) == ("blocker", "the legacy hierarchy")
    assert "Connection refused" in emulated.ssh(TRY, timeout=600)
