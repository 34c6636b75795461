"""A backup of a served host, put back on a fresh machine of the same inventory."""

from __future__ import annotations

import http.client
import json
import ssl
import stat
import subprocess
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from machines import kimi_prov, make_lab
from waiting import HANGS_S

from kimi_prov.on_host.endpoint import tls

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from machines import Host, Lab

# A machine is made, served, made again and served again.
pytestmark = [pytest.mark.lab, pytest.mark.slow]

NETWORK = "10.93.102"


@pytest.fixture
def backup_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    made = make_lab(tmp_path_factory.mktemp("backup") / "inv", NETWORK, nodes=["old"])
    made.up()
    yield made
    made.down()


def told(*words: str | Path) -> dict[str, Any]:
    """One of the commands, and its document of the one host."""
    done = kimi_prov(*words, "--format", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)["hosts"]["old"]


def serve(host: Host) -> None:
    done = host.apply()
    assert done.returncode == 0, done.stdout + done.stderr


def status_with(host: Host, key: str, certificate: str) -> int:
    """Ask the opened port with a key, trusting one certificate; return what it answers."""
    context = ssl.create_default_context(cadata=certificate)
    connection = http.client.HTTPSConnection(host.address, 8000, timeout=HANGS_S, context=context)
    with closing(connection):
        connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})
        return connection.getresponse().status


def test_a_fresh_machine_serves_those_who_were_served(backup_lab: Lab, tmp_path: Path) -> None:
    host = backup_lab.hosts["old"]
    serve(host)
    key = kimi_prov("key", host.inventory).stdout.split()[1]
    certificate = host.ssh("cat /etc/kimi/proxy/tls.crt")
    identity, archive = tmp_path / "identity", tmp_path / "backup.age"
    subprocess.run(["age-keygen", "-o", identity], check=True, capture_output=True)
    public = subprocess.run(
        ["age-keygen", "-y", identity], check=True, capture_output=True, text=True
    ).stdout.strip()
    made = told("backup", host.inventory, "--recipient", public, "--to", archive)
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    assert (made["encrypted_with"], made["keys"]) == ("age", ["operator"])
    assert status_with(host, key, certificate) == 200
    assert host.ssh("ls -d /srv/kimi/transfer", check=False) == ""

    backup_lab.down()
    backup_lab.up()
    words = ("restore", host.inventory, archive, "--identity", identity, "--yes")
    early = kimi_prov(*words)
    assert (early.returncode, "kimi-prov apply" in early.stderr) == (1, True)
    serve(host)
    fresh = host.ssh("cat /etc/kimi/proxy/tls.crt")
    assert tls.compute_fingerprint(fresh) != tls.compute_fingerprint(certificate)
    assert status_with(host, key, fresh) == 401
    engine = host.ssh("systemctl show -P MainPID kimi-serve@0")
    back = told(*words)
    assert back["left_out"] == ["entries of the history that this machine has as well: 1"]
    assert back["certificate_sha256"] == tls.compute_fingerprint(certificate)
    assert status_with(host, key, certificate) == 200
    # Its own key is still that by which it tests itself, and nothing is for `apply` to change.
    assert kimi_prov("verify", host.inventory).returncode == 0
    again = host.apply()
    assert (again.returncode, "changed=0" in again.stdout) == (0, True), again.stdout
    assert host.ssh("systemctl show -P MainPID kimi-serve@0") == engine
    # The machine that it is of is not harmed by it, either.
    assert told(*words)["certificate_sha256"] == tls.compute_fingerprint(certificate)
    assert status_with(host, key, certificate) == 200
