"""Passwords, vaults and the site's ansible.cfg reach Ansible itself."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pexpect
import pytest

from kimi_prov.errors import ExitCode, UserError
from kimi_prov.packaging import resources
from kimi_prov.runner import connection, inventory
from kimi_prov.runner.connection import ConnectionOptions

KIMI_PROV = Path(sys.executable).with_name("kimi-prov")
PASSWORD = "correct horse canary"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A folder and a home without any ansible.cfg, and temporary files in a place of their own."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("ANSIBLE_CONFIG", raising=False)
    return home


@pytest.fixture
def place():
    """Temporary files' place for a process: a run's private folder wants a short path."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def vaulted(tmp_path_factory):
    """An inventory whose group_vars hold a model's name that only the vault's password opens."""
    made = tmp_path_factory.mktemp("vaulted")
    folder = made / "inv"
    (folder / "group_vars").mkdir(parents=True)
    (folder / "hosts.yml").write_text("kimi: {hosts: {one: {ansible_connection: local}}}\n")
    (folder / "group_vars" / "kimi.yml").write_text("kimi_model: kimi-k2-thinking\n")
    key = made / "vault-key"
    key.write_text(f"{PASSWORD}\n")
    encrypt = [Path(sys.executable).with_name("ansible-vault"), "encrypt"]
    encrypt += ["--vault-password-file", key, folder / "group_vars" / "kimi.yml"]
    subprocess.run(encrypt, check=True, capture_output=True, cwd=made)
    return folder, key


def log_of(finished):
    return finished.log.read_text()


def test_a_vault_opens_with_a_password_file(vaulted, play):
    folder, key = vaulted
    with pytest.raises(UserError) as closed:
        inventory.load_inventory(folder)
    assert "--ask-vault-pass" in closed.value.fix
    login = connection.prepare_connection(ConnectionOptions(vault_password_files=(key,)))
    assert inventory.load_inventory(folder, login).hosts["one"]["kimi_model"] == "kimi-k2-thinking"
    finished, _ = play(
        "- assert: {that: kimi_model == 'kimi-k2-thinking'}", inventory=folder, connection=login
    )
    assert finished.outcome.exit_code() is ExitCode.OK


def test_a_labelled_vault_opens_too(vaulted, monkeypatch):
    folder, key = vaulted
    monkeypatch.chdir(key.parent)
    login = connection.prepare_connection(ConnectionOptions(vault_ids=(f"site@{key.name}",)))
    monkeypatch.chdir("/")
    assert inventory.load_inventory(folder, login).hosts["one"]["kimi_model"] == "kimi-k2-thinking"


def test_a_password_is_asked_once_and_stays_in_a_file_of_ours(vaulted, place, monkeypatch):
    folder, _ = vaulted
    monkeypatch.setenv("TMPDIR", str(place))
    asked = pexpect.spawn(
        sys.executable,
        ["-c", ASKING, str(folder)],
        encoding="utf-8",
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(resources.find_root())},
    )
    asked.expect("Vault password: ")
    asked.sendline(PASSWORD)
    asked.expect("inventory kimi-k2-thinking")
    asked.expect("file 0o600 True")
    asked.expect("arguments False environment False")
    asked.expect(pexpect.EOF)
    assert PASSWORD not in asked.before
    assert not list(place.glob("kimi-*"))


ASKING = """
import os, stat, sys
from pathlib import Path
from kimi_prov.runner import connection, inventory
from kimi_prov.runner.private_folder import make_private_folder
login = connection.prepare_connection(connection.ConnectionOptions(ask_vault_pass=True))
print("inventory", inventory.load_inventory(Path(sys.argv[1]), login).hosts["one"]["kimi_model"])
with make_private_folder("x") as private:
    access = connection.write_access(login, private.folder)
    file = Path(access.inventory_arguments[1])
    print("file", oct(stat.S_IMODE(file.stat().st_mode)), "canary" in file.read_text())
    words = " ".join([*access.playbook_arguments, *access.inventory_arguments])
    print("arguments", "canary" in words, "environment", "canary" in str(os.environ))
"""


def test_a_password_to_become_root_reaches_the_run_and_no_log(play, tmp_path):
    # Stands in for sudo: takes the password from its standard input, as sudo does.
    fake = tmp_path / "sudo"
    fake.write_text(
        "#!/bin/sh\nwhile [ $# -gt 0 ]; do case $1 in"
        " -p) prompt=$2; shift 2;; -u) shift 2;; -*) shift;; *) break;; esac; done\n"
        'printf %s "$prompt" >&2; read -r given\n'
        f'[ "$given" = "{PASSWORD}" ] || {{ echo "Sorry, try again." >&2; exit 1; }}\n'
        'exec "$@"\n'
    )
    fake.chmod(0o755)
    key = tmp_path / "become"
    key.write_text(f"{PASSWORD}\n")
    options = ConnectionOptions(become_password_file=key, user="ops", forks=7)
    login = connection.prepare_connection(options)
    finished, seen = play(
        """
- command: id -un
  become: true
  register: became
- shell: "tr '\\\\0' ' ' < /proc/*/cmdline 2>/dev/null | grep -c 'horse.can[a]ry' || true"
  register: arguments
- debug: {msg: "{{ became.stdout }} {{ arguments.stdout }}, correct horse canary"}
- debug: {msg: "forks {{ ansible_forks }}"}
""",
        connection=login,
        variables={"ansible_become_exe": str(fake), "ansible_become_user": "nobody"},
    )
    assert finished.outcome.exit_code() is ExitCode.OK, finished.outcome.failures
    assert "root 0, " in log_of(finished)
    # The login's other options reach Ansible as well.
    assert "forks 7" in log_of(finished)
    assert "canary" not in log_of(finished) + seen


