"""What the probe sees of a machine that is in use: locks of apt, containers, security modules."""

from __future__ import annotations

import fcntl
import struct
from pathlib import Path

import pytest
from machine_of_files import tree

from kimi_prov.on_host.probe import network, package_manager, security, software, system
from kimi_prov.on_host.system.machine import Machine
from kimi_prov.planner.software import packages

STATUS = """Package: {name}
Status: install ok {state}
Version: 1

"""


def test_a_lock_that_is_ours_or_cannot_be_read_is_nobodys(tmp_path: Path) -> None:
    machine = tree(tmp_path, {package_manager.LOCKS[0]: ""})
    with Path(machine.path(package_manager.LOCKS[0])).open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        assert package_manager.find_holder(machine) is None
    assert package_manager.find_holder(Machine(str(tmp_path / "nothing"))) is None


def test_a_lock_whose_holder_has_no_number_here_is_held(tmp_path: Path) -> None:
    """As that of a container, or one of an open file: the kernel gives 0 or -1."""
    machine = tree(tmp_path, {package_manager.LOCKS[0]: ""})
    with Path(machine.path(package_manager.LOCKS[0])).open("w") as file:
        whole = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, whole)
        held = package_manager.find_holder(machine)
    lock = package_manager.LOCKS[0]
    assert held == {"lock": lock, "pid": 0, "process": None, "unit": None}
    assert packages.describe_holder(held) == f"another program holds {lock}"
    assert (
        packages.describe_lock_timeout(held, 300.0)["fix"]
        == "wait until it ends, then run this again"
    )


@pytest.mark.parametrize(
    ("state", "names"),
    [
        ("installed", []),
        ("config-files", []),
        ("half-configured", ["broken"]),
        ("unpacked", ["broken"]),
        ("half-installed", ["broken"]),
    ],
)
def test_packages_that_dpkg_did_not_finish(tmp_path: Path, state: str, names: list[str]) -> None:
    text = STATUS.format(name="well", state="installed") + STATUS.format(name="broken", state=state)
    machine = tree(tmp_path, {"/var/lib/dpkg/status": text})
    assert package_manager.list_unfinished(machine) == names
    assert software.describe_packages(machine, software.Packages(machine))["unfinished"] == names


def test_what_dpkg_was_writing_when_it_was_cut_off_counts(tmp_path: Path) -> None:
    files = {
        "/var/lib/dpkg/status": STATUS.format(name="broken", state="installed"),
        "/var/lib/dpkg/updates/0001": STATUS.format(name="broken", state="unpacked"),
        "/var/lib/dpkg/updates/tmp.i": "",
    }
    assert package_manager.list_unfinished(tree(tmp_path, files)) == ["broken"]
    assert package_manager.list_unfinished(tree(tmp_path / "rhel", {})) is None


# As iptables-save printed them on machines with Docker 20.10, with CNI's portmap (containerd), and
# with kube-proxy.
RULES = """\
*nat
:PREROUTING ACCEPT [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
-A POSTROUTING -s 172.17.0.2/32 -d 172.17.0.2/32 -p tcp -m tcp --dport 80 -j MASQUERADE
-A DOCKER -i docker0 -j RETURN
-A DOCKER ! -i docker0 -p tcp -m tcp --dport 8000 -j DNAT --to-destination 172.17.0.2:80
-A DOCKER -d 127.0.0.1/32 -p tcp -m tcp --dport 8001 -j DNAT --to-destination 10.9.9.3:1
-A DOCKER ! -i docker0 -p udp -m udp --dport 8002 -j DNAT --to-destination 172.17.0.2:53
-A CNI-DN-8a -p tcp -m tcp --dport 8443 -j DNAT --to-destination 10.4.0.5:443
-A PREROUTING -p tcp -m tcp --dport 9000:9001 -j REDIRECT --to-ports 9100
-A PREROUTING -p tcp -m tcp --dport 1024:65535 -j DNAT --to-destination 10.0.0.9
-A KUBE-SEP-7X -p tcp -m tcp -j DNAT --to-destination 10.244.0.2:8000
COMMIT
"""


