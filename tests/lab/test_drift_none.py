"""None on a host that nobody touched, whatever was done to it by kimi-prov and by its own boots."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import yaml
from machines import kimi_prov, make_lab
from waiting import until

from kimi_prov.lab import operations as commands

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from machines import Host

# The host is served ten times over.
pytestmark = [pytest.mark.lab, pytest.mark.slow]

NETWORK = "10.93.118"
START_S = 900.0
# A certificate that is about to end: apply makes another.
ENDS = (
    "cd /root && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 "
    "-subj /CN=kimi -keyout k -out c 2>/dev/null && cat c k > /etc/kimi/proxy/tls.pem && rm c k"
)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    made = make_lab(
        tmp_path_factory.mktemp("none") / "inv", NETWORK, nodes=["one"], kimi_drift_timer=True
    )
    made.up()
    yield made.hosts["one"]
    made.down()


def done(command: str, host: Host, *words: str) -> None:
    found = kimi_prov(command, host.inventory, *words)
    assert found.returncode == 0, found.stdout + found.stderr


def serves(host: Host) -> bool:
    return kimi_prov("verify", host.inventory).returncode == 0


def restart(host: Host) -> None:
    host.ssh("systemctl restart --no-block kimi-serve@0")
    assert until(lambda: serves(host), START_S)


def reboot(host: Host) -> None:
    commands.restart_host(host.inventory, host.name)
    assert until(lambda: serves(host), START_S)


def certificate(host: Host) -> None:
    before = host.ssh("cat /etc/kimi/proxy/tls.crt")
    host.ssh(ENDS)
    done("apply", host)
    assert host.ssh("cat /etc/kimi/proxy/tls.crt") != before


def upgrade(host: Host) -> None:
    file = host.inventory / "group_vars" / "kimi.yml"
    wishes = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({**wishes, "kimi_concurrency": 8}))
    done("apply", host)


def cycle(host: Host) -> None:
    done("destroy", host, "--yes")
    done("apply", host)


STEPS: dict[str, Callable[[Host], None]] = {
    "a first apply": lambda host: done("apply", host),
    "a second apply": lambda host: done("apply", host),
    "the engine's restart": restart,
    "a reboot": reboot,
    "another key": lambda host: done("key", host, "--rotate"),
    "a certificate that was renewed": certificate,
    "an upgrade": upgrade,
    "a rollback": lambda host: done("rollback", host),
    "cleaning": lambda host: done("clean", host, "--yes"),
    "destroy and apply": cycle,
}


@pytest.mark.parametrize("after", list(STEPS))
def test_there_is_none_after(host: Host, after: str) -> None:
    """In this order: each begins with what the one before has left."""
    STEPS[after](host)
    told = kimi_prov("drift", host.inventory, "--weights", "--format", "json")
    found = json.loads(told.stdout)["hosts"][host.name]
    assert (told.returncode, found["drift"], found["unseen"]) == (0, [], []), json.dumps(found)
    assert {*found["weights_read_from"].values()} <= {"disk", "memory"}
    # The hourly look, within its protection, says the same.
    kept = json.loads(
        host.ssh("systemctl start kimi-drift.service && cat /var/lib/kimi/state/drift.json")
    )
    assert (kept["complete"], kept["findings"]) == (True, {}), kept["detail"]
