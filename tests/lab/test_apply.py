"""The main job, whole: a bare machine becomes a served model, again and again the same."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from machines import (
    ANSIBLE_PLAYBOOK,
    CHECKOUT,
    KIMI_PROV,
    kill_tree_when,
    kimi_prov,
    newest_run,
    picture,
)
from waiting import HANGS_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from machines import Host

pytestmark = pytest.mark.lab

# What an apply of a converged host may cost. More is a task that looks for itself at what the facts
# tell, or a module where none is needed.
MOST_TASKS = 15
MOST_ROUND_TRIPS = 20


def apply_changed(host: Host, *args: str) -> int:
    """Number of tasks that an apply changed on a host."""
    done = host.apply(*args)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((newest_run(host.inventory) / "result.json").read_text())
    return int(result["hosts"][host.name]["changed"])


def playbook_changed(host: Host, *args: str) -> int:
    """The same of plain Ansible, from its recap."""
    done = host.playbook(*args)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(rf"^{host.name}\s+:.*\bchanged=(\d+)", done.stdout, re.MULTILINE)
    assert found, f"no recap for {host.name} in:\n{done.stdout[-3000:]}"
    return int(found.group(1))


def still(shot: dict[str, object]) -> dict[str, object]:
    """A picture without what moves by itself or differs from one first apply to the next."""
    files = dict(shot["files"])  # type: ignore[call-overload]
    for path in list(files):
        private = ("/etc/kimi/keys/", "/etc/kimi/proxy/", "/etc/kimi/machine-key.map")
        private += ("/srv/kimi/cache/", "/root/")
        # What happened to each: when, and what a cut apply had left.
        private += ("/var/lib/kimi/state/history/", "/var/lib/kimi/state/applied.json")
        # What keys used, and when.
        private += ("/var/lib/kimi/usage/",)
        # uv notes there when a wheel from a directory was made.
        if path.startswith(private) or "__pycache__" in path or ".dist-info/" in path:
            files.pop(path)
        elif path.endswith((".complete", ".kimi-verified", "before.json", "/plan.json")):
            files[path] = files[path].rsplit(" ", 1)[0]
    for path in [*files]:
        if path.startswith(("/etc/ssh/", "/etc/machine-id", "/etc/hostname", "/etc/hosts")):
            files.pop(path)
    return {**shot, "files": files}


def nameless_plan(host: Host) -> str:
    """The plan that a host carries out, without what tells it from another host."""
    text = host.ssh("cat /etc/kimi/plan.json")
    return text.replace(host.address, "ADDRESS").replace(host.name, "NAME")


def test_check_mode_on_a_virgin_host_works_and_changes_nothing(virgin_host: Host) -> None:
    before = picture(virgin_host)
    done = virgin_host.apply("--check", "--diff")
    assert done.returncode == 0, done.stdout + done.stderr
    assert picture(virgin_host) == before


def test_a_second_apply_changes_nothing(served_host: Host) -> None:
    assert apply_changed(served_host) == 0


def test_an_apply_with_nothing_to_do_asks_the_machine_little(
    served_host: Host, tmp_path: Path
) -> None:
    asked = tmp_path / "asked"
    ssh = tmp_path / "ssh"
    ssh.write_text(f'#!/bin/sh\necho asked >>{asked}\nexec ssh "$@"\n')
    ssh.chmod(0o755)
    done = kimi_prov(
        "apply",
        *(served_host.inventory, "--limit", served_host.name),
        env={"ANSIBLE_SSH_EXECUTABLE": str(ssh)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    kept = newest_run(served_host.inventory)
    result = json.loads((kept / "result.json").read_text())
    assert result["hosts"][served_host.name]["changed"] == 0
    ran = sum(row["tasks"] for row in json.loads((kept / "timings.json").read_text())["phases"])
    assert ran <= MOST_TASKS
    assert len(asked.read_text().splitlines()) <= MOST_ROUND_TRIPS


def test_what_was_changed_by_hand_is_restored(served_host: Host) -> None:
    spoiled = {
        "/etc/kimi/proxy/haproxy.cfg": "chmod 0600",
        "/etc/systemd/system/kimi-proxy.service": "sed -i /Description/d",
        "/etc/systemd/system/nftables.service.d/kimi-firewall.conf": "rm",
        "/etc/kimi/firewall.nft": "chown kimi",
        "/etc/kimi/plan.json": "chmod 0600",
        "/etc/tmpfiles.d/kimi.conf": "truncate -s 0",
    }
    listing = f"stat -c '%n %a %U %G' {' '.join(spoiled)} && sha256sum {' '.join(spoiled)}"
    before = served_host.ssh(listing)
    served_host.ssh("; ".join(f"{command} {path}" for path, command in spoiled.items()))
    served_host.ssh("rmdir /etc/systemd/system/nftables.service.d")
    assert apply_changed(served_host, "--check", "--diff") > 0
    assert apply_changed(served_host, "--tags", "firewall") > 0
    assert apply_changed(served_host) > 0
    assert served_host.ssh(listing) == before
    assert apply_changed(served_host) == 0


def test_plain_ansible_after_kimi_prov_changes_nothing(served_host: Host) -> None:
    assert playbook_changed(served_host) == 0


def test_check_mode_on_a_converged_host_reports_no_change(served_host: Host) -> None:
    assert apply_changed(served_host, "--check") == 0


def test_the_served_model_passes_verify(served_host: Host) -> None:
    done = kimi_prov("verify", served_host.inventory, "--limit", served_host.name)
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def standing(argv: list[str], says: str, cwd: Path | None = None) -> Iterator[int]:
    """Start a command, keep it where it `says` this for as long as the block lasts; its pid."""
    with subprocess.Popen(
        argv,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if says in line:
                break
        assert says in said, said
        os.kill(process.pid, signal.SIGSTOP)
        try:
            yield process.pid
        finally:
            os.kill(process.pid, signal.SIGCONT)
            said += process.communicate(timeout=HANGS_S)[0]
    assert process.returncode == 0, said


def test_two_applies_at_once_the_second_names_the_holder(served_host: Host) -> None:
    argv = [KIMI_PROV, "apply", str(served_host.inventory), "--limit", served_host.name]
    with standing(argv, "preflight") as first:
        second = served_host.apply()
    assert second.returncode == 3, second.stdout + second.stderr
    assert str(first) in second.stderr


def test_an_apply_beside_a_plain_playbook_is_refused_by_the_machine(served_host: Host) -> None:
    site = CHECKOUT / "playbooks" / "site.yml"
    argv = [ANSIBLE_PLAYBOOK, "-i", str(served_host.inventory), str(site)]
    with standing([*argv, "--limit", served_host.name], "preflight", CHECKOUT) as first:
        second = served_host.apply()
    assert second.returncode == 3, second.stdout + second.stderr
    assert str(first) in second.stderr


PHASES = ["host_base", "weights", "engine", "serve", "ready"]


@pytest.mark.slow
def test_killed_at_five_phases_it_still_converges(cut_host: Host, served_host: Host) -> None:
    command = [KIMI_PROV, "apply", str(cut_host.inventory), "--limit", cut_host.name]
    for phase in PHASES:
        kill_tree_when(command, phase, delay=1.5)
    done = cut_host.apply()
    assert done.returncode == 0, done.stdout + done.stderr
    ours, theirs = still(picture(cut_host)), still(picture(served_host))
    ours_files, theirs_files = ours["files"], theirs["files"]
    assert isinstance(ours_files, dict)
    assert isinstance(theirs_files, dict)
    differing = {
        path: (ours_files.get(path), theirs_files.get(path))
        for path in ours_files.keys() | theirs_files.keys()
        if ours_files.get(path) != theirs_files.get(path) and "kimi" in path
    }
    assert differing == {}
    assert nameless_plan(cut_host) == nameless_plan(served_host)
    for part in ("units", "sysctls", "users"):
        assert ours[part] == theirs[part]
    assert apply_changed(cut_host) == 0
