"""The lab itself: hosts come up as real machines, and nothing of them is left afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from machines import KIMI_PROV, make_lab
from waiting import until

from kimi_prov.errors import UserError
from kimi_prov.lab import images, operations
from kimi_prov.lab.inventory import identify_lab
from kimi_prov.lab.settings import read_apt_settings
from kimi_prov.lab.state import find_state_home

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.lab

AUTOGROUP = Path("/proc/sys/kernel/sched_autogroup_enabled")
KERNEL = (
    "net.ipv4.ip_forward",
    "fs.inotify.max_user_instances",
    *(["kernel.sched_autogroup_enabled"] if AUTOGROUP.exists() else []),
)
UP = """
import pathlib, sys
from kimi_prov.lab import operations as lab
lab.start_lab(pathlib.Path(sys.argv[1]))
"""


def ask(inventory: Path, host: str, command: str, *, check: bool = True) -> str:
    """Output of a command on a lab host."""
    argv = operations.make_ssh_command(inventory, host, [command])
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert not check or done.returncode == 0, done.stderr
    return done.stdout.strip()


def lines(*argv: str) -> set[str]:
    return set(subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines())


# What components make meanwhile, for make test runs them beside this.
COMPONENT = "component"
COMPONENT_NAMESPACES = ("kpg-", "kpn-")


def mark(pid: int) -> str:
    """The lab that a process says it belongs to; empty for none, and for one that is gone."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return ""
        environment = process.environ()
    except psutil.Error:
        return ""
    if environment.get("PYTEST_CURRENT_TEST", "").startswith("tests/component/"):
        return COMPONENT
    return environment.get("KIMI_PROV_LAB", "")


def mounts(own: Path) -> set[str]:
    """What is mounted, but below the temporary folders of other runs of tests."""
    temporary = Path(tempfile.gettempdir())
    found = lines("findmnt", "--noheadings", "--raw", "--output", "TARGET,FSTYPE")
    targets = {line: Path(line.split()[0]) for line in found}
    return {
        line
        for line, target in targets.items()
        if not target.name.startswith(COMPONENT_NAMESPACES)
        and (not target.is_relative_to(temporary) or target.is_relative_to(own))
    }


def network_namespaces(marks: dict[int, str]) -> dict[str, set[str]]:
    """The marks of the processes in each; lsns fails where a process ends while it reads."""
    found: dict[str, set[str]] = {}
    for pid, text in marks.items():
        with contextlib.suppress(OSError):
            found.setdefault(str(Path(f"/proc/{pid}/ns/net").readlink()), set()).add(text)
    return found


def traces(inventory: Path) -> dict[str, set[str]]:
    """What a lab could leave on the control machine; other labs' own things are left out."""
    own = identify_lab(inventory)[1]
    marks = {pid: mark(pid) for pid in psutil.pids()}
    others = {m for m in marks.values() if m not in {"", own, COMPONENT}}
    tables = lines("nft", "list", "tables")
    others |= {t.rpartition("_")[2] for t in tables if "kimi_lab_" in t and not t.endswith(own)}
    bridges = {f"kp{other}" for other in others}
    links = json.loads("".join(lines("ip", "-j", "link")))
    groups = {str(path) for path in Path("/sys/fs/cgroup").rglob("kimi-lab-*")}
    return {
        "processes": {f"{pid} {m}" for pid, m in marks.items() if m == own},
        "network namespaces": {
            ns
            for ns, held in network_namespaces(marks).items()
            if not held & (others | {COMPONENT}) and ns != str(Path("/proc/self/ns/net").readlink())
        },
        "named namespaces": {
            name for name in lines("ip", "netns") if not name.startswith(COMPONENT_NAMESPACES)
        },
        "mounts": mounts(inventory.parent.parent),
        "links": {
            link["ifname"] for link in links if not {link["ifname"], link.get("master")} & bridges
        },
        "routes": {
            " ".join(line.split()[:3])
            for line in lines("ip", "route")
            if not bridges & set(line.split())
        },
        "tables": {t for t in tables if t.rpartition("_")[2] not in others},
        "kernel settings": set() if others else lines("sysctl", *KERNEL),
        "control groups": {g for g in groups if g.rpartition("-")[2] not in others},
    }


