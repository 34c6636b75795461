import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi_prov import inventory_files
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.lab import inventory as labs
from kimi_prov.packaging import resources
from kimi_prov.planner.settings import locate
from kimi_prov.runner import inventory


def refused(path):
    with pytest.raises(UserError) as error:
        inventory.load_inventory(path)
    assert error.value.exit_code is ExitCode.BAD_INPUT
    assert error.value.fix
    return error.value.message


def test_a_missing_one_is_named(tmp_path):
    assert "no such inventory" in refused(tmp_path / "nosuch")


def test_an_empty_folder_is_named(tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    assert "empty" in refused(folder)


@pytest.mark.parametrize(
    ("name", "text", "place", "expected"),
    [
        ("hosts.yml", "kimi:\n  hosts:\n\tx: {}\n", "hosts.yml:3", "not valid YAML"),
        ("hosts.yml", "- kimi\n", "hosts.yml:1", "found a list"),
        ("group_vars/kimi.yml", "a: b\nc: [1,\n", "group_vars/kimi.yml:3", "not valid YAML"),
        ("group_vars/kimi", "just words\n", "group_vars/kimi:1", "single value"),
        ("host_vars/a.yml", "kimi_model: 'open\n", "host_vars/a.yml:2", "not valid YAML"),
    ],
)
def test_a_broken_file_is_named_with_its_line(tmp_path, name, text, place, expected):
    (tmp_path / "hosts.yml").write_text("kimi: {hosts: {a: {}}}\n")
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    message = refused(tmp_path)
    assert f"{tmp_path / place}:" in message
    assert expected in message


def test_variables_beside_a_single_file_are_judged_too(tmp_path):
    (tmp_path / "hosts.yml").write_text("kimi: {hosts: {a: {}}}\n")
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "all.yml").write_text("x: {\n")
    assert "group_vars/all.yml" in refused(tmp_path / "hosts.yml")


def test_a_limit_that_names_nobody_is_refused_and_patterns_pass(tmp_path):
    found = inventory.Inventory(tmp_path, {"node1": {}}, frozenset({"node1", "kimi"}))
    for good in (None, "node1", "kimi", "node*", "kimi:!node1", "~node[0-9]"):
        inventory.check_limit(found, good)
    with pytest.raises(UserError, match="node2") as error:
        inventory.check_limit(found, "node1,node2")
    assert error.value.fix == "did you mean node1?"


def test_extra_variables_come_from_files(tmp_path):
    file = tmp_path / "vars.yml"
    file.write_text("kimi_port: 9000\n")
    assert inventory.find_vars_file(f"@{file}") == file
    for bad in ("kimi_port=9000", f"@{tmp_path}/nosuch"):
        with pytest.raises(UserError):
            inventory.find_vars_file(bad)
    file.write_text("a: [\n")
    with pytest.raises(UserError, match=r"vars\.yml:2"):
        inventory.find_vars_file(f"@{file}")


def test_a_vault_file_is_left_to_ansible(tmp_path):
    file = tmp_path / "secret.yml"
    file.write_text("$ANSIBLE_VAULT;1.1;AES256\n6162\n")
    inventory.check_yaml(file, variables=True)


def test_a_folder_whose_files_lie_deeper_has_no_hosts(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "hosts.yml").write_text("kimi: {hosts: {a: {}}}\n")
    assert "no file of hosts" in refused(tmp_path)
    with pytest.raises(UserError, match="no file of hosts"):
        labs.load_lab(tmp_path)


WHOLE = (
    "all:\n  vars: {ansible_user: root}\n  children:\n    kimi:\n      hosts:\n"
    "        a: {ansible_host: 192.0.2.1, kimi_model: kimi-k2.5}\n        b:\n"
)


@st.composite
def torn(draw):
    """A whole inventory with something put in, taken out or cut off."""
    at, length = draw(st.integers(0, len(WHOLE))), draw(st.integers(0, 12))
    put = draw(st.text(max_size=8) | st.sampled_from(["\t", "[", "{", "'", ": ", "!!x ", "&a *a"]))
    return (WHOLE[:at] + put + WHOLE[at + length :]).encode("utf-8", "surrogatepass")


@settings(max_examples=100, deadline=None)
@given(
    content=torn() | st.binary(max_size=60), name=st.sampled_from(["hosts.yml", "hosts", "x.json"])
)
def test_no_inventory_file_however_torn_ends_in_a_traceback(content, name):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / name).write_bytes(content)
        (path / "group_vars").mkdir()
        (path / "group_vars" / "kimi.yml").write_bytes(content)
        problem = None
        try:
            inventory.check_files(path)
        except UserError as error:
            problem = error
        assert problem is None or (str(path) in problem.message and problem.fix)
        assert problem is None or "\n" not in problem.message
        # Where a variable stands is looked up in the same files.
        locate.make_locator([path])("kimi_model")


