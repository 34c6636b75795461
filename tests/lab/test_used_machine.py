"""A machine that was somebody's before: refused with the reasons, or served as it is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import yaml
from locales import LATIN, latin
from machines import Host, kimi_prov, make_lab, picture, run
from site_proxy import SiteProxy

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.lab

USER, PASSWORD = "site", "canary-battery-staple"
# An account of a person who is logged in, and a disk that is too small and mounted with care.
DRESSED = """
useradd --create-home --shell /bin/bash kimi
systemd-run --quiet --uid=kimi --unit=theirs sleep infinity
mount -t tmpfs -o size=64m,noexec,nosuid,nodev tmpfs /srv
"""
UNDRESSED = """
systemctl stop theirs
umount /srv
userdel --remove kimi 2>/dev/null
"""
# Another disk, a group of that name, a proxy in the environment that leads nowhere, another locale.
IN_USE = f"""
mkdir -p /data/srv
echo '/data/srv /srv none bind,nofail 0 0' >>/etc/fstab
systemctl daemon-reload
mount /srv
groupadd --gid 4711 kimi
printf '%s\\n' http_proxy=http://127.0.0.1:9 https_proxy=http://127.0.0.1:9 LANG={LATIN} \
  >>/etc/environment
systemctl set-environment LANG={LATIN}
"""
# Who writes a secret on a command line shows it for as long as the command runs.
WATCHER = f"""
cat >/root/watch.py <<'END'
import glob, os.path, time
while not os.path.exists("/root/enough"):
    for name in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(name, "rb") as file:
                words = file.read()
        except OSError:
            continue
        if b"{PASSWORD[:9]}" b"{PASSWORD[9:]}" in words:
            with open("/root/seen", "ab") as seen:
                seen.write(words + bytes([10]))
    time.sleep(0.1)
END
systemd-run --quiet --unit=watcher /usr/bin/python3 /root/watch.py
"""


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A host of its own network; it has a locale that is not UTF-8, and uses it when told to."""
    folder = tmp_path_factory.mktemp("used")
    latin(folder)
    lab = make_lab(
        folder / "inv",
        "10.93.85",
        ["used1"],
        files=[{"src": str(folder / LATIN), "dest": f"/usr/lib/locale/{LATIN}"}],
    )
    lab.up()
    yield lab.hosts["used1"]
    lab.down()


def test_what_an_apply_would_fail_on_is_refused_before_anything_changes(used: Host) -> None:
    used.ssh(DRESSED)
    before = picture(used)
    refused = used.apply()
    assert refused.returncode == 3, refused.stdout + refused.stderr
    told = " ".join((refused.stdout + refused.stderr).split())
    for part in (
        "The account kimi belongs to somebody else",
        "it runs sleep",
        "groupmod --new-name",
        "noexec",
        "free on /srv",
    ):
        assert part in told
    assert picture(used) == before
    used.ssh(UNDRESSED)
    planned = kimi_prov("plan", used.inventory, "--format", "json")
    assert planned.returncode == 0, planned.stderr
    findings = json.loads(planned.stdout)["hosts"]["used1"]["findings"]
    assert {row["severity"] for row in findings} == {"pass"}


class Six:
    """The same host by IPv6 alone."""

    def __init__(self, host: Host) -> None:
        made = host.inventory / "host_vars" / host.name / "lab.yml"
        self.host = host
        self.address = str(yaml.safe_load(made.read_text())["lab_address6"])
        lab = yaml.safe_load((host.inventory / "group_vars" / "all" / "lab.yml").read_text())
        self.gateway = str(lab["lab_gateway6"])
        alias = f"-o HostKeyAlias={host.address}"
        self._login = ["-i", lab["ansible_ssh_private_key_file"], *alias.split()]
        self._login += str(lab["ansible_ssh_common_args"]).split()
        variables = {"ansible_host": self.address, "ansible_ssh_extra_args": alias}
        # Read after the lab's own file.
        made.with_name("six.yml").write_text(yaml.safe_dump(variables))

    def ssh(self, command: str) -> str:
        done = run("ssh", *self._login, f"root@{self.address}", command)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def kimi_prov(self, command: str, *options: str) -> str:
        done = kimi_prov(command, self.host.inventory, *options)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.mark.slow
def test_behind_a_proxy_by_ipv6_on_another_disk_in_another_locale_it_is_served(
    used: Host,
) -> None:
    """Nothing but the proxy leads out: no IPv4, no route, no names."""
    six = Six(used)
    used.ssh(IN_USE + WATCHER)
    used.ssh("(sleep 1; ip -4 address flush dev eth0) >/dev/null 2>&1 &")
    file = used.inventory / "group_vars" / "kimi.yml"
    settings = yaml.safe_load(file.read_text())
    with SiteProxy(six.gateway, USER, PASSWORD) as proxy:
        url = f"http://{USER}:{PASSWORD}@[{six.gateway}]:{proxy.port}"
        settings |= {"kimi_http_proxy": url, "kimi_https_proxy": url}
        settings |= {"kimi_allowed_networks": [f"{six.gateway}/128"]}
        file.write_text(yaml.safe_dump(settings))
        assert "127.0.0.1:9" in six.ssh("env")
        said = six.kimi_prov("apply")
        assert f"https://[{six.address}]:8000/v1" in said
        # There is no other way, so that whatever came came through it.
        assert proxy.hosts()
    six.ssh("touch /root/enough")
    assert six.ssh("cat /root/seen 2>/dev/null; true") == ""
    assert six.ssh("stat -c '%a %U' /etc/kimi/forward-proxy.env").split() == ["600", "root"]
    written = six.ssh(f"grep -rl {PASSWORD} /etc /run /var 2>/dev/null; true").split()
    assert sorted(written) == ["/etc/kimi/apt-proxy.conf", "/etc/kimi/forward-proxy.env"]
    assert PASSWORD not in six.ssh("journalctl --no-pager; systemctl show '*'")
    assert PASSWORD not in said
    of_engine = six.ssh(
        "for pid in $(cat /sys/fs/cgroup/system.slice/system-kimi*/*/cgroup.procs); "
        "do tr '\\0' '\\n' </proc/$pid/environ; done"
    )
    assert "KIMI_STAMP" in of_engine
    assert "_proxy" not in of_engine.lower()
    assert "LC_ALL=C.UTF-8" in of_engine
    waits = six.ssh("systemctl show --property=Requires,After kimi-serve@0.service kimi-fetch")
    assert waits.count("srv.mount") == 4
    six.kimi_prov("verify")
    six.kimi_prov("destroy", "--yes", "--purge-weights")
    assert six.ssh("getent group kimi").split(":")[2] == "4711"
    assert "kimi" not in six.ssh("getent passwd")
    assert six.ssh("findmnt -no TARGET /srv; ls -A /srv").split() == ["/srv"]
