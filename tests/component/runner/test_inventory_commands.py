"""Inventories as Ansible's own reader takes them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from locales import latin

from kimi_prov.errors import ExitCode, UserError
from kimi_prov.lab import inventory as labs
from kimi_prov.packaging import resources
from kimi_prov.runner import connection, inventory


def refused(path):
    with pytest.raises(UserError) as error:
        inventory.load_inventory(path)
    assert error.value.exit_code is ExitCode.BAD_INPUT
    assert error.value.fix
    return error.value.message


def test_hosts_are_found_through_child_groups(tmp_path):
    path = tmp_path / "hosts.yml"
    path.write_text(
        "kimi: {children: {gpu: {hosts: {a: {ansible_host: 192.0.2.1}}}, cpu: {hosts: {b: {}}}}}\n"
        "kimi_outsiders: {hosts: {c: {}}}\n"
    )
    found = inventory.load_inventory(path)
    assert sorted(found.hosts) == ["a", "b"]
    assert (found.address("a"), found.address("b")) == ("192.0.2.1", "b")
    assert {"c", "gpu", "all"} <= found.names


def test_a_file_s_name_is_read_whatever_the_locale_here_is(tmp_path):
    """On a control machine with de_DE.ISO-8859-1 the bytes are UTF-8 all the same."""
    path = tmp_path / "hosts.yml"
    path.write_bytes("kimi: {hosts: {a: {kimi_ca_bundle: öffentlich.pem}}}\n".encode())
    script = (
        "import pathlib, sys; from kimi_prov.runner import connection, inventory; "
        "found = inventory.load_inventory(pathlib.Path(sys.argv[1])); "
        "print(ascii(found.hosts['a']['kimi_ca_bundle']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        env={**os.environ, **latin(tmp_path / "locales")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "'\\xf6ffentlich.pem'\n"


def test_what_only_ansible_can_judge_is_told_in_one_sentence(tmp_path):
    path = tmp_path / "hosts.yml"
    path.write_text("kimi: {hosts: [a]}\n")
    message = refused(path)
    assert 'Invalid "hosts" entry for "kimi" group' in message
    assert "\n" not in message


def test_the_group_kimi_is_wanted_and_wants_hosts(tmp_path):
    path = tmp_path / "hosts.yml"
    path.write_text("all: {hosts: {a: {}}}\n")
    assert "no group kimi" in refused(path)
    path.write_text("kimi: {}\nall: {hosts: {a: {}}}\n")
    assert "kimi" in refused(path)


KEY = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIA==\n-----END PRIVATE KEY-----\n"
STOLEN = '{"kimi": {"hosts": {"stolen": {}}}}'


def documented(folder):
    """An inventory's folder with all that the docs put beside its hosts; gives what to ignore."""
    (folder / "hosts.yml").write_text("kimi:\n  hosts:\n    a: {lab_kind: nspawn}\n")
    (folder / "group_vars").mkdir()
    (folder / "group_vars" / "kimi.yml").write_text("kimi_model: kimi-k2.5\n")
    for name in ("certs", "manifests", "secrets"):
        (folder / name).mkdir()
    (folder / "certs" / "server.pem").write_text(KEY.replace("PRIVATE KEY", "CERTIFICATE"))
    (folder / "certs" / "server.key").write_text(KEY)
    (folder / "secrets" / "api-keys").write_text("ops:sk-kimi-canary\n")
    (folder / "secrets" / "binary.yml").write_bytes(b"\xff\xfe\x00")
    (folder / "report.html").write_text("<!doctype html>\n<title>report</title>\n")
    (folder / "server.key").write_text(KEY)


def beside(folder):
    """What an operator may put there under names that no configuration can know."""
    (folder / "our-ca").mkdir()
    (folder / "our-ca" / "root").write_text(KEY)
    (folder / "quotes").mkdir()
    (folder / "quotes" / "vendor.json").write_text(STOLEN)
    (folder / "vendor.json").write_text(STOLEN[:-1] + ', "schema": "kimi-prov/facts/v1"}')
    (folder / "deploy_key").write_text(KEY)
    os.mkfifo(folder / "pipe")
    # Of a group's own folder Ansible reads YAML and JSON alone.
    (folder / "group_vars" / "all").mkdir()
    (folder / "group_vars" / "all" / "README.md").write_text("# Who: [changed this, and why\n")
    (folder / "group_vars" / "all" / "port.yml").write_text("kimi_port: 9000\n")


