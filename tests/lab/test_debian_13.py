"""Debian 13 from a bare host to the chat and back, on an interpreter that is brought.

The interpreter is a stand-in: Debian 12's own in the layout of the builds that the catalogue names.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import stand_in_python
from machines import Host, kimi_prov, make_lab, newest_run, picture
from upgrades import settings_file
from waiting import until
from weights_server import Server

from kimi_prov.contract import paths
from kimi_prov.lab import operations as commands
from kimi_prov.on_host.endpoint import api_client

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stand_in_python import StandIn

pytestmark = [pytest.mark.lab, pytest.mark.slow]

NETWORK = "10.93.82"
UNITS = ("kimi-firewall", "kimi-proxy", "kimi-stage", "kimi-serve@0")
# Where a start waits for others' work on the machine, it waits this long.
START_S = 900.0
# What the packages' own scripts and logins write, and no package owns.
BY_OTHERS = ("/var/lib/", "/etc/passwd", "/etc/group", "/etc/shadow", "/etc/gshadow", "/root/")
BY_OTHERS += ("/etc/rc", "/etc/ld.so.cache", "/etc/alternatives/")


@dataclass
class Brought:
    """A bare host and the build that it is given."""

    host: Host
    stand_in: StandIn
    catalogue: Path

    def run(self, command: str, *args: str) -> str:
        """What a command of kimi-prov says of the host, with the site's own row of the build."""
        env = {"KIMI_PROV_CATALOG": str(self.catalogue), "COLUMNS": "80"}
        done = kimi_prov(command, self.host.inventory, *args, env=env)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brought]:
    """The host as installed; the build's archive is on a mirror of the control machine."""
    folder = tmp_path_factory.mktemp("debian13")
    stand_in = stand_in_python.make(folder / "mirror")
    settings = {"lab_image": "debian-13"}
    lab = make_lab(folder / "inv", NETWORK, ["trixie"], settings=settings)
    lab.up()
    try:
        server = Server(stand_in.files(), host=f"{NETWORK}.1")
        variables = lab.inventory / "group_vars" / "kimi.yml"
        variables.write_text(f"{variables.read_text()}kimi_python_mirror: {server.url}\n")
        yield Brought(lab.hosts["trixie"], stand_in, stand_in.write_overlay(folder / "catalog"))
        server.stop()
    finally:
        lab.down()


@pytest.fixture(scope="module")
def before(bare: Brought) -> dict[str, object]:
    return picture(bare.host)


@pytest.fixture(scope="module")
def served(bare: Brought, before: dict[str, object]) -> Brought:
    assert "python3.11" not in str(before)
    bare.run("apply")
    return bare


def changed(brought: Brought) -> int:
    brought.run("apply")
    kept = newest_run(brought.host.inventory)
    result = json.loads((kept / "result.json").read_text())
    return int(result["hosts"][brought.host.name]["changed"])


def chat(host: Host, key: str | None = None) -> int:
    """HTTP status of a chat through the opened port, as a client has it."""
    own, pin = host.door()
    body = {"messages": [{"role": "user", "content": "1"}], "max_tokens": 4}
    return api_client.request_chat(
        api_client.Endpoint(host.address, 8000, pin), key or own, body
    ).status


def states(host: Host, *units: str) -> list[str]:
    return host.ssh(f"systemctl is-active {' '.join(units or UNITS)}", check=False).split()


def test_the_archive_is_the_same_whenever_it_is_made(bare: Brought, tmp_path: Path) -> None:
    assert stand_in_python.make(tmp_path).sha256 == bare.stand_in.sha256


def test_the_plan_says_which_interpreter_is_brought_and_that_it_stands_in(bare: Brought) -> None:
    plan = json.loads(bare.run("plan", "--format", "json"))["hosts"][bare.host.name]
    (row,) = [finding for finding in plan["findings"] if finding["id"] == "python.lock"]
    assert row["severity"] == "pass"
    assert "/usr/bin/python3 (3.13)" in row["observed"]
    assert f"{bare.stand_in.version} (python-build-standalone STANDIN)" in row["observed"]
    assert "STAND-IN" in row["source"]
    assert f"CPython {bare.stand_in.version} (python-build-standalone STANDIN)" in bare.run("plan")


def test_what_serves_runs_on_the_interpreter_that_was_brought(served: Brought) -> None:
    host = served.host
    assert states(host) == ["active"] * len(UNITS)
    plan = json.loads(host.ssh("cat /etc/kimi/plan.json"))
    brought = plan["installation"]["python"]
    assert (brought["version"], brought["build"]) == (served.stand_in.version, "STANDIN")
    assert brought["sha256"] == served.stand_in.sha256
    programs = host.ssh("for p in $(pgrep -u kimi); do readlink /proc/$p/exe; done").split()
    assert programs
    assert {path for path in programs if not path.startswith(brought["dir"])} == set()
    assert plan["engine"]["python"] in programs
    status = json.loads(served.run("status", "--format", "json"))
    assert status["hosts"][host.name]["versions"]["engine_interpreter"]["build"] == "STANDIN"
    assert "STAND-IN" in host.ssh(f"cat {brought['dir']}/*/STAND-IN.txt")


def test_the_served_model_passes_verify(served: Brought) -> None:
    assert chat(served.host) == 200
    served.run("verify")


