"""What can be wrong: one message that names it and mends it, the documented code, nothing left."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import tarfile
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import yaml
from machines import kimi_prov, newest_run, picture

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from machines import Host

pytestmark = pytest.mark.lab


@pytest.fixture
def told(tmp_path: Path) -> object:
    """Write variables to a file that `-e` takes."""

    def write(**variables: object) -> str:
        file = tmp_path / "told.yml"
        file.write_text(yaml.safe_dump(variables))
        return f"@{file}"

    return write


@contextmanager
def edited(host: Host, before: str, after: str) -> Iterator[None]:
    """Run one command there, and its undoing in any case."""
    host.ssh(before)
    try:
        yield
    finally:
        host.ssh(after)


def refused(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    for word in words:
        assert word in done.stderr, done.stderr


def test_a_host_that_is_not_there(virgin_host: Host, told) -> None:  # type: ignore[no-untyped-def]
    done = virgin_host.apply("-e", told(ansible_host="10.93.20.250", ansible_ssh_timeout=3))
    refused(done, 4, "node2", "did not answer")


def test_a_wrong_ssh_key(virgin_host: Host, told, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    key = tmp_path / "stranger"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    # A master connection of an earlier run would answer without any key.
    wrong = told(
        ansible_ssh_private_key_file=str(key),
        ansible_ssh_args="-o ControlPath=none -o IdentitiesOnly=yes -o BatchMode=yes",
    )
    refused(virgin_host.apply("-e", wrong), 4, "node2", "key")


def test_a_user_without_sudo(virgin_host: Host, told) -> None:  # type: ignore[no-untyped-def]
    make = "useradd -m -p '*' stranger"
    with edited(virgin_host, make, "userdel -rf stranger 2>/dev/null; true"):
        done = virgin_host.apply("-e", told(ansible_user="stranger"))
    refused(done, 2, "node2", "sudo")


def test_a_port_that_another_program_has(virgin_host: Host) -> None:
    listen = (
        "systemd-run -q --unit=squatter python3 -c "
        "'import socket,time; s=socket.create_server((\"\", 8000)); time.sleep(600)'; "
        "until ss -Hltn 'sport = :8000' | grep -q .; do sleep 0.1; done"
    )
    before = picture(virgin_host)
    with edited(virgin_host, listen, "systemctl stop squatter"):
        done = virgin_host.apply()
    refused(done, 3, "node2", "8000", "port.taken", "kimi_port")
    after = picture(virgin_host)
    # The program in the way was a unit of its own: what runs is not compared.
    assert [after[part] for part in ("files", "users", "nft")] == [
        before[part] for part in ("files", "users", "nft")
    ]


def test_a_disk_that_is_too_small(virgin_host: Host) -> None:
    small = "mkdir -p /srv/kimi && mount -t tmpfs -o size=100M tmpfs /srv/kimi"
    with edited(virgin_host, small, "umount /srv/kimi && rmdir /srv/kimi"):
        done = virgin_host.apply()
    refused(done, 3, "node2", "/srv/kimi")


def test_an_operating_system_that_nobody_tried(virgin_host: Host) -> None:
    other = (
        "cp -L /usr/lib/os-release /root/os-release.kept && "
        r"sed -i 's/debian/slackware/I' /usr/lib/os-release"
    )
    back = "mv /root/os-release.kept /usr/lib/os-release"
    with edited(virgin_host, other, back):
        done = virgin_host.apply()
    refused(done, 3, "node2", "slackware", "Debian 12")


def test_a_model_that_nobody_knows(virgin_host: Host, told) -> None:  # type: ignore[no-untyped-def]
    refused(virgin_host.apply("-e", told(kimi_model="kimi-k26")), 2, "did you mean kimi-k2.6")


def test_a_variable_that_nobody_knows_is_named_with_its_line(
    virgin_host: Host, tmp_path: Path
) -> None:
    inventory = tmp_path / "inv"
    shutil.copytree(virgin_host.inventory, inventory)
    file = inventory / "group_vars" / "kimi.yml"
    file.write_text(file.read_text() + "kimi_contxt: 4096\n")
    line = len(file.read_text().splitlines())
    done = kimi_prov("apply", inventory, "--limit", "node2")
    refused(done, 2, f"{file}:{line}", "kimi_context")


def test_a_secret_is_nowhere(served_host: Host, tmp_path: Path) -> None:
    """A canary key and token, given by file, do not show in logs, journal, processes or facts."""
    key, token = "sk-kimi-" + "C4n4ry" * 7 + "x", "hf_" + "CanaryToken" * 3
    keys_file, token_file = tmp_path / "keys", tmp_path / "token"
    keys_file.write_text(f"canary:{key}\n")
    token_file.write_text(token)
    for file in (keys_file, token_file):
        file.chmod(0o600)
    told = tmp_path / "told.yml"
    told.write_text(
        yaml.safe_dump(
            {"kimi_api_keys_file": str(keys_file), "kimi_hf_token_file": str(token_file)}
        )
    )
    verbose = served_host.apply("-e", f"@{told}", "--diff")
    assert verbose.returncode == 0, verbose.stdout + verbose.stderr
    plain = served_host.playbook("-e", f"@{told}", "--diff", "-vvvvv")
    assert plain.returncode == 0, plain.stdout[-3000:]
    asked = urllib.request.Request(
        f"https://{served_host.address}:8000/v1/models", headers={"Authorization": f"Bearer {key}"}
    )
    unverified = ssl._create_unverified_context()  # noqa: S323
    with urllib.request.urlopen(asked, timeout=10, context=unverified) as answer:  # noqa: S310
        assert answer.status == 200
    everywhere = [verbose.stdout, verbose.stderr, plain.stdout, plain.stderr]
    everywhere += [file.read_text() for file in newest_run(served_host.inventory).iterdir()]
    for look in (
        "journalctl --no-pager -o cat",
        "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ | tr '\\0' '\\n'",
        "cat /etc/kimi/*.json /run/kimi/progress/*.json",
    ):
        everywhere.append(served_host.ssh(look))
    everywhere.append(kimi_prov("status", served_host.inventory, "--limit", "node1").stdout)
    everywhere.append(
        kimi_prov("logs", served_host.inventory, "--limit", "node1", "--since", "1d").stdout
    )
    bundle = tmp_path / "bundle.tar.gz"
    done = kimi_prov("diagnose", served_host.inventory, "--limit", "node1", "--to", bundle)
    assert done.returncode == 0, done.stdout + done.stderr
    with tarfile.open(bundle) as archive:
        files = [archive.extractfile(member) for member in archive.getmembers()]
        everywhere += [file.read().decode() for file in files if file]
    for command in ("logs", "diagnose"):
        run = newest_run(served_host.inventory, command)
        everywhere += [file.read_text() for file in run.iterdir()]
    for text in everywhere:
        for canary in (key, token):
            assert canary not in text
    # Back to what the other tests know.
    again = served_host.apply()
    assert again.returncode == 0, again.stdout + again.stderr