def test_what_lies_beside_the_hosts_is_not_read_as_hosts(tmp_path):
    documented(tmp_path)
    beside(tmp_path)
    found = inventory.load_inventory(tmp_path)
    assert set(found.hosts) == {"a"}
    assert found.hosts["a"]["kimi_model"] == "kimi-k2.5"
    assert found.hosts["a"]["kimi_port"] == 9000
    assert found.names == {"a", "all", "kimi"}
    assert found.sources == (tmp_path / "hosts.yml",)


def test_a_playbook_reads_no_more_of_a_folder(tmp_path, play):
    folder = tmp_path / "inv"
    folder.mkdir()
    documented(folder)
    beside(folder)
    local = "kimi: {hosts: {a: {}}, vars: {ansible_connection: local}}\n"
    (folder / "hosts.yml").write_text(local)
    ask = f"""
- assert:
    that:
      - kimi_model == 'kimi-k2.5' and kimi_port == 9000
      - groups.all == ['a']
      - inventory_dir == '{folder}'
"""
    finished, shown = play(ask, inventory=folder)
    assert finished.outcome.exit_code() is ExitCode.OK, shown


def test_the_lab_reads_no_more_of_a_folder(tmp_path):
    documented(tmp_path)
    beside(tmp_path)
    with pytest.raises(UserError, match="host a: lab_address"):
        labs.load_lab(tmp_path)


def test_plain_ansible_reads_no_more_of_a_documented_folder(tmp_path):
    documented(tmp_path)
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible-inventory"), "-i", tmp_path, "--list"],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ
        | {"ANSIBLE_CONFIG": str(resources.find_ansible_config()), "LC_ALL": "C.UTF-8"},
    )
    assert set(json.loads(done.stdout)["_meta"]["hostvars"]) == {"a"}
    assert "WARNING" not in done.stderr


def write_program(path, mark):
    path.write_text(
        f'#!/bin/sh\ntouch "{mark}"\necho \'{{"kimi": {{"hosts": ["of-program"], '
        f'"vars": {{"ansible_connection": "local"}}}}}}\'\n'
    )
    path.chmod(0o755)


def test_a_program_that_is_named_itself_still_gives_its_hosts(tmp_path, play):
    write_program(tmp_path / "cloud_hosts", tmp_path / "ran")
    found = inventory.load_inventory(tmp_path / "cloud_hosts")
    assert set(found.hosts) == {"of-program"}
    ask = "- assert: {that: \"groups.all == ['of-program']\"}\n"
    login = connection.Connection()
    finished, shown = play(ask, inventory=tmp_path / "cloud_hosts", connection=login)
    assert finished.outcome.exit_code() is ExitCode.OK, shown


def test_plain_ansible_runs_no_program_of_a_folder(tmp_path):
    """With the ansible.cfg of the checkout; `.sh` is not even read."""
    folder = tmp_path / "inv"
    folder.mkdir()
    (folder / "hosts.yml").write_text("kimi: {hosts: {a: {}}}\n")
    for name in ("cloud_hosts", "launch.sh"):
        write_program(folder / name, tmp_path / f"ran-{name}")
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible-inventory"), "-i", folder, "--list"],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ
        | {"ANSIBLE_CONFIG": str(resources.find_ansible_config()), "LC_ALL": "C.UTF-8"},
    )
    assert not list(tmp_path.glob("ran-*"))
    assert "cloud_hosts" in done.stderr
    assert "launch.sh" not in done.stderr


def test_a_limit_that_fits_nothing_names_a_few_hosts(tmp_path):
    (tmp_path / "hosts").write_text("[kimi]\nnode[1:2000]\n")
    with pytest.raises(UserError) as refused:
        inventory.check_limit(inventory.load_inventory(tmp_path), "elsewhere")
    assert len(refused.value.fix) < 200
