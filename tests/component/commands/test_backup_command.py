"""`kimi-prov backup|restore`: what is refused before a machine is asked, and what is told."""

import json
import shutil
import subprocess

import closed_form
import pytest

TOLD = """
- hosts: kimi
  gather_facts: false
  tasks:
    - kimi_status:
        failed: "{{ inventory_hostname == 'bad' }}"
        msg: not provisioned
        kimi: {code: failed, message: this machine is not provisioned, fix: apply}
        kimi_document: "{{ told[inventory_hostname == 'bad'] }}"
    - ansible.builtin.copy:
        content: "{{ lookup('ansible.builtin.file', backup_source | default('/dev/null')) }}"
        dest: "{{ playbook_dir }}/brought"
  vars:
    told:
      - {ok: true, detail: '', file: "{{ backup_file }}", bytes: 2048, sha256: ab,
         encrypted_with: null, hostname: one, made_unix: 1800000000, keys: [alice, operator],
         certificate_sha256: "{{ 'ab' * 32 }}", acme_account: true, history: 3,
         left_out: ["the certificate: it has ended"],
         page: {version: 0.12.4, made_unix: 1800000000, accounts: 2, chats: 3, uploads: 1,
                left_out: []}}
      - null
"""
# Our own plugin, on machines that have no code of ours.
REAL = """
- hosts: kimi
  gather_facts: false
  tasks:
    - kimi_backup:
        work: "{{ backup_work }}"
        file: "{{ backup_file }}"
        recipients: "{{ backup_recipients | default([]) }}"
"""


@pytest.fixture
def archive(installed):
    file = installed.home / "backup.tar.gz"
    file.write_bytes(b"\x1f\x8b of a kind")
    return file


@pytest.fixture
def age_key(tmp_path):
    if not shutil.which("age-keygen"):
        pytest.skip("no age on this computer: make deps")
    file = tmp_path / "identity"
    subprocess.run(["age-keygen", "-o", file], check=True, capture_output=True)
    public = subprocess.run(["age-keygen", "-y", file], check=True, capture_output=True, text=True)
    return file, public.stdout.strip()


def test_a_backup_is_told_as_a_document_and_as_text(installed, local):
    installed.playbook("backup", TOLD)
    done = installed.run("backup", local("good", "bad"), "--format", "json")
    assert done.returncode == 1
    document = json.loads(done.stdout)
    closed_form.validate(document, "backup")
    assert document["hosts"]["bad"] == {"ok": False, "detail": "this machine is not provisioned"}
    assert document["hosts"]["good"]["file"].startswith(f"{installed.home}/{{host}}-backup-2")
    assert "holds secrets in clear" in done.stderr
    text = installed.run("backup", local("good"), "--to", "mine.tar.gz")
    assert text.returncode == 0
    told = "".join(text.stdout.split())
    for words in (
        "mine.tar.gz, 2.0 KiB, IN CLEAR",
        "2027-01-15 08:00:00 UTC, on one",
        "API keys alice, operator; certificate abababababababab; the ACME account;",
        "3 entries of the history; of the page 2 accounts, 3 chats, 1 file",
        "left out the certificate: it has ended",
    ):
        assert words.replace(" ", "") in told


def test_an_encrypted_backup_is_named_for_its_program_and_warns_of_nothing(
    installed, local, age_key
):
    installed.playbook("backup", TOLD)
    listed = installed.home / "recipients"
    listed.write_text(age_key[1] + "\n")
    for recipient in (age_key[1], "recipients"):
        done = installed.run("backup", local("good"), "--recipient", recipient, "--format", "json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["hosts"]["good"]["file"].endswith(".tar.gz.age")
        assert "in clear" not in done.stderr


def test_a_restore_asks_and_has_no_one_to_ask(installed, local, archive):
    installed.playbook("backup", TOLD)
    words = ("restore", local("good"), archive)
    done = installed.run(*words)
    assert done.returncode == 2
    assert "replace API keys, certificate, history" in done.stderr
    assert f"kimi-prov restore {words[1]} {archive} --yes" in done.stderr
    assert not installed.runs.exists()
    done = installed.run(*words, "--yes")
    assert done.returncode == 0
    assert "restored from" in done.stdout


def test_an_encrypted_backup_goes_to_the_machine_in_clear_and_to_no_file(
    installed, local, archive, age_key
):
    installed.playbook("backup", TOLD.replace("of a kind", ""))
    clear = installed.home / "clear"
    clear.write_bytes(b"\x1f\x8b".decode("latin-1").encode() + b"what is in it")
    encrypted = installed.home / "backup.age"
    making = ["age", "-r", age_key[1], "-o", encrypted, clear]
    subprocess.run(making, check=True)
    clear.unlink()
    words = ("restore", local("good"), encrypted, "--yes")
    done = installed.run(*words, "--identity", age_key[0])
    assert done.returncode == 0, done.stderr
    brought = installed.site / "kimi_prov" / "_bundle" / "playbooks" / "brought"
    assert brought.read_bytes().endswith(b"what is in it")
    brought.unlink()
    left = [path for path in installed.home.rglob("*") if path.is_file()]
    assert not any(b"what is in it" in path.read_bytes() for path in left)
    refused = installed.run(*words)
    assert (refused.returncode, "--identity FILE" in refused.stderr) == (2, True)
    assert not brought.exists()
    del archive


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["backup", "hosts.yml", "--to", "there"], "there: there is a file already"),
        (["backup", "hosts.yml", "--to", "no/such/folder/x"], "no file can be written there"),
        (["backup", "hosts.yml", "--to", "{{ x }}"], "as a template"),
        (["backup", "hosts.yml", "--recipient", "somebody"], "somebody is no key and no file"),
        (["backup", "hosts.yml", "--recipient", "AB" * 20], "--recipient: gpg: "),
        (["backup", "nosuch"], "nosuch: there is no such inventory"),
        (["restore", "hosts.yml", "nosuch", "--yes"], "nosuch: No such file"),
        (["restore", "hosts.yml", "there", "--yes"], "there: this is no archive"),
        (["restore", "hosts.yml"], "FILE"),
    ],
)
def test_bad_input_is_told_before_a_machine_is_asked(installed, local, words, said):
    local("good")
    (installed.home / "there").write_text("text")
    done = installed.run(*words)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert said in done.stderr
    assert not installed.runs.exists()


@pytest.mark.parametrize(
    "words", [["backup", "--to", "one"], ["restore", "backup.tar.gz", "--yes"]]
)
def test_one_file_is_not_for_several_hosts(installed, local, archive, words):
    del archive
    installed.playbook("backup", REAL)
    done = installed.run(words[0], local("one", "two"), *words[1:])
    assert done.returncode == 2
    assert "is one file, and these are 2 hosts" in done.stderr
    assert "--limit" in done.stderr
