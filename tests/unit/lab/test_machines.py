import dataclasses
import ipaddress
from pathlib import Path

import pytest
import yaml

from kimi_prov.errors import UserError
from kimi_prov.lab import files, generated, images, keys, network, nspawn, qemu
from kimi_prov.lab.inventory import Lab, LabFile, LabHost
from kimi_prov.lab.machine import Machine, has_booted
from kimi_prov.lab.settings import AptSettings
from kimi_prov.lab.state import HostState, LabState

NODE = LabHost("node1", "nspawn", "debian-12", "10.93.7.11", 22, 4096)
GUEST = LabHost("q1", "qemu", "debian-12", "10.93.7.21", 2222, 6144, (8000, 9000))
LAB = Lab(
    Path("/srv/inv"),
    "inv-12ab34cd",
    "12ab34cd",
    ipaddress.IPv4Network("10.93.7.0/24"),
    (NODE, GUEST),
)


def pairs(command, flag):
    return [command[i + 1] for i, word in enumerate(command) if word == flag]


def test_a_guest_has_two_sockets_and_half_of_its_memory_on_each_of_two_nodes(tmp_path):
    command = qemu.make_command(LAB, GUEST, tmp_path, HostState(tmp_path), 2222, kvm=False)
    assert pairs(command, "-smp") == ["4,sockets=2,cores=2,threads=1"]
    assert pairs(command, "-m") == ["6144"]
    assert pairs(command, "-object") == [
        "memory-backend-ram,id=ram0,size=3072M",
        "memory-backend-ram,id=ram1,size=3072M",
    ]
    assert pairs(command, "-numa")[:2] == [
        "node,nodeid=0,cpus=0-1,memdev=ram0",
        "node,nodeid=1,cpus=2-3,memdev=ram1",
    ]
    assert pairs(command, "-accel") == ["tcg,thread=multi"]
    assert pairs(command, "-cpu") == ["max"]


def test_a_guest_is_reached_at_a_loopback_address_of_its_own(tmp_path):
    command = qemu.make_command(LAB, GUEST, tmp_path, HostState(tmp_path), 2222, kvm=True)
    (user, wire) = pairs(command, "-netdev")
    assert user == (
        "user,id=up,ipv6=off,hostfwd=tcp:127.93.7.21:2222-:22"
        ",hostfwd=tcp:127.93.7.21:8000-:8000,hostfwd=tcp:127.93.7.21:9000-:9000"
    )
    assert wire.startswith("socket,id=lab,mcast=230.93.0.1:")
    assert pairs(command, "-accel") == ["kvm"]


def test_an_nspawn_host_holds_its_namespaces_by_its_own_process(tmp_path):
    command = nspawn.make_command(LAB, NODE, Path("/images/x"), HostState(tmp_path))
    assert command[:9] == [
        *("unshare", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork"),
        *("--kill-child=SIGKILL", "--mount-proc"),
    ]
    assert command[-4:] == ["kimi-lab-12ab34cd/node1", "/images/x/root", str(tmp_path), "node1"]
    stage_two = command[-5]
    assert "SYSTEMD_NSPAWN_API_VFS_WRITABLE=network" in stage_two
    for flag in (
        "--boot",
        "--register=no",
        "--keep-unit",
        "--capability=CAP_NET_ADMIN,CAP_NET_RAW",
    ):
        assert f" {flag} " in stage_two


def test_hosts_that_share_a_folder_are_bound_to_the_same_one(tmp_path):
    state = HostState(tmp_path)
    bound = []
    for name in ("node1", "node2"):
        host = dataclasses.replace(NODE, name=name, shared=("/shared", "/srv/home"))
        command = nspawn.make_command(LAB, host, Path("/images/x"), state)
        bound.append([word for word in command if word.startswith("--bind=")])
    folder = LabState.from_lab(LAB).folder / "shared"
    assert bound[0] == bound[1]
    assert bound[0] == [
        f"--bind={folder}/%2Fshared:/shared",
        f"--bind={folder}/%2Fsrv%2Fhome:/srv/home",
    ]


def test_a_host_that_fell_back_to_qemu_says_where_it_answers_and_what_it_sees_of_us():
    fallen = Machine(LAB, NODE, "qemu")
    assert generated.make_host_variables(fallen) == {
        "ansible_host": "127.93.7.11",
        "ansible_port": 2222,
        "lab_gateway": "10.0.2.2",
        "lab_address6": "fd6b:6d00:a5d:7::b",
        "lab_runs_as": "qemu",
    }
    assert generated.make_host_variables(Machine(LAB, NODE, "nspawn")) == {
        "ansible_host": "10.93.7.11",
        "ansible_port": 22,
        "lab_gateway": "10.93.7.1",
        "lab_address6": "fd6b:6d00:a5d:7::b",
        "lab_runs_as": "nspawn",
    }


def test_interface_names_fit_the_kernel_and_differ():
    names = {
        network.name_bridge(LAB),
        network.name_cable(LAB, "node1"),
        network.name_cable(LAB, "q1"),
    }
    assert len(names) == 3
    assert all(len(name) <= 15 for name in names)


def test_the_ruleset_replaces_its_own_table_and_no_other():
    rules = network.make_ruleset(LAB, {"ip_forward": 0})
    assert rules.startswith("table ip kimi_lab_12ab34cd { }\ndelete table ip kimi_lab_12ab34cd\n")
    assert "flush" not in rules
    assert "ip saddr 10.93.7.0/24 ip daddr != 10.93.7.0/24 masquerade" in rules
    assert "chain ip_forward_was_0 { }" in rules
    assert "_was_" not in network.make_ruleset(LAB, {})


def test_the_generated_files_keep_host_key_checking_on(tmp_path):
    lab = Lab(tmp_path, LAB.name, LAB.ident, LAB.network, LAB.hosts)
    state = LabState(tmp_path / "state")
    planned = generated.plan_files(
        lab, state, [Machine(lab, NODE, "nspawn")], {"kimi_ca_bundle": "/ca.pem"}
    )
    group = yaml.safe_load(planned[tmp_path / "group_vars" / "all" / "lab.yml"])
    assert "StrictHostKeyChecking=yes" in group["ansible_ssh_common_args"]
    assert f"UserKnownHostsFile={state.known_hosts}" in group["ansible_ssh_common_args"]
    assert group["kimi_ca_bundle"] == "/ca.pem"


def test_generated_files_go_and_the_users_own_stay(tmp_path):
    lab = Lab(tmp_path, LAB.name, LAB.ident, LAB.network, LAB.hosts)
    state = LabState(tmp_path / "state")
    own = tmp_path / "group_vars" / "all" / "main.yml"
    own.parent.mkdir(parents=True)
    own.write_text("kimi_port: 8000\n")
    planned = generated.plan_files(lab, state, [Machine(lab, NODE, "nspawn")], {})
    generated.write_files(planned)
    assert all(path.exists() for path in planned)
    generated.remove_files(tmp_path)
    assert not any(path.exists() for path in planned)
    assert own.exists()
    assert not (tmp_path / "host_vars").exists()


def test_a_variables_file_that_would_be_shadowed_is_refused(tmp_path):
    lab = Lab(tmp_path, LAB.name, LAB.ident, LAB.network, LAB.hosts)
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "all.yml").write_text("kimi_port: 8000\n")
    with pytest.raises(UserError, match=r"all\.yml: the lab writes") as refused:
        generated.plan_files(lab, LabState(tmp_path / "s"), [], {})
    assert "mv " in (refused.value.fix or "")


