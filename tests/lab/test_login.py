"""Getting in as sites do: a user with a sudo password, a jump host, a vault, their ansible.cfg."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pexpect
import pytest
import yaml
from machines import KIMI_PROV, kimi_prov, run

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from machines import Host

pytestmark = pytest.mark.lab

PASSWORD = "battery staple canary"


@pytest.fixture(scope="module")
def clerk(virgin_host: Host) -> Iterator[Host]:
    """A user who logs in with the lab's key, and may use sudo with a password alone."""
    virgin_host.ssh(
        "useradd -m -s /bin/bash clerk"
        f" && echo 'clerk:{PASSWORD}' | chpasswd"
        " && echo 'clerk ALL=(ALL) ALL' >/etc/sudoers.d/clerk"
    )
    yield virgin_host
    virgin_host.ssh("rm -f /etc/sudoers.d/clerk; pkill -u clerk; userdel -rf clerk 2>&1; true")


@pytest.fixture
def site(clerk: Host, tmp_path: Path) -> Site:
    return Site(clerk, tmp_path)


def port(host: Host) -> int:
    made = host.inventory / "host_vars" / host.name / "lab.yml"
    return int(yaml.safe_load(made.read_text())["ansible_port"])


class Site:
    """An inventory that says where the machine is, and nothing of how to get in."""

    def __init__(self, host: Host, folder: Path) -> None:
        lab = yaml.safe_load((host.inventory / "group_vars" / "all" / "lab.yml").read_text())
        self.key = str(lab["ansible_ssh_private_key_file"])
        self.trust = str(lab["ansible_ssh_common_args"])
        self.inventory = folder / "site"
        (self.inventory / "group_vars").mkdir(parents=True)
        machine = {"ansible_host": host.address, "ansible_port": port(host)}
        hosts = yaml.safe_dump({"kimi": {"hosts": {"machine": machine}}})
        (self.inventory / "hosts.yml").write_text(hosts)
        self.variables = self.inventory / "group_vars" / "kimi.yml"
        self.variables.write_text(
            "kimi_model: kimi-k2-lab\nkimi_weights_source: file:///opt/models/kimi-k2-lab\n"
        )
        self.password = folder / "password"
        self.password.write_text(f"{PASSWORD}\n")

    def options(self, *more: str) -> list[str]:
        """Words of a plan, which changes nothing on the machine."""
        login = ["-u", "clerk", "--private-key", self.key, "--ssh-common-args", self.trust]
        return ["plan", str(self.inventory), "--format", "json", *login, *more]


def planned(done: subprocess.CompletedProcess[str]) -> None:
    assert '"kimi-prov/plan/v1"' in done.stdout, done.stdout + done.stderr
    assert "canary" not in done.stdout + done.stderr


def test_a_password_file_makes_root(site: Site) -> None:
    planned(kimi_prov(*site.options("--become-password-file", str(site.password))))


def test_a_password_is_asked_on_the_terminal(site: Site) -> None:
    asked = pexpect.spawn(KIMI_PROV, site.options("-K"), encoding="utf-8", timeout=300)
    asked.expect("Password to become root: ")
    asked.sendline(PASSWORD)
    asked.expect("kimi-prov/plan/v1")
    asked.expect(pexpect.EOF)
    asked.close()
    assert asked.exitstatus in (0, 3)


def test_without_the_password_the_message_says_how_to_give_it(site: Site) -> None:
    done = kimi_prov(*site.options())
    assert done.returncode == 2
    assert "-K" in done.stderr
    site.password.write_text("wrong\n")
    done = kimi_prov(*site.options("--become-password-file", str(site.password)))
    assert done.returncode == 2
    assert "-K" in done.stderr


def test_a_jump_host_leads_there(site: Site, lab_host: Host) -> None:
    reached = lab_host.ssh("journalctl -u ssh | grep -c 'Accepted publickey'")
    through = f"ssh {site.trust} -i {site.key} -W %h:%p -p {port(lab_host)} root@{lab_host.address}"
    jump = f"{site.trust} -o ProxyCommand='{through}'"
    login = ["-u", "clerk", "--private-key", site.key, "--ssh-common-args", jump]
    password = ["--become-password-file", str(site.password)]
    planned(kimi_prov("plan", site.inventory, "--format", "json", *login, *password))
    assert int(lab_host.ssh("journalctl -u ssh | grep -c 'Accepted publickey'")) > int(reached) + 1


def test_a_site_s_ansible_cfg_and_vault_are_enough(site: Site, tmp_path: Path) -> None:
    vault = tmp_path / "vault-key"
    vault.write_text("only canaries know\n")
    secrets = site.inventory / "group_vars" / "all.yml"
    secrets.write_text(yaml.safe_dump({"ansible_become_password": PASSWORD}))
    encrypt = str(Path(sys.executable).with_name("ansible-vault"))
    done = run(encrypt, "encrypt", "--vault-password-file", str(vault), str(secrets))
    assert done.returncode == 0, done.stderr
    (tmp_path / "ansible.cfg").write_text(
        "[defaults]\nremote_user = clerk\nvault_password_file = vault-key\n"
        f"private_key_file = {os.path.relpath(site.key, tmp_path)}\n"
        f"[ssh_connection]\nssh_common_args = {site.trust}\n"
    )
    planned(kimi_prov("plan", site.inventory, "--format", "json", cwd=tmp_path))