def test_no_nest_and_no_pipe_reaches_ansible(tmp_path):
    hosts = tmp_path / "hosts.yml"
    hosts.write_text("kimi: {hosts: {a: {}}}\n")
    (tmp_path / "group_vars").mkdir()
    os.mkfifo(tmp_path / "group_vars" / "all.yml")
    for path in (tmp_path, hosts):
        assert "group_vars/all.yml: cannot be read: nothing came out of this pipe" in refused(path)
    (tmp_path / "group_vars" / "all.yml").unlink()
    (tmp_path / "group_vars" / "all.yml").write_text("a: " + "[" * 200_000)
    assert "group_vars/all.yml:1: this is not valid YAML: nested deeper" in refused(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "pipe" in refused(tmp_path / "pipe")
    assert "device" in refused(Path("/dev/zero"))
    (tmp_path / "loop").symlink_to("loop")
    assert "symbolic links" in refused(tmp_path / "loop")
    assert "no such inventory" in refused(tmp_path / ("n" * 300))


@pytest.mark.parametrize("kind", ["pipe", "folder", "nest", "long"])
def test_a_file_of_variables_that_is_none_is_refused(tmp_path, kind):
    file = tmp_path / ("vars" if kind != "long" else "n" * 300)
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    elif kind == "nest":
        file.write_text("{a: " * 100_000)
    with pytest.raises(UserError, match=str(file)):
        inventory.find_vars_file(f"@{file}")


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        (
            "hosts.yml",
            "kimi:\n  hosts:\n"
            + "".join(f"    node{n}: {{ansible_host: 192.0.2.1}}\n" for n in range(99_999)),
            "more than 100000 values",
        ),
        ("hosts.yml", "kimi: {hosts: {'node[1:99999]': }}\n", "more than 10000 hosts"),
        ("hosts", "[kimi]\nnode[00001:99999]\n", "more than 10000 hosts"),
        ("hosts", "[kimi]\nrow[1:900]-node[1:900]\n", "more than 10000 hosts"),
    ],
    ids=["written out", "a range", "a range in ini", "ranges by ranges"],
)
def test_an_inventory_of_a_hundred_thousand_hosts_is_refused_before_ansible_reads_it(
    tmp_path, name, text, problem
):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=problem):
        inventory.check_files(tmp_path)


def test_brackets_that_name_no_host_are_no_range(tmp_path):
    (tmp_path / "hosts").write_text('[kimi]\na note="see rack [1:20000]"  # b[1:99999]\n')
    inventory.check_files(tmp_path)
    program = tmp_path / "dynamic"
    program.write_text("#!/bin/sh\nx[0:65535]\n")
    program.chmod(0o755)
    inventory.check_files(program)


OWN = resources.find_ansible_config()


@pytest.mark.parametrize(
    ("site", "environment", "of_folder", "of_file"),
    [
        (None, None, "host_list,auto,yaml,ini,toml", "script,host_list,auto,yaml,ini,toml"),
        ("script, amazon.aws.aws_ec2", None, "amazon.aws.aws_ec2", "script,amazon.aws.aws_ec2"),
        ("yaml", None, "yaml", "yaml"),
        ("yaml", "ansible.builtin.script,ini", "ini", "ansible.builtin.script,ini"),
        (None, "script", "host_list,auto,yaml,ini,toml", "script"),
    ],
)
def test_the_reader_of_programs_is_for_a_file_that_was_named(
    tmp_path, site, environment, of_folder, of_file
):
    config = OWN
    if site:
        config = tmp_path / "ansible.cfg"
        config.write_text(f"[inventory]\nenable_plugins = {site} ; of the site\n")
    given = {"ANSIBLE_INVENTORY_ENABLED": environment} if environment else {}
    file = tmp_path / "hosts"
    file.touch()
    for path, expected in ((tmp_path, of_folder), (file, of_file)):
        chosen = inventory_files.choose_readers(path, config, given, own=OWN)
        assert chosen == {"ANSIBLE_INVENTORY_ENABLED": expected}


def test_hosts_of_a_folder_that_may_be_run_are_counted_as_text(tmp_path):
    """On a disk of Windows every file may be run, and Ansible reads this one."""
    path = tmp_path / "hosts"
    path.write_text("[kimi]\nnode[1:99999999]\n")
    path.chmod(0o755)
    assert "are more than" in refused(tmp_path)
