from pathlib import Path

import pytest

from kimi_prov.errors import ExitCode, UserError
from kimi_prov.lab import inventory

FOLDER = Path("/srv/inv")
NODE = {"lab_kind": "nspawn", "lab_address": "10.93.7.11"}


def document(**hosts):
    return {"_meta": {"hostvars": hosts}}


def test_a_host_needs_no_more_than_kind_and_address():
    lab = inventory.parse_lab(FOLDER, document(node1=NODE, elsewhere={"ansible_host": "x"}))
    (host,) = lab.hosts
    assert (host.name, host.kind, host.image, host.port) == ("node1", "nspawn", "debian-12", 22)
    assert (str(lab.network), lab.gateway) == ("10.93.7.0/24", "10.93.7.1")


def test_qemu_hosts_answer_ssh_at_a_port_that_needs_no_root():
    lab = inventory.parse_lab(FOLDER, document(q={**NODE, "lab_kind": "qemu"}))
    assert lab.host("q").port == 2222


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("lab_kind", "docker", "nspawn or qemu"),
        ("lab_image", "alpine", "debian-12 or debian-13"),
        ("lab_address", "10.93.7", "IPv4 address"),
        ("lab_address", None, "IPv4 address"),
        ("lab_memory_mb", "8 GB", "whole number of MiB"),
        ("lab_memory_mb", 64, "at least 512"),
        ("lab_ssh_port", 70000, "port number"),
        ("lab_forward_ports", 8000, "list of port numbers"),
        ("lab_gpus", "0,1", "all, or numbers of cards such as [0], on a host"),
        ("lab_gpus", True, "all, or numbers of cards such as [0], on a host"),
        ("lab_packages", "munge", "list of names of Debian packages"),
        ("lab_packages", ["munge --yes"], "list of names of Debian packages"),
        ("lab_shared", "/shared", "list of absolute paths"),
        ("lab_shared", ["shared"], "list of absolute paths"),
        ("lab_shared", ["/a/../b"], "list of absolute paths"),
        ("lab_shared", ["/a:/b"], "list of absolute paths"),
        ("lab_files", [{"src": "x"}], "{src: PATH"),
        ("lab_files", [{"src": "x", "dest": "relative"}], "/ABSOLUTE/PATH"),
    ],
)
def test_a_wrong_value_is_refused_with_its_host_and_key(key, value, expected):
    with pytest.raises(UserError) as refused:
        inventory.parse_lab(FOLDER, document(node1={**NODE, key: value}))
    assert refused.value.exit_code == ExitCode.BAD_INPUT
    assert f"host node1: {key} is {value!r}" in refused.value.message
    assert expected in refused.value.message


def test_gpus_are_given_to_nspawn_hosts_alone():
    with pytest.raises(UserError, match=r"host q: lab_gpus is 'all', expected .* lab_kind: nspawn"):
        inventory.parse_lab(FOLDER, document(q={**NODE, "lab_kind": "qemu", "lab_gpus": "all"}))


def test_an_emulated_host_shares_no_folder():
    host = {**NODE, "lab_kind": "qemu", "lab_shared": ["/shared"]}
    with pytest.raises(UserError, match=r"host q: lab_shared .* lab_kind: nspawn"):
        inventory.parse_lab(FOLDER, document(q=host))


@pytest.mark.parametrize("address", ["10.93.7.1", "10.93.7.0", "10.93.7.255", "10.93.8.2"])
def test_an_address_that_is_not_free_in_the_network_is_refused(address):
    host = {**NODE, "lab_address": address, "lab_network": "10.93.7.0/24"}
    with pytest.raises(UserError, match=r"is not a free address of lab_network 10\.93\.7\.0/24"):
        inventory.parse_lab(FOLDER, document(node1=host))


def test_two_hosts_cannot_share_an_address():
    with pytest.raises(UserError, match=r"hosts a and b both have lab_address 10\.93\.7\.11"):
        inventory.parse_lab(FOLDER, document(a=NODE, b=NODE))


def test_an_inventory_without_lab_hosts_says_what_makes_one():
    with pytest.raises(UserError, match="lab_kind") as refused:
        inventory.parse_lab(FOLDER, document(node1={}))
    assert "lab_kind: nspawn" in (refused.value.fix or "")


def test_a_file_is_no_place_for_a_lab(tmp_path):
    hosts = tmp_path / "hosts.yml"
    hosts.write_text("kimi: {}\n")
    with pytest.raises(UserError, match="inventory folder") as refused:
        inventory.load_lab(hosts)
    assert f"cp {hosts} DIR/hosts.yml" in (refused.value.fix or "")


def test_a_missing_inventory_is_named(tmp_path):
    with pytest.raises(UserError, match="no such inventory"):
        inventory.load_lab(tmp_path / "none")


def test_each_path_has_a_lab_of_its_own(tmp_path):
    one, other = tmp_path / "a" / "lab", tmp_path / "b" / "lab"
    assert inventory.identify_lab(one) != inventory.identify_lab(other)
    assert inventory.identify_lab(one) == inventory.identify_lab(
        tmp_path / "a" / ".." / "a" / "lab"
    )


@pytest.mark.parametrize(
    ("v4", "v6"),
    [("10.93.0.11", "fd6b:6d00:a5d::b"), ("10.93.101.12", "fd6b:6d00:a5d:65::c")],
)
def test_the_ipv6_address_follows_from_the_other(v4, v6):
    assert inventory.derive_ipv6(v4) == v6


def test_a_lab_on_record_is_the_lab_that_was_brought_up():
    files = [{"src": "model:kimi-k2-lab", "dest": "/opt/m"}]
    host = {**NODE, "lab_kind": "qemu", "lab_forward_ports": [8000], "lab_files": files}
    host["lab_kernel_arguments"] = "systemd.unified_cgroup_hierarchy=0"
    lab = inventory.parse_lab(FOLDER, document(node1=host))
    assert inventory.restore_lab(inventory.dump_lab(lab)) == lab
    host = {**NODE, "lab_packages": ["munge"], "lab_shared": ["/shared"]}
    lab = inventory.parse_lab(FOLDER, document(node1=host))
    assert (lab.host("node1").packages, lab.host("node1").shared) == (("munge",), ("/shared",))
    assert inventory.restore_lab(inventory.dump_lab(lab)) == lab