def test_an_image_is_known_by_all_that_it_is_made_of():
    plain = images.make_recipe("debian-12", with_kernel=False, apt=AptSettings())
    again = images.make_recipe("debian-12", with_kernel=False, apt=AptSettings())
    mirror = images.make_recipe(
        "debian-12", with_kernel=False, apt=AptSettings(mirror="http://m/debian")
    )
    kernel = images.make_recipe("debian-12", with_kernel=True, apt=AptSettings())
    newer = images.make_recipe("debian-13", with_kernel=False, apt=AptSettings())
    more = images.make_recipe(
        "debian-12", with_kernel=False, apt=AptSettings(), packages=("munge", "slurmd")
    )
    turned = images.make_recipe(
        "debian-12", with_kernel=False, apt=AptSettings(), packages=("slurmd", "munge")
    )
    assert plain.key == again.key
    assert more.key == turned.key
    assert len({plain.key, mirror.key, kernel.key, newer.key, more.key}) == 5
    assert {"munge", "slurmd"} == set(more.packages) - set(plain.packages)
    assert "linux-image-amd64" not in plain.packages
    assert not {"numactl", "haproxy", "nftables", "python3-venv"} & set(kernel.packages)
    assert images.make_bootstrap_command(newer, Path("/x"))[-2:] == ["trixie", "/x"]
    assert images.make_bootstrap_command(mirror, Path("/x"))[-2:] == [
        "deb http://m/debian bookworm main",
        "deb http://m/debian bookworm-updates main",
    ]


def test_a_host_on_an_odd_port_is_named_as_ssh_wants_it():
    assert keys.format_known_hosts_line("127.93.7.21", 2222, "ssh-ed25519 AAAA c\n") == (
        "[127.93.7.21]:2222 ssh-ed25519 AAAA\n"
    )
    assert keys.format_known_hosts_line("10.93.7.11", 22, "ssh-ed25519 AAAA").startswith(
        "10.93.7.11 "
    )


def test_a_missing_lab_file_is_named_with_its_host(tmp_path):
    host = LabHost(
        "node1", "nspawn", "debian-12", "10.93.7.11", 22, 4096, files=(LabFile("nothing", "/x"),)
    )
    lab = Lab(tmp_path, LAB.name, LAB.ident, LAB.network, (host,))
    with pytest.raises(UserError, match=r"host node1: lab_files: .*nothing does not exist"):
        files.resolve_all(lab)


def test_a_changed_file_is_due_for_a_copy(tmp_path):
    (tmp_path / "a").write_text("x")
    before = files.compute_fingerprint(tmp_path)
    assert files.compute_fingerprint(tmp_path) == before
    (tmp_path / "a").write_text("xy")
    assert files.compute_fingerprint(tmp_path) != before


@pytest.mark.parametrize(
    ("said", "is_booted"),
    [
        ("running\nNo jobs running.", True),
        ("degraded", True),
        ("", False),
        ("starting", False),
        ("starting\n 4 ssh.service start running\n 9 kimi-serve@0.service start running", False),
        ("starting\n 4 kimi-serve@0.service start waiting", False),
        ("starting\n9 kimi-serve@0.service start running\n2 multi-user.target start waiting", True),
    ],
)
def test_an_engine_that_starts_is_not_waited_for(said: str, is_booted: bool):
    assert has_booted(said) is is_booted
