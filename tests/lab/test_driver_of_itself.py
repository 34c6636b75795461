"""A machine that applies itself and changes its driver: over its own restarts, there and back once.

GPUs, module and nvidia-smi are stand-ins, as in test_driver.py. kimi-up and its unit are those that
`render skypilot` writes, with this checkout's wheel for the released one.
"""

from __future__ import annotations

import base64
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import nvidia
import pytest
import yaml
from hatchling.builders.wheel import WheelBuilder
from machines import CHECKOUT, kimi_prov
from waiting import until

from kimi_prov.lab import settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from machines import Host

pytestmark = [pytest.mark.lab, pytest.mark.slow]
NETWORK = "10.93.57"
RENDERED = CHECKOUT / "tests/data/golden/cloud/skypilot-gcp/machine"
HANGS_S = 1800.0
HOME = "/etc/kimi-up/inventory"
# Which boots it was started in, and what it said in all of them.
SEEN = """[Service]
ExecStartPre=/bin/mkdir -p /var/lib/kimi-up
ExecStartPre=/bin/sh -c "cut -d' ' -f22 /proc/1/stat >>/var/lib/kimi-up/boots"
StandardOutput=append:/var/log/kimi-up.log
StandardError=append:/var/log/kimi-up.log
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A machine with a driver that is too old, and what brings it up by itself."""
    folder = tmp_path_factory.mktemp("itself")
    wheel = Path(next(iter(WheelBuilder(str(CHECKOUT)).build(directory=str(folder)))))
    brought = [{"src": str(wheel), "dest": f"/opt/{wheel.name}"}]
    links = settings.detect_variables().get("kimi_pip_find_links")
    brought += [{"src": str(links), "dest": str(links)}] if links else []
    with nvidia.machines(
        folder, NETWORK, {"gpu1": nvidia.OLD}, files=brought, nvidia_driver_answer_timeout_s=5
    ) as (made, _repo):
        found = made.hosts["gpu1"]
        _carry(found, wheel)
        yield found


def put(host: Host, path: str, text: str) -> None:
    host.ssh(f"mkdir -p $(dirname {path}) && : >{path}")
    packed = base64.b64encode(text.encode()).decode()
    for at in range(0, len(packed), 77_824):
        host.ssh(f"echo {packed[at : at + 77_824]} | base64 -d >>{path}")


def _carry(host: Host, wheel: Path) -> None:
    own = yaml.safe_load((host.inventory / "group_vars" / "kimi.yml").read_text())
    # Those of the indexes stand apart from it, for the lab wrote them.
    variables = settings.detect_variables() | own
    bundle = variables.get("kimi_ca_bundle")
    if bundle:
        put(host, f"{HOME}/ca-bundle.pem", Path(bundle).read_text())
        variables["kimi_ca_bundle"] = "ca-bundle.pem"
    variables["nvidia_driver_reboot_self"] = True
    put(host, f"{HOME}/group_vars/kimi.yml", yaml.safe_dump(variables))
    local = {"kimi": {"hosts": {"localhost": {"ansible_connection": "local"}}}}
    put(host, f"{HOME}/hosts.yml", yaml.safe_dump(local))
    words = [f"--cert={HOME}/ca-bundle.pem"] if bundle else []
    for key, option in (
        ("kimi_pip_index_url", "--index-url"),
        ("kimi_pip_find_links", "--find-links"),
    ):
        words += [f"{option}={variables[key]}"] if variables.get(key) else []
    for url in variables.get("kimi_pip_extra_index_urls") or ():
        words.append(f"--extra-index-url={url}")
    script = (RENDERED / "usr/local/sbin/kimi-up").read_text()
    released = next(word for word in script.split() if word.startswith("kimi-prov=="))
    script = script.replace(f"-- {released}", f"{shlex.join(words)} -- /opt/{wheel.name}")
    put(host, "/usr/local/sbin/kimi-up", script)
    unit = "etc/systemd/system/kimi-up.service"
    put(host, f"/{unit}", (RENDERED / unit).read_text())
    put(host, f"/{unit}.d/seen.conf", SEEN)
    host.ssh("chmod 755 /usr/local/sbin/kimi-up; systemctl daemon-reload")
    host.ssh("systemctl enable -q kimi-up.service")


def wish(host: Host, version: str) -> None:
    """Name a version in the machine's own inventory, and have it go on."""
    host.ssh(f"sed -i /^kimi_nvidia_driver_version/d {HOME}/group_vars/kimi.yml")
    host.ssh(f"echo 'kimi_nvidia_driver_version: {version}' >>{HOME}/group_vars/kimi.yml")
    host.ssh("systemctl reset-failed kimi-up.service; systemctl start --no-block kimi-up.service")


def state(host: Host) -> str:
    return host.ssh("systemctl show -P ActiveState kimi-up.service", check=False).strip()


def log(host: Host) -> str:
    return " ".join(host.ssh("cat /var/log/kimi-up.log", check=False).split())


def boots(host: Host) -> int:
    return len(set(host.ssh("cat /var/lib/kimi-up/boots", check=False).split()))


def test_one_that_does_not_come_up_is_gone_back_from_and_told(host: Host) -> None:
    wish(host, nvidia.BROKEN)
    assert until(lambda: state(host) == "failed", HANGS_S, 3), log(host)
    assert nvidia.running(host) == nvidia.OLD
    assert nvidia.versions(host) == {nvidia.OLD}
    # There, and back: one restart each, and none after that.
    assert boots(host) == 3, log(host)
    said = log(host)
    assert f"the machine restarts into {nvidia.OLD}, which ran before" in said
    assert "driver.failed_here" in said
    told = kimi_prov("status", host.inventory)
    assert f"driver {nvidia.BROKEN} did not answer here" in " ".join(told.stdout.split())


def test_another_that_is_named_comes_up_by_one_restart(host: Host) -> None:
    """After the test before."""
    wish(host, nvidia.NEW)
    assert until(
        lambda: host.ssh("ls /var/lib/kimi-up/driver", check=False) or state(host) == "failed",
        HANGS_S,
        3,
    ), log(host)
    host.ssh("systemctl stop kimi-up.service")
    assert host.ssh("ls /var/lib/kimi-up/driver", check=False), log(host)
    assert nvidia.running(host) == nvidia.NEW
    assert boots(host) == 4, log(host)
    assert '"restarted"' not in host.ssh("cat /var/lib/kimi/state/driver.json")