def assert_nothing_new(inventory: Path, before: dict[str, set[str]]) -> None:
    """The kernel takes a moment to let go of what a killed process held."""
    new: dict[str, set[str]] = {}

    def gone() -> bool:
        after = traces(inventory)
        new.update({kind: after[kind] - before[kind] for kind in after})
        return not any(new.values())

    assert until(gone, 30), new


def below(*folders: Path) -> set[str]:
    return {str(path) for folder in folders for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = make_lab(tmp_path_factory.mktemp("pair") / "inv", "10.93.21", ["one"], ["two"])
    try:
        operations.start_lab(made.inventory)
        yield made.inventory
    finally:
        operations.remove_lab(made.inventory)


def test_up_again_leaves_running_hosts_as_they_are(pair: Path) -> None:
    before = operations.list_hosts(pair)
    said: list[str] = []
    assert operations.start_lab(pair, said.append) == before
    assert sorted(said) == ["one: is up", "two: is up"]
    assert [(h.name, h.address, h.state) for h in before] == [
        ("one", "10.93.21.11", "up"),
        ("two", "10.93.21.12", "up"),
    ]


def test_engines_of_several_hosts_share_cores_by_process(pair: Path) -> None:
    """Not by session: then one that spins in sched_yield starves one that starts."""
    del pair
    assert not AUTOGROUP.exists() or AUTOGROUP.read_text() == "0\n"


def test_hosts_reach_each_other_and_this_machine_by_both_protocols(pair: Path) -> None:
    for address in ("10.93.21.12", "fd6b:6d00:a5d:15::c", "10.93.21.1", "fd6b:6d00:a5d:15::1"):
        ask(pair, "one", f"ping -c1 -W5 {address}")
    assert "10.93.21.12" in ask(pair, "one", "getent ahostsv4 two")
    assert ask(pair, "two", "hostname") == "two"


def test_systemd_has_no_complaint_and_the_machine_is_bare(pair: Path) -> None:
    assert ask(pair, "one", "systemctl is-system-running") == "running"
    for tool in ("numactl", "haproxy", "nft", "pip3"):
        assert not ask(pair, "one", f"command -v {tool}", check=False)


def test_an_operator_may_become_root(pair: Path) -> None:
    argv = operations.make_ssh_command(pair, "one", ["sudo -n id -un"])
    argv = [part.replace("root@", "operator@") for part in argv]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "root\n"


def test_hardened_units_memory_policies_and_sized_tmpfs_work(pair: Path) -> None:
    hardened = (
        "systemd-run -q --wait -p NoNewPrivileges=yes -p ProtectSystem=strict "
        "-p PrivateDevices=yes -p RestrictNamespaces=yes -p 'SystemCallFilter=@system-service' "
        "-p DynamicUser=yes -p NUMAPolicy=interleave -p NUMAMask=0 -p LimitMEMLOCK=infinity "
    )
    ask(pair, "one", hardened + "python3 -c 'import os'")
    ask(pair, "one", "mkdir -p /srv/t && mount -t tmpfs -o size=8m,mpol=interleave:0 tmpfs /srv/t")
    assert "mpol=interleave:0" in ask(pair, "one", "grep /srv/t /proc/mounts; umount /srv/t")


def test_a_host_keeps_its_files_over_reboot_and_poweroff(pair: Path) -> None:
    ask(pair, "one", "echo kept > /etc/kept")
    operations.restart_host(pair, "one")
    assert ask(pair, "one", "cat /etc/kept") == "kept"
    for hard in (False, True):
        operations.switch_power(pair, "one", on=False, hard=hard)
        states = {host.name: host.state for host in operations.list_hosts(pair)}
        assert states == {"one": "off", "two": "up"}
        with pytest.raises(UserError, match="lab host one is off"):
            operations.make_ssh_command(pair, "one")
        operations.switch_power(pair, "one", on=True)
        assert ask(pair, "one", "cat /etc/kept") == "kept"


def test_a_cable_can_be_pulled_and_plugged_in_again(pair: Path) -> None:
    operations.link(pair, "two", up=False)
    ping = "ping -c1 -W1 10.93.21.12 >/dev/null && echo reached"
    assert ask(pair, "one", ping, check=False) == ""
    operations.link(pair, "two", up=True)
    assert until(lambda: ask(pair, "one", ping, check=False) == "reached")


def test_a_network_that_is_taken_is_refused(pair: Path, tmp_path: Path) -> None:
    rival = make_lab(tmp_path / "rival", "10.93.21", ["three"]).inventory
    before = traces(rival)
    with pytest.raises(UserError, match=r"lab_network 10\.93\.21\.0/24 is taken") as refused:
        operations.start_lab(rival)
    assert f"kimi-prov lab down {pair}" in refused.value.fix
    assert_nothing_new(rival, before)
    assert not (find_state_home() / identify_lab(rival)[0]).exists()


def test_the_network_of_a_lab_that_was_killed_can_be_had(doomed: Path, tmp_path: Path) -> None:
    operations.start_lab(doomed)
    for host in operations.list_hosts(doomed):
        psutil.Process(host.pid).kill()
    assert until(lambda: {host.state for host in operations.list_hosts(doomed)} == {"off"})
    heir = make_lab(tmp_path / "heir", "10.93.22", ["three"]).inventory
    said: list[str] = []
    operations.start_lab(heir, said.append)
    try:
        assert any("a lab that does not run" in line for line in said)
        assert ask(heir, "three", "hostname") == "three"
        with pytest.raises(UserError, match="is taken"):
            operations.start_lab(doomed)
    finally:
        operations.remove_lab(heir)
    operations.start_lab(doomed)
    assert ask(doomed, "one", "hostname") == "one"


@pytest.fixture
def doomed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An inventory whose lab is taken away even when its test fails."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    inventory = make_lab(tmp_path / "inv", "10.93.22", ["one"], ["two"]).inventory
    yield inventory
    with contextlib.suppress(UserError):
        operations.remove_lab(inventory)


def _kill_nothing(inventory: Path) -> None:
    """An orderly end."""


def _kill_nspawn(inventory: Path) -> None:
    (record,) = [h for h in operations.list_hosts(inventory) if h.name == "one"]
    for process in psutil.Process(record.pid).children(recursive=True):
        if process.name() == "systemd-nspawn":
            process.kill()


def _kill_outermost(inventory: Path) -> None:
    (record,) = [h for h in operations.list_hosts(inventory) if h.name == "one"]
    assert record.pid is not None
    os.kill(record.pid, signal.SIGKILL)


def _lose_pids(inventory: Path) -> None:
    for path in Path(os.environ["XDG_STATE_HOME"]).rglob("pid"):
        path.unlink()


def _lose_state(inventory: Path) -> None:
    shutil.rmtree(os.environ["XDG_STATE_HOME"])


def _lose_inventory(inventory: Path) -> None:
    (inventory / "hosts.yml").write_text("kimi: [\n")


def _lose_all(inventory: Path) -> None:
    shutil.rmtree(inventory)
    _lose_state(inventory)


@pytest.mark.parametrize(
    "crash",
    [
        pytest.param(_kill_nothing, marks=pytest.mark.slow),
        pytest.param(_kill_nspawn, marks=pytest.mark.slow),
        _kill_outermost,
        pytest.param(_lose_pids, marks=pytest.mark.slow),
        pytest.param(_lose_state, marks=pytest.mark.slow),
        pytest.param(_lose_inventory, marks=pytest.mark.slow),
        _lose_all,
    ],
)
def test_down_leaves_nothing(crash: object, doomed: Path, tmp_path: Path) -> None:
    state, inventory = tmp_path / "state", doomed
    files, before = below(tmp_path), traces(inventory)
    operations.start_lab(inventory)
    during = traces(inventory)
    for kind in ("processes", "network namespaces", "links", "tables"):
        assert during[kind] - before[kind], f"the test would not see {kind}"
    crash(inventory)  # type: ignore[operator]
    operations.remove_lab(inventory)
    assert_nothing_new(inventory, before)
    assert below(tmp_path) - {str(state)} <= files


def test_an_up_that_was_killed_is_cleared_away_and_can_be_repeated(doomed: Path) -> None:
    inventory = doomed
    before = traces(inventory)
    cuts = (0.0, 0.4, 0.1)
    for delay in cuts:
        with subprocess.Popen(
            [sys.executable, "-c", UP, str(inventory)], stderr=subprocess.PIPE, text=True
        ) as starting:
            assert starting.stderr is not None
            first = starting.stderr.readline()
            assert "starting" in first, first + starting.stderr.read()
            time.sleep(delay)
            starting.kill()
        if delay == cuts[-1]:
            break
        operations.remove_lab(inventory)
        assert_nothing_new(inventory, before)
    operations.start_lab(inventory)
    assert ask(inventory, "one", "systemctl is-system-running") == "running"
    for _ in range(2):
        operations.remove_lab(inventory)


def test_what_a_killed_build_has_mounted_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    wanted = images.make_recipe("debian-12", with_kernel=False, apt=read_apt_settings())
    mounted = tmp_path / "kimi-prov" / "images" / f".new-{wanted.key}" / "root" / "dev"
    mounted.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", str(mounted)], check=True)
    try:
        (mounted / "null").touch()
        with pytest.raises(UserError, match="is mounted in it"):
            images.ensure_image(wanted, lambda _line: None)
        assert (mounted / "null").exists()
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


def test_a_host_boots_where_the_control_groups_are_unified(tmp_path: Path) -> None:
    """As on distributions of today: the tree is there, and cannot be mounted over itself."""
    inventory = make_lab(tmp_path / "inv", "10.93.29", nodes=["node1"]).inventory
    lone = "umount -l /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup && exec "
    words = f'{lone} "$0" lab "$1" "$2"'

    def inside(verb: str) -> subprocess.CompletedProcess[str]:
        argv = ["unshare", "--mount", "sh", "-c", words, KIMI_PROV, verb, str(inventory)]
        return subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)

    try:
        done = inside("up")
        assert done.returncode == 0, done.stderr
        assert ask(inventory, "node1", "systemctl is-system-running --wait") == "running"
    finally:
        done = inside("down")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_debian_13_is_a_host_as_well(tmp_path: Path) -> None:
    inventory = make_lab(tmp_path / "inv", "10.93.24", ["one"]).inventory
    hosts = inventory / "hosts.yml"
    hosts.write_text(hosts.read_text().replace("debian-12", "debian-13"))
    try:
        operations.start_lab(inventory)
        assert ask(inventory, "one", ". /etc/os-release; echo $VERSION_CODENAME") == "trixie"
        assert ask(inventory, "one", "systemctl is-system-running") == "running"
    finally:
        operations.remove_lab(inventory)