def test_a_site_keeps_its_own_ansible_cfg(play, elsewhere, tmp_path, monkeypatch):
    site = elsewhere / "ansible.cfg"
    site.write_text(
        "[defaults]\nremote_user = ops ; who we are\nforks = 3\nroles_path = ours\n"
        "private_key_file = keys/id\nlog_path = leak.log\nstrategy = free\nstdout_callback = json\n"
        "[ssh_connection]\nssh_args = -J gate.example\n"
    )
    login = connection.prepare_connection(ConnectionOptions())
    monkeypatch.chdir(tmp_path)
    finished, _ = play(
        """
- debug: {msg: "{{ lookup('config', 'DEFAULT_REMOTE_USER') }} {{ ansible_forks }}"}
- debug: {msg: "key {{ lookup('config', 'DEFAULT_PRIVATE_KEY_FILE') }}"}
- debug: {msg: "strategy {{ lookup('config', 'DEFAULT_STRATEGY') }}"}
- debug: {msg: "{{ lookup('config', 'DEFAULT_ROLES_PATH') | join }}"}
- debug: {msg: "{{ lookup('config', 'ssh_args', plugin_type='connection', plugin_name='ssh') }}"}
""",
        connection=login,
    )
    log = log_of(finished)
    assert "ops 3" in log
    assert f"key {elsewhere}/keys/id" in log
    assert "strategy linear" in log
    assert str(resources.find_root() / "roles") in log
    assert "-J gate.example" in log
    assert not (elsewhere / "leak.log").exists()


@pytest.fixture
def closed_home(tmp_path):
    """A home that its user may not enter, as another's is."""
    folder = tmp_path / "closed"
    folder.mkdir(mode=0)
    yield folder
    folder.chmod(0o700)


def without_override(*words):
    """Run without root's right to enter every folder."""
    if os.geteuid():
        return words
    if not shutil.which("setpriv"):
        pytest.skip("root enters every folder, and there is no setpriv")
    caps = "-dac_override,-dac_read_search"
    return ("setpriv", f"--bounding-set={caps}", f"--inh-caps={caps}", *words)


@pytest.mark.parametrize("named", [False, True])
def test_a_home_that_is_another_s_is_passed_over_as_by_ansible(closed_home, tmp_path, named):
    (tmp_path / "hosts.yml").write_text(
        "kimi: {hosts: {here: {ansible_connection: local, kimi_modell: kimi-k2.5}}}\n"
    )
    own = {"ANSIBLE_CONFIG": str(closed_home / "own.cfg")} if named else {}
    done = subprocess.run(
        without_override(sys.executable, "-m", "kimi_prov", "plan", "hosts.yml"),
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(closed_home),
            "XDG_STATE_HOME": str(tmp_path / "state"),
            **own,
        },
        timeout=120,
    )
    assert done.returncode == 2
    # What somebody named is wanted: nothing else is read in its place.
    said = "that this user may read" if named else "unknown variable kimi_modell"
    assert said in done.stderr


def test_the_command_line_has_the_options_that_ansible_users_know(vaulted):
    folder, key = vaulted
    command = [KIMI_PROV, "verify", folder, "--limit", "nobody"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "vault" in done.stderr
    command += ["-u", "ops", "--vault-password-file", key, "-f", "2", "--private-key", key]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "nobody" in done.stderr  # the vault opened; the limit fits no host


KILLED = """
import os, sys
from pathlib import Path
from kimi_prov.runner import connection, inventory
inventory.subprocess.run = lambda *_, **__: os.kill(os.getpid(), 9)
login = connection.Connection(passwords={"vault": "correct horse canary"})
inventory.load_inventory(Path(sys.argv[1]), login)
"""


def test_what_a_killed_reading_of_an_inventory_left_goes_with_the_next(vaulted, place, monkeypatch):
    folder, key = vaulted
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(folder)],
        check=False,
        env={**os.environ, "PYTHONPATH": str(resources.find_root()), "TMPDIR": str(place)},
    )
    assert killed.returncode == -signal.SIGKILL
    assert [file.read_text() for file in place.glob("*/vault-password")] == [f"{PASSWORD}\n"]
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    inventory.load_inventory(
        folder, connection.prepare_connection(ConnectionOptions(vault_password_files=(key,)))
    )
    assert not list(place.iterdir())
