"""Who has the address that two gateways share: keepalived itself, by what the role writes of each.

Each gateway has a network of its own, with a cable between both; files stand for what is asked of
its proxy.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from plan_inputs import LAB_SETTINGS, lab_facts
from role_templates import filled
from waiting import until

from kimi_prov.catalog import loader
from kimi_prov.planner import gateways
from kimi_prov.planner.gateways import GatewayAddress, ServingHost
from kimi_prov.planner.settings.parsing import parse_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0, reason="keepalived gives an address to an interface for root alone"
    ),
]

SHARED = "10.0.9.100"
ADDRESSES = {"gw1": "10.0.9.1", "gw2": "10.0.9.2"}
# A backup believes for 3 to 4 s that the other lives: who moves at all has moved by then.
SETTLED_S = 5.0
# Stands in for the machine's own code: `gateway-health QUESTION PORT`.
HEALTH = """
import pathlib, sys
sys.exit(not pathlib.Path(__file__).with_name(sys.argv[2]).exists())
"""


@dataclass
class Gateway:
    """A keepalived in a network of its own."""

    name: str
    folder: Path
    network: int
    keepalived: subprocess.Popen[bytes] | None = None

    def inside(self, *command: str) -> list[str]:
        return ["nsenter", f"--net=/proc/{self.network}/ns/net", "--", *command]

    def start(self) -> None:
        command = self.inside(
            *("keepalived", "--dont-fork", "--log-console", "--no-syslog", "--vrrp"),
            f"--use-file={self.folder}/address.conf",
            *(f"--pid={self.folder}/main.pid", f"--vrrp_pid={self.folder}/vrrp.pid"),
        )
        with (self.folder / "log").open("ab") as log:
            self.keepalived = subprocess.Popen(command, stdout=log, stderr=log)

    def stop(self) -> None:
        if self.keepalived:
            self.keepalived.terminate()
            self.keepalived.wait(timeout=60)
            self.keepalived = None

    def gets(self, *answered: str) -> None:
        """From now on these questions are answered by yes: `answers`, `serves`."""
        for question in ("answers", "serves"):
            file = self.folder / question
            file.touch() if question in answered else file.unlink(missing_ok=True)

    def has_address(self) -> bool:
        shown = self.inside("ip", "-o", "address", "show", "to", SHARED)
        return bool(subprocess.run(shown, check=True, capture_output=True).stdout)


def configuration(name: str, folder: Path) -> tuple[str, str]:
    """What the role writes for one of both, and the interface that it names."""
    facts = lab_facts()
    facts["network"]["interfaces"] = [{"name": "eth0", "addresses": [f"{ADDRESSES[name]}/24"]}]
    plan = gateways.make_plan(
        facts,
        parse_settings({**LAB_SETTINGS, "kimi_gateway_address": SHARED}, host=name),
        loader.load_catalogue(),
        [ServingHost("gpu1", "10.0.9.11", 8000, 32)],
        [GatewayAddress(*row) for row in ADDRESSES.items()],
    )
    plan["users"]["proxy"] = "root"
    plan["paths"]["zipapp"] = str(folder / "health.py")
    return filled("gateway", "keepalived.conf.j2", plan), plan["gateway"]["shared"]["interface"]


@contextmanager
def network() -> Iterator[int]:
    """The process that keeps an empty network for as long as it lives."""
    with subprocess.Popen(["unshare", "--net", "sleep", "infinity"]) as held:
        try:
            own, made = (Path(f"/proc/{name}/ns/net") for name in ("self", held.pid))
            assert until(lambda: made.readlink() != own.readlink())
            yield held.pid
        finally:
            held.kill()


class Pair(dict[str, Gateway]):
    """Both gateways, by name."""

    def have(self) -> list[str]:
        return [name for name, gateway in self.items() if gateway.has_address()]

    def moves_to(self, name: str) -> bool:
        return until(lambda: self.have() == [name], every_s=0.1)

    def stays_at(self, name: str) -> bool:
        """Whether nobody else has the address at any time from now on."""
        end = time.monotonic() + SETTLED_S
        while self.have() == [name]:
            if time.monotonic() > end:
                return True
            time.sleep(0.1)
        return False


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Two gateways that reach a machine, with no keepalived yet."""
    if shutil.which("keepalived") is None:
        pytest.fail("keepalived is not installed: run tests/system-packages keepalived")
    made = Pair()
    with ExitStack() as stack:
        ends = []
        for name in ADDRESSES:
            folder = tmp_path / name
            folder.mkdir()
            made[name] = gateway = Gateway(name, folder, stack.enter_context(network()))
            stack.callback(gateway.stop)
            text, interface = configuration(name, folder)
            (folder / "address.conf").write_text(text)
            (folder / "address.conf").chmod(0o600)
            (folder / "health.py").write_text(HEALTH)
            gateway.gets("answers", "serves")
            ends.append(f"name {interface} netns {gateway.network}")
        cable = "ip link add {} type veth peer {}".format(*ends)
        subprocess.run(cable.split(), check=True)
        for name, gateway in made.items():
            for words in (
                f"address add {ADDRESSES[name]}/24 dev {interface}",
                f"link set {interface} up",
            ):
                subprocess.run(gateway.inside("ip", *words.split()), check=True)
        yield made


def start(pair: Pair) -> tuple[Gateway, Gateway]:
    """Start both at once; return the one that has the address, and the other."""
    for gateway in pair.values():
        gateway.start()
    assert until(lambda: len(pair.have()) == 1)
    (name,) = pair.have()
    assert pair.stays_at(name)
    (other,) = pair.keys() - {name}
    return pair[name], pair[other]


def test_the_address_goes_to_who_reaches_a_machine_and_answers_and_does_not_return(
    pair: Pair,
) -> None:
    first, second = start(pair)
    # Its proxy still answers; without a machine behind it.
    first.gets("answers")
    assert pair.moves_to(second.name)
    first.gets("answers", "serves")
    assert pair.stays_at(second.name)
    second.gets()
    assert pair.moves_to(first.name)
    second.gets("answers", "serves")
    assert pair.stays_at(first.name)


def test_a_keepalived_that_starts_again_takes_nothing(pair: Pair) -> None:
    first, second = start(pair)
    second.stop()
    second.start()
    assert pair.stays_at(first.name)
    first.stop()
    assert pair.moves_to(second.name)
    first.start()
    assert pair.stays_at(second.name)
