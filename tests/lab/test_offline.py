"""One folder brings everything: a host with no route but SSH to the control machine.

The wheels, CPython's absence, the distribution's packages and the signature are real; the weights
lie on the host, as a disk that was carried there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from machines import Host, kimi_prov, make_lab, newest_run

from kimi_prov.user_dirs import find_cache_home

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.lab, pytest.mark.slow]

NETWORK = "10.93.97"
KEY = "lab bundles"
# Ends every way out. What the host answers to its own network, it still answers.
CUT_OFF = """
ip -4 route del default; ip -6 route del default 2>/dev/null
printf '' > /etc/resolv.conf
ip route show default; ip -6 route show default
"""
REACHES = (
    "import socket\n"
    "for address in (('1.1.1.1', 443), ('2606:4700:4700::1111', 443), ('example.com', 80)):\n"
    "    try:\n"
    "        socket.create_connection(address, timeout=3)\n"
    "        print('reached', address)\n"
    "    except OSError:\n"
    "        pass\n"
)


@dataclass
class Offline:
    """A host that reaches nothing, its finished bundle, and the key's environment."""

    host: Host
    bundle: Path
    document: dict[str, Any]
    key: str

    def write_settings(self, **more: str) -> None:
        """Name bundle and key in the inventory."""
        path = self.host.inventory / "group_vars" / "kimi.yml"
        variables = yaml.safe_load(path.read_text())
        variables |= {"kimi_bundle": str(self.bundle), "kimi_bundle_key": self.key, **more}
        path.write_text(yaml.safe_dump(variables))

    def plan(self) -> tuple[int, str]:
        """Exit code and output of `plan`."""
        done = kimi_prov("plan", self.host.inventory, env={"COLUMNS": "80"})
        return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Offline]:
    """The host, cut off once its machine was described, and the bundle that was made for it."""
    folder = tmp_path_factory.mktemp("offline")
    home = folder / "gnupg"
    home.mkdir(mode=0o700)
    environment = {"GNUPGHOME": str(home)}
    make = ("gpg", "--batch", "--passphrase", "", "--quick-generate-key", KEY, "default", "sign")
    subprocess.run([*make, "never"], check=True, env={**os.environ, **environment})
    lab = make_lab(folder / "inv", NETWORK, nodes=["closed"])
    # Kept from run to run, as an operator keeps it: only what changed is downloaded.
    bundle = find_cache_home() / "offline-bundle"
    with lab.running():
        host = lab.hosts["closed"]
        named = ("--output", bundle, "--sign-with", KEY, "--format", "json")
        done = kimi_prov("bundle", lab.inventory, *named, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        assert host.ssh(CUT_OFF).strip() == ""
        assert host.ssh(f'timeout 60 python3 -c "{REACHES}"') == ""
        shown = ("gpg", "--with-colons", "--show-keys", bundle / "key.gpg")
        listing = subprocess.run(shown, check=True, capture_output=True, text=True).stdout
        key = next(line for line in listing.splitlines() if line.startswith("fpr:")).split(":")[9]
        yield Offline(host, bundle, json.loads(done.stdout), key)


def test_damaged_missing_and_foreign_pieces_are_refused_by_name(offline: Offline) -> None:
    offline.write_settings(kimi_bundle_key="0" * 40)
    code, said = offline.plan()
    assert code == 2
    assert offline.key in said
    offline.write_settings()
    wheels = {file for lock in offline.document["locks"] for file in lock["files"]}
    damaged, missing = (offline.bundle / name for name in sorted(wheels)[:2])
    content = damaged.read_bytes()
    away = missing.with_name("away")
    foreign = offline.bundle / "wheels" / "foreign-1.0-py3-none-any.whl"
    try:
        damaged.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        missing.rename(away)
        shutil.copy(away, foreign)
        code, said = offline.plan()
    finally:
        damaged.write_bytes(content)
        foreign.unlink(missing_ok=True)
        away.rename(missing)
    words = "".join(said.split())
    assert code == 3
    for name, what in ((damaged, "damaged"), (missing, "missing"), (foreign, "theindex")):
        assert f"{name.relative_to(offline.bundle)}:{what}" in words
    code, said = offline.plan()
    assert code == 0, said


def test_from_a_bare_host_to_a_verified_chat_and_again(offline: Offline) -> None:
    offline.write_settings()
    inventory = offline.host.inventory
    done = kimi_prov("apply", inventory)
    assert done.returncode == 0, done.stdout + done.stderr
    done = kimi_prov("verify", inventory)
    assert done.returncode == 0, done.stdout + done.stderr
    done = kimi_prov("apply", inventory)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((newest_run(inventory) / "result.json").read_text())
    assert result["hosts"][offline.host.name]["changed"] == 0
    assert "py-spy" in offline.host.ssh("ls /srv/kimi/tools")
    assert offline.host.ssh("ip route show default").strip() == ""


def test_destroy_leaves_nothing_of_the_bundle(offline: Offline) -> None:
    done = kimi_prov("destroy", offline.host.inventory, "--yes", "--purge-weights")
    assert done.returncode == 0, done.stdout + done.stderr
    assert offline.host.ssh("ls -d /srv/kimi /etc/kimi 2>/dev/null; true") == ""