@pytest.mark.slow
def test_an_emulated_host_has_two_nodes_and_a_kernel_of_its_own(tmp_path: Path) -> None:
    inventory = make_lab(tmp_path / "inv", "10.93.25", ["one"], ["two"]).inventory
    hosts = inventory / "hosts.yml"
    hosts.write_text(
        hosts.read_text().replace("lab_kind: nspawn", "lab_kind: qemu\n    lab_memory_mb: 1024")
    )
    before = traces(inventory)
    try:
        operations.start_lab(inventory)
        assert "NUMA node(s):1" not in ask(inventory, "one", "lscpu | tr -d ' '")
        assert (
            ask(inventory, "one", "ls -d /sys/devices/system/node/node[0-9]*").count("node/") == 2
        )
        assert ask(inventory, "one", "grep 'physical id' /proc/cpuinfo | sort -u | wc -l") == "2"
        ask(inventory, "one", "sysctl -w kernel.numa_balancing=0 && touch /root/kept")
        ask(inventory, "one", "ping -c1 -W10 two")
        with pytest.raises(UserError, match="no cable"):
            operations.link(inventory, "one", up=False)
        operations.restart_host(inventory, "one")
        ask(inventory, "one", "test -e /root/kept")
    finally:
        operations.remove_lab(inventory)
    assert_nothing_new(inventory, before)
