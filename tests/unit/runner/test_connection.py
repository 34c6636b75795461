"""Ansible's options of the connection, passwords and the site's ansible.cfg reach what we run."""

import stat
import tempfile
from pathlib import Path

import pytest

from kimi_prov.errors import ExitCode, UserError
from kimi_prov.packaging import resources
from kimi_prov.runner import connection, site_config
from kimi_prov.runner.connection import ConnectionOptions
from kimi_prov.runner.private_folder import make_private_folder


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A folder and a home without any ansible.cfg, and temporary files in a place of their own."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("ANSIBLE_CONFIG", raising=False)
    return home


def refused(**options):
    with pytest.raises(UserError) as error:
        connection.prepare_connection(ConnectionOptions(**options))
    assert error.value.exit_code is ExitCode.BAD_INPUT
    return error.value


def test_arguments_that_begin_with_a_dash_stay_values(tmp_path):
    options = ConnectionOptions(ssh_common_args="-J ops@gate.example", user="-v")
    access = connection.write_access(connection.prepare_connection(options), tmp_path)
    assert access.playbook_arguments == (
        "--user=-v",
        "--ssh-common-args=-J ops@gate.example",
    )


def test_ansible_cfg_is_found_as_ansible_finds_it(elsewhere, tmp_path):
    own = resources.find_ansible_config()
    assert site_config.find({"HOME": str(elsewhere)}, elsewhere, own=own) is None
    dotted = elsewhere / ".ansible.cfg"
    dotted.write_text("[defaults]\n")
    here = tmp_path / "here"
    here.mkdir()
    environment = {"HOME": str(elsewhere)}
    assert site_config.find(environment, here, own=own) == dotted
    (here / "ansible.cfg").write_text("[defaults]\n")
    assert site_config.find(environment, here, own=own) == here / "ansible.cfg"
    here.chmod(0o777)
    assert site_config.find(environment, here, own=own) == dotted
    named = {**environment, "ANSIBLE_CONFIG": str(here)}
    assert site_config.find(named, elsewhere, own=own) == here / "ansible.cfg"
    assert site_config.find({**environment, "ANSIBLE_CONFIG": str(own)}, here, own=own) is None
    with pytest.raises(UserError, match="ANSIBLE_CONFIG"):
        site_config.find({"ANSIBLE_CONFIG": str(tmp_path / "none")}, here, own=own)


def test_a_site_that_has_passwords_asked_is_refused_where_nobody_can_answer(elsewhere):
    (elsewhere / "ansible.cfg").write_text("[privilege_escalation]\nbecome_ask_pass = True\n")
    assert "--become-password-file FILE" in refused().fix
    (elsewhere / "password").write_text("only canaries know\n")
    login = connection.prepare_connection(ConnectionOptions(become_password_file=Path("password")))
    assert not login.passwords


@pytest.mark.parametrize("name", connection.ASKS.values())
def test_the_environment_that_has_passwords_asked_is_refused_as_well(name, monkeypatch):
    monkeypatch.setenv(name, "True")
    assert "-password-file FILE" in refused().fix


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[defaults\n", "cannot read this"),
        ("forks = 3\n", "cannot read this"),
        ("[defaults]\nask_pass = perhaps\n", "expected True or False"),
    ],
)
def test_a_broken_ansible_cfg_is_named(elsewhere, text, expected):
    (elsewhere / "ansible.cfg").write_text(text)
    message = refused().message
    assert message.startswith(f"{elsewhere / 'ansible.cfg'}: ")
    assert expected in message


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"private_key": Path("none")}, "--private-key"),
        ({"vault_password_files": (Path("none"),)}, "--vault-password-file"),
        ({"vault_ids": ("site@prompt",)}, "--vault-id"),
        ({"vault_ids": ("site@none",)}, "--vault-id: there is no file"),
        ({"ask_become_pass": True}, "standard input is no terminal"),
        ({"ask_pass": True}, "standard input is no terminal"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(options, named):
    assert named in refused(**options).message


def test_what_is_written_is_ours_alone_and_goes(tmp_path, monkeypatch, elsewhere):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (elsewhere / "ansible.cfg").write_text("[defaults]\nforks = 3\n")
    with make_private_folder("run") as private:
        access = connection.write_access(
            connection.prepare_connection(ConnectionOptions()), private.folder
        )
        assert stat.S_IMODE(access.config.stat().st_mode) == 0o600
        assert stat.S_IMODE(access.config.parent.stat().st_mode) == 0o700
    assert not access.config.exists()


def test_vaults_are_named_as_ansible_cuts_their_names(tmp_path, monkeypatch, elsewhere):
    folder = tmp_path / "ops@site"
    folder.mkdir()
    for file in (folder / "key@1", folder / "key", elsewhere / "key"):
        file.write_text("only canaries know\n")
    monkeypatch.chdir(folder)
    login = connection.prepare_connection(
        ConnectionOptions(vault_ids=("a@key@1", "b@~/key", "key"))
    )
    words = connection.write_access(login, tmp_path).inventory_arguments
    assert words == (
        *("--vault-password-file", str(folder / "key")),
        *("--vault-id", f"a@{folder}/key@1"),
        *("--vault-id", f"b@{elsewhere}/key"),
    )
    assert login.secrets() == {"only canaries know"}


def test_a_file_that_ansible_runs_for_a_password_holds_none(elsewhere):
    script = elsewhere / "script"
    script.write_text("#!/bin/sh\nexec pass show ops\n")
    script.chmod(0o700)
    login = connection.prepare_connection(ConnectionOptions(become_password_file=Path("~/script")))
    assert login.options.become_password_file == script
    assert login.secrets() == set()


@pytest.mark.parametrize(
    ("typed", "expected"), [(["one", ""], {"connection": "one", "become": "one"}), ([""], None)]
)
def test_an_empty_answer_means_the_ssh_password_or_nothing(typed, expected, monkeypatch):
    answers = iter(typed)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("getpass.getpass", lambda _: next(answers))
    options = {"ask_pass": True, "ask_become_pass": True}
    if expected is None:
        assert "SSH password: it is empty" in refused(**options).message
    else:
        assert connection.prepare_connection(ConnectionOptions(**options)).passwords == expected


def test_a_site_s_paths_stay_one_or_many_as_ansible_cuts_them(elsewhere):
    site = elsewhere / "ansible.cfg"
    site.write_text("[defaults]\nprivate_key_file = keys/a,b\nlibrary = one:two,three\n")
    text = site_config.read(site, resources.find_ansible_config()).text
    assert f"private_key_file = {elsewhere}/keys/a,b\n" in text
    assert f"library = {elsewhere}/one:{elsewhere}/two,three\n" in text