class WithRules(Machine):
    """A machine whose iptables answers with these rules."""

    def __init__(self, rules: str | None) -> None:
        super().__init__("/nowhere")
        self.rules = rules

    def run(self, argv: object, timeout_s: float = 10.0) -> str | None:
        return self.rules if argv == ["iptables-save"] else None


def redirected(rules: str | None) -> object:
    return network.describe_firewall(WithRules(rules), {})["redirected"]


def test_ports_that_containers_have_without_anybody_listening() -> None:
    assert redirected(RULES) == [
        {"port": 8000, "address": None, "to": "172.17.0.2:80"},
        {"port": 8001, "address": "127.0.0.1", "to": "10.9.9.3:1"},
        {"port": 8443, "address": None, "to": "10.4.0.5:443"},
        {"port": 9000, "address": None, "to": "9100"},
        {"port": 9001, "address": None, "to": "9100"},
    ]
    assert redirected("*nat\nCOMMIT\n") == []
    assert redirected(None) is None


@pytest.mark.parametrize(
    ("files", "found"),
    [
        # A kernel that shows none, a Debian, an Ubuntu with profiles of the site's own.
        ({}, (None, None, None)),
        (
            {
                "/sys/kernel/security/lsm": "lockdown,capability,landlock,yama,apparmor",
                "/sys/kernel/security/apparmor/profiles": "lsb_release (enforce)\n",
            },
            (["lockdown", "capability", "landlock", "yama", "apparmor"], None, []),
        ),
        (
            {
                "/sys/kernel/security/lsm": "capability,apparmor",
                "/sys/kernel/security/apparmor/profiles": "/usr/sbin/haproxy (enforce)\n"
                "haproxy (complain)\n/usr/sbin/nft (kill)\nnft (unconfined)\nmy nft (enforce)\n",
            },
            (["capability", "apparmor"], None, ["/usr/sbin/haproxy", "/usr/sbin/nft"]),
        ),
        (
            {"/sys/kernel/security/lsm": "capability,selinux", "/sys/fs/selinux/enforce": "1"},
            (["capability", "selinux"], "enforcing", None),
        ),
        ({"/sys/fs/selinux/enforce": "0"}, (None, "permissive", None)),
    ],
)
def test_security_modules(tmp_path: Path, files: dict[str, str], found: tuple[object, ...]) -> None:
    assert tuple(security.describe_security(tree(tmp_path, files)).values()) == found


CGROUP = "{} 21 0:{} / {} rw,nosuid shared:1 - {} none rw\n"
ROOT = "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n"


@pytest.mark.parametrize(
    ("mounts", "hierarchy"),
    [
        ("", None),
        (ROOT, None),
        (ROOT + CGROUP.format(30, 26, "/sys/fs/cgroup", "cgroup2"), "unified"),
        (
            ROOT
            + CGROUP.format(30, 26, "/sys/fs/cgroup", "tmpfs")
            + CGROUP.format(31, 27, "/sys/fs/cgroup/unified", "cgroup2")
            + CGROUP.format(32, 28, "/sys/fs/cgroup/systemd", "cgroup"),
            "hybrid",
        ),
        (
            ROOT
            + CGROUP.format(30, 26, "/sys/fs/cgroup", "tmpfs")
            + CGROUP.format(32, 28, "/sys/fs/cgroup/systemd", "cgroup"),
            "legacy",
        ),
    ],
)
def test_the_hierarchy_of_control_groups(
    tmp_path: Path, mounts: str, hierarchy: str | None
) -> None:
    machine = tree(tmp_path, {"/proc/self/mountinfo": mounts})
    assert system.find_cgroup_hierarchy(machine) == hierarchy


def test_boot_is_one_of_the_file_systems(tmp_path: Path) -> None:
    mounts = ROOT + "22 21 8:2 / /boot rw,relatime - ext4 /dev/sda2 rw\n"
    machine = tree(tmp_path, {"/proc/self/mountinfo": mounts, "/boot/vmlinuz": ""})
    rows = {row["mount"]: row for row in system.list_filesystems(machine)}
    assert rows["/boot"]["holds"] == ["/boot"]
