"""What the probe tells of a machine that was used before: mounts, links, accounts, the clock."""

from __future__ import annotations

import pwd
from typing import TYPE_CHECKING

from machine_of_files import tree

from kimi_prov.on_host.probe import accounts, system
from kimi_prov.on_host.system.machine import Machine

if TYPE_CHECKING:
    from pathlib import Path

MOUNTS = """\
1 0 8:1 / / rw,relatime - ext4 /dev/sda1 rw,errors=remount-ro
2 1 8:2 / /data rw,nosuid,nodev,noexec,relatime - xfs /dev/sdb1 rw
3 1 8:3 / /srv/kimi/models rw,relatime - ext4 /dev/sdc1 ro
"""
PASSWD = """\
root:x:0:0:root:/root:/bin/bash
kimiko:x:1000:1000::/home/kimiko:/bin/bash
kimi:x:1001:100::/home/kimi:/bin/zsh
"""


def test_options_links_and_the_disk_of_the_weights(tmp_path: Path) -> None:
    machine = tree(tmp_path, {"/proc/self/mountinfo": MOUNTS, "/data/srv/x": ""})
    (tmp_path / "srv").symlink_to(tmp_path / "data" / "srv")
    (tmp_path / "data" / "srv" / "kimi").mkdir()
    rows = {row["mount"]: row for row in system.list_filesystems(machine)}
    assert rows["/"]["options"] == []
    assert rows["/data"]["options"] == ["nodev", "noexec", "nosuid"]
    assert rows["/data"]["linked"] == {
        name: f"/data{name}"
        for name in ("/srv", "/srv/kimi", "/srv/kimi/engines", "/srv/kimi/models")
    }


def test_a_mount_of_the_weights_alone_is_seen_and_so_is_a_read_only_file_system(
    tmp_path: Path,
) -> None:
    machine = tree(tmp_path, {"/proc/self/mountinfo": MOUNTS, "/srv/kimi/models/x": ""})
    rows = {row["mount"]: row for row in system.list_filesystems(machine)}
    assert rows["/srv/kimi/models"]["holds"] == ["/srv/kimi/models"]
    assert rows["/srv/kimi/models"]["options"] == ["ro"]
    assert "/srv/kimi/engines" in rows["/"]["holds"]


def test_an_account_is_found_by_its_whole_name_with_what_it_runs(tmp_path: Path) -> None:
    status = "Name:\t{}\nState:\tS\nUid:\t{}\t1001\t1001\t1001\n"
    machine = tree(
        tmp_path,
        {
            "/etc/passwd": PASSWD,
            "/etc/group": "kimiko:x:1000:\nkimi-proxy:x:120:\n",
            "/proc/10/status": status.format("tmux: server", 1001),
            "/proc/10/cgroup": "0::/user.slice/user-1001.slice/session-1.scope\n",
            "/proc/11/status": status.format("python3", 1001),
            "/proc/11/cgroup": "0::/system.slice/kimi-serve@0.service\n",
            "/proc/12/status": status.format("sshd", 0),
            "/proc/12/cgroup": "0::/system.slice/ssh.service\n",
        },
    )
    assert accounts.list_accounts(machine) == {
        "kimi": {
            "uid": 1001,
            "gid": 100,
            "home": "/home/kimi",
            "shell": "/bin/zsh",
            "processes": ["tmux: server"],
        },
        "kimi-proxy": None,
        "kimi-web": None,
        "kimi-acme": None,
    }
    assert accounts.list_groups(machine) == {
        **dict.fromkeys(["kimi", "kimi-web", "kimi-acme"]),
        "kimi-proxy": 120,
    }


def test_the_running_machine_is_asked_as_its_libraries_are() -> None:
    """Not /etc/passwd: an account may come from a directory of the site."""
    told = accounts.list_accounts(Machine())
    assert {name for name, row in told.items() if row} == {
        row.pw_name for row in pwd.getpwall() if row.pw_name in accounts.NAMES
    }
