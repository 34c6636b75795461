"""One folder brings everything: a host with no route but SSH to the control machine.

The wheels, CPython's absence, the distribution's packages and the signature are real. The weights
come from a stand-in of the hub, and lie on the host as on a disk that was carried there.
"""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from machines import KIMI_PROV, Host, kimi_prov, make_lab, newest_run
from weights_server import COMMIT, HubHandler, Server

from kimi_prov.user_dirs import find_cache_home

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.lab, pytest.mark.slow]

NETWORK = "10.93.97"
KEY = "lab bundles"
MODEL = "/opt/models/kimi-k2-lab"
DISK = "/opt/disk"
WEIGHTS = f"weights/kimi-k2-lab/{COMMIT}"
# dpkg believes that an older version is installed, so that the bundle's is an update.
OLDER = "sed -i '/^Package: numactl$/,/^$/s/^Version: .*/Version: 1.0-1/' /var/lib/dpkg/status"
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
    """A host that reaches nothing, its bundle, the pieces of a newer one, and the key."""

    host: Host
    bundle: Path
    pieces: Path
    document: dict[str, Any]
    key: str

    def write_settings(self, **more: str) -> None:
        """Name bundle and key in the inventory."""
        path = self.host.inventory / "group_vars" / "kimi.yml"
        variables = yaml.safe_load(path.read_text())
        variables |= {"kimi_bundle": str(self.bundle), "kimi_bundle_key": self.key, **more}
        path.write_text(yaml.safe_dump(variables))

    def carry(self, folder: str, to: str) -> None:
        """Copy a folder of the bundle to the host, as a disk would bring it."""
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w") as tar:
            tar.add(self.bundle / folder, folder)
        words = ("lab", "ssh", self.host.inventory, self.host.name)
        unpack = f"mkdir -p {to} && tar -C {to} -x"
        subprocess.run([KIMI_PROV, *words, unpack], input=content.getvalue(), check=True)

    def plan(self) -> tuple[int, str]:
        """Exit code and output of `plan`."""
        done = kimi_prov("plan", self.host.inventory, env={"COLUMNS": "80"})
        return done.returncode, done.stdout + done.stderr


def start_hub(host: Host) -> Server:
    """Serve the lab's model as the hub does, on this machine alone."""
    packed = base64.b64decode(host.ssh(f"tar -C {MODEL} -c . | base64 -w0"))
    files = {}
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        for row in tar:
            stream = tar.extractfile(row) if row.isfile() else None
            if stream is not None:
                files[row.name.removeprefix("./")] = stream.read()
    return Server(files, type("Here", (HubHandler,), {}))


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
        hub, newer = start_hub(host), folder / "newer"
        source = f"hf://{HubHandler.repository}@{COMMIT}"
        variables = {"kimi_weights_source": source, "kimi_hf_endpoint": hub.url}
        (folder / "hub.yml").write_text(yaml.safe_dump(variables))
        words = ("bundle", lab.inventory, "-e", f"@{folder / 'hub.yml'}", "--sign-with", KEY)
        named = ("--format", "json", "--output")
        done = kimi_prov(*words, *named, bundle, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        more = ("--since", bundle, "--with-weights", "--pieces", "5M")
        later = kimi_prov(*words, *more, *named, newer, env=environment)
        hub.stop()
        assert later.returncode == 0, later.stdout + later.stderr
        assert host.ssh(CUT_OFF).strip() == ""
        assert host.ssh(f'timeout 60 python3 -c "{REACHES}"') == ""
        shown = ("gpg", "--with-colons", "--show-keys", bundle / "key.gpg")
        listing = subprocess.run(shown, check=True, capture_output=True, text=True).stdout
        key = next(line for line in listing.splitlines() if line.startswith("fpr:")).split(":")[9]
        # What is carried is changed by what is carried later.
        carried = Path(shutil.copytree(bundle, folder / "carried"))
        yield Offline(host, carried, newer / "pieces", json.loads(done.stdout), key)


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


def test_a_difference_in_pieces_brings_the_weights(offline: Offline) -> None:
    document = json.loads((offline.pieces / "bundle.json").read_text())
    assert 0 < document["since"]["bytes"] < document["bytes"] / 2
    shutil.copytree(offline.pieces, offline.bundle, dirs_exist_ok=True)
    last = max(offline.bundle.glob("piece-*"))
    away = offline.bundle.parent / last.name
    last.rename(away)
    code, said = offline.plan()
    assert code == 3
    assert f"the piece {last.name} is missing" in " ".join(said.split())
    away.rename(last)
    code, said = offline.plan()
    assert code == 0, said
    offline.carry(WEIGHTS, DISK)


def test_from_a_bare_host_to_a_verified_chat_and_again(offline: Offline) -> None:
    offline.host.ssh(f"mv {MODEL} /opt/models/away")
    offline.write_settings(kimi_weights_source=f"file://{DISK}/{WEIGHTS}")
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


def test_an_update_comes_from_the_bundle(offline: Offline) -> None:
    host = offline.host
    host.ssh(OLDER)
    done = kimi_prov("update", host.inventory, "--bundle", offline.bundle, "--format", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(done.stdout)["hosts"][host.name]["installed"]
    assert (row["name"], row["from"], row["kind"]) == ("numactl", "1.0-1", "security")
    again = kimi_prov("update", host.inventory, "--format", "json")
    assert json.loads(again.stdout)["hosts"][host.name]["detail"] == "nothing to do", again.stderr


def test_destroy_leaves_nothing_of_the_bundle(offline: Offline) -> None:
    done = kimi_prov("destroy", offline.host.inventory, "--yes", "--purge-weights")
    assert done.returncode == 0, done.stdout + done.stderr
    assert offline.host.ssh("ls -d /srv/kimi /etc/kimi 2>/dev/null; true") == ""
