"""The plan of a live machine: it changes nothing, and converging does not change it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from machines import CHECKOUT, LISTING, kimi_prov, run

from kimi_prov.ansible.switching import MOMENTARY
from kimi_prov.contract import unit_comparison

if TYPE_CHECKING:
    from machines import Host

pytestmark = pytest.mark.lab


def planned(host: Host, *args: str) -> dict:
    """The plan of `host`, through plain Ansible and the JSON of its result."""
    playbook = Path(sys.executable).parent / "ansible-playbook"
    source = CHECKOUT / "playbooks" / "plan.yml"
    done = run(
        str(playbook),
        "-i",
        str(host.inventory),
        str(source),
        "--limit",
        host.name,
        *args,
        cwd=CHECKOUT,
        env={"ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default", "ANSIBLE_VERBOSITY": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    line = next(line for line in done.stdout.splitlines() if '"kimi_document"' in line)
    document: dict = json.loads(line[line.index("{") :])["kimi_document"]
    return document


def test_probing_leaves_the_file_system_as_it_was(virgin_host: Host) -> None:
    planned(virgin_host)
    before = virgin_host.ssh(LISTING)
    planned(virgin_host)
    assert virgin_host.ssh(LISTING) == before


def test_the_plan_on_the_machine_is_the_plan_that_is_made_again(served_host: Host) -> None:
    kept = json.loads(served_host.ssh("cat /etc/kimi/plan.json"))
    again = planned(served_host)
    # What holds for the moment of an apply alone is not kept.
    for name in MOMENTARY:
        del again[name]
    assert again == kept


def printed(host: Host) -> dict:
    """The plan of `host` as `kimi-prov plan` prints it."""
    done = kimi_prov("plan", host.inventory, "--format", "json")
    assert done.returncode in (0, 3), done.stderr
    document: dict = json.loads(done.stdout)["hosts"][host.name]
    return document


def carried_out(host: Host, instance: dict) -> dict:
    """What the machine says of the process of one instance, in the words of the plan."""
    unit = f"kimi-serve@{instance['index']}"
    pid = host.ssh(f"systemctl show -p MainPID --value {unit}").strip()
    words = host.ssh(f"tr '\\0' '\\n' < /proc/{pid}/cmdline").splitlines()
    told = host.ssh(f"tr '\\0' '\\n' < /proc/{pid}/environ").splitlines()
    env = dict(line.split("=", 1) for line in told if "=" in line)
    line = host.ssh(f"systemctl cat {unit} | grep ^ExecStart=").strip().split("=", 1)[1]
    cpus = host.ssh(f"grep Cpus_allowed_list /proc/{pid}/status").split()[1]
    return {
        "argv": words,
        "env": {name: env.get(name) for name in instance["env"]},
        "numactl": line.split()[: len(instance["numactl"])],
        "cpus": cpus,
    }


@pytest.mark.parametrize("door", ["kimi-prov apply", "ansible-playbook"])
def test_what_runs_is_what_plan_prints(served_host: Host, door: str) -> None:
    """Both doors, and then the machine itself is asked, not what was written for it."""
    if door == "ansible-playbook":
        done = served_host.playbook()
        assert done.returncode == 0, done.stdout + done.stderr
    plan = printed(served_host)
    for instance in plan["instances"]:
        runs = carried_out(served_host, instance)
        # Behind the machine key, and else as planned.
        assert runs["argv"] == unit_comparison.build_gated_command(
            instance["argv"], plan["paths"]["zipapp"]
        )
        # The environment of the plan itself, not the link that a later one may move.
        assert runs["argv"][0] == f"{plan['engine']['env_dir']}/bin/python"
        assert runs["env"] == instance["env"]
        assert runs["numactl"] == instance["numactl"]
        if not instance["numactl"] and instance["cpus"]:
            assert runs["cpus"] == instance["cpus"]
    ram = plan["ram_disk"]
    mounted = served_host.ssh(f"findmnt -bno SIZE {ram['path']}; true").strip()
    assert (int(mounted) if mounted else 0) == (ram["size_bytes"] if ram["enabled"] else 0)
    proxy = served_host.ssh("cat /etc/kimi/proxy/haproxy.cfg")
    assert f":{plan['proxy']['port']}" in proxy
    assert all(f"127.0.0.1:{row['port']}" in proxy for row in plan["proxy"]["backends"])
    ruled = served_host.ssh("nft list table inet kimi")
    assert f"tcp dport {plan['firewall']['port']}" in ruled
    allowed = plan["firewall"]["ipv4"] + plan["firewall"]["ipv6"]
    # nft leaves out the length of a network of one address.
    assert all(network.removesuffix("/32").removesuffix("/128") in ruled for network in allowed)