def test_a_second_apply_changes_nothing(served: Brought) -> None:
    assert changed(served) == 0


def test_systemd_and_haproxy_of_debian_13_have_no_complaint(served: Brought) -> None:
    host = served.host
    listed = "systemctl list-units --state=active --plain --no-legend --type=service 'kimi-*'"
    names = [line.split()[0] for line in host.ssh(listed).splitlines()]
    assert {f"{name}.service" for name in UNITS} <= set(names)
    for name in names:
        told = host.ssh(f"systemd-analyze security --no-pager '{name}' | tail -2")
        assert float(told.partition(f"{name}:")[2].split()[0]) <= 2.5, told
    told = host.ssh(f"systemd-analyze verify --man=no {' '.join(names)} 2>&1; true")
    assert [line for line in told.splitlines() if "kimi" in line] == []
    assert "warning" not in host.ssh("haproxy -c -f /etc/kimi/proxy/haproxy.cfg 2>&1").lower()
    assert host.ssh("systemctl is-system-running").strip() == "running"


# What wakes a machine, with nobody who asks: it leaves at once.
_WAKER = f"""
import asyncio, os, socket, sys
sys.path.insert(0, "{paths.ZIPAPP}")
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.lifecycle import wake
wake._LEAVES_S = 0.5
with socket.socket(socket.AF_UNIX) as listening:
    listening.bind("/run/tried.sock")
    listening.listen()
    plan = {{"instances": [], "rest": {{"wake": "refuse"}}}}
    asyncio.run(wake.serve(Paths(), plan, listening))
print(os.path.exists("/run/tried.sock"))
"""


def test_what_wakes_a_machine_leaves_systemd_s_socket_where_it_is(served: Brought) -> None:
    """Python 3.13 takes the file of a server's socket away; nothing could wake the machine then."""
    said = served.host.ssh(f"/usr/bin/python3 -I - <<'EOF'\n{_WAKER}\nEOF")
    assert said.strip() == "True"
    served.host.ssh("rm /run/tried.sock")


def test_it_is_woken_a_second_time(served: Brought, tmp_path: Path) -> None:
    """Whoever woke it the first time has left by then, and the socket has to be systemd's still."""
    host = served.host
    rests = settings_file(tmp_path, {"kimi_idle_stop": "30s", "kimi_wake": "hold"})
    served.run("apply", "-e", rests)
    key = served.run("key", "--add", "sleeper").split()[-1]

    def asleep() -> bool:
        mark = json.loads(host.ssh(f"cat {paths.STOPPED} 2>/dev/null || echo '{{}}'"))
        return mark.get("state") == "asleep" and "cut" in mark

    def journal(*units: str) -> str:
        named = " ".join(f"-u {unit}" for unit in units)
        return host.ssh(f"journalctl -b {named} -o cat --no-pager")

    def started() -> int:
        return journal("kimi-serve@0").count("Starting kimi-serve@0.service")

    before = started()
    try:
        for times in (1, 2):
            assert until(asleep, START_S, every_s=1.0), journal("kimi-idle")
            gone = until(lambda: states(host, "kimi-wake.service") == ["inactive"], START_S)
            assert gone, journal("kimi-wake")
            assert chat(host, key) == 200, journal("kimi-wake", "kimi-proxy")
            assert started() == before + times
    finally:
        served.run("key", "--remove", "sleeper")
        served.run("apply")


def test_after_a_reboot_it_serves_with_no_hand_on_it(served: Brought) -> None:
    commands.restart_host(served.host.inventory, served.host.name)
    assert until(lambda: states(served.host) == ["active"] * len(UNITS), START_S)
    assert chat(served.host) == 200
    assert changed(served) == 0


def test_destroy_leaves_the_packages_and_nothing_else(
    served: Brought, before: dict[str, object]
) -> None:
    host = served.host
    served.run("destroy", "--yes", "--purge-weights")
    after = picture(host)
    for name in ("mounts", "nft", "sysctls", "listening"):
        assert lasting(after[name]) == lasting(before[name]), name
    assert "kimi" not in str(after["users"])
    old, new = before["files"], after["files"]
    assert isinstance(old, dict)
    assert isinstance(new, dict)
    owned = set(host.ssh("cat /var/lib/dpkg/info/*.list").splitlines())
    # What is new belongs to a package, which is there for the next apply; the rest is as it was.
    assert foreign({path for path in old if old[path] != new.get(path)}) == set()
    assert foreign(new.keys() - old.keys() - with_merged_usr(owned)) == set()
    assert [path for path in new.keys() - old.keys() if "kimi" in path] == []
    # And dpkg itself finds every file of every package as it was delivered.
    assert host.ssh("dpkg --verify", timeout=600).strip() == ""
    assert host.ssh("python3 -V").startswith("Python 3.13")


def lasting(told: object) -> object:
    """Without the mounts that come and go with logins and with systemd's own services."""
    if not isinstance(told, list):
        return told
    return [line for line in told if not line.startswith(("/run/credentials/", "/run/user/"))]


def foreign(paths: set[str]) -> set[str]:
    kept = {path for path in paths if not path.startswith(BY_OTHERS)}
    return {path for path in kept if "__pycache__" not in path}


def with_merged_usr(owned: set[str]) -> set[str]:
    """Packages may list what lies in /usr/lib as /lib."""
    return owned | {f"/usr{path}" for path in owned}
