"""`kimi-prov web backup|restore`: what is refused before a machine is asked, and what is told."""

import json

import closed_form
import pytest

TOLD = """
- hosts: kimi
  gather_facts: false
  tasks:
    - kimi_status:
        failed: "{{ inventory_hostname == 'bad' }}"
        msg: no page
        kimi: {code: failed, message: there is no page on this machine, fix: apply}
        kimi_document: "{{ told[inventory_hostname == 'bad'] }}"
  vars:
    told:
      - {ok: true, detail: '', file: "{{ web_file }}", bytes: 2048, sha256: ab, version: 0.12.4,
         made_unix: 1800000000, accounts: 2, chats: 3, uploads: 1, left_out: []}
      - null
"""
# Our own plugin, on machines that have no code of ours.
REAL = """
- hosts: kimi
  gather_facts: false
  tasks:
    - kimi_web_data: {work: "{{ web_work }}", file: "{{ web_file }}"}
"""


@pytest.fixture
def archive(installed):
    file = installed.home / "page.tar.gz"
    file.write_bytes(b"\x1f\x8b of a kind")
    return file


def test_a_backup_is_told_as_a_document_and_as_text(installed, local):
    installed.playbook("web", TOLD)
    done = installed.run("web", "backup", local("good", "bad"), "--format", "json")
    assert done.returncode == 1
    document = json.loads(done.stdout)
    closed_form.validate(document, "web")
    assert document["hosts"]["bad"] == {"ok": False, "detail": "there is no page on this machine"}
    good = document["hosts"]["good"]
    # The name is the host's and the time's, below the folder that one is in.
    assert good["file"].startswith(f"{installed.home}/{{host}}-web-2")
    text = installed.run("web", "backup", local("good"), "--to", "mine.tar.gz")
    assert text.returncode == 0
    # Where the lines end is a matter of how long the folder's name is.
    told = "".join(text.stdout.split())
    for words in ("mine.tar.gz, 2.0 KiB", "2027-01-15 08:00:00 UTC", "2 accounts, 3 chats, 1 file"):
        assert words.replace(" ", "") in told


def test_a_restore_asks_and_has_no_one_to_ask(installed, local, archive):
    installed.playbook("web", TOLD)
    words = ("web", "restore", local("good"), archive)
    done = installed.run(*words)
    assert done.returncode == 2
    assert "replace ALL accounts, chats and uploads of good" in done.stderr
    assert f"kimi-prov web restore {words[2]} {archive} --yes" in done.stderr
    assert not installed.runs.exists()
    done = installed.run(*words, "--yes")
    assert done.returncode == 0
    assert "restored from" in done.stdout


def test_behind_gateways_a_restore_is_asked_for_the_first_of_them(installed, local, archive):
    inventory = local("good")
    with (installed.home / inventory).open("a") as hosts:
        hosts.write("\nkimi_gateway:\n  hosts: {gw1: {}, gw2: {}}\n")
    done = installed.run("web", "restore", inventory, archive)
    assert "replace ALL accounts, chats and uploads of gw1, and" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["backup", "hosts.yml", "--to", "there"], "there: there is a file already"),
        (["backup", "hosts.yml", "--to", "no/such/folder/x"], "no file can be written there"),
        (["backup", "hosts.yml", "--to", "."], "it is a folder"),
        (["backup", "hosts.yml", "--to", "link"], "a symbolic link"),
        (["backup", "hosts.yml", "--to", "{{ x }}"], "as a template"),
        (["backup", "nosuch"], "nosuch: there is no such inventory"),
        (["restore", "hosts.yml", "nosuch", "--yes"], "nosuch: No such file"),
        (["restore", "hosts.yml", "there", "--yes"], "there: this is no archive"),
        (["restore", "hosts.yml", ".", "--yes"], "archive"),
        (["restore", "hosts.yml"], "FILE"),
    ],
)
def test_bad_input_is_told_before_a_machine_is_asked(installed, local, words, said):
    local("good")
    (installed.home / "there").write_text("text")
    (installed.home / "link").symlink_to("there")
    done = installed.run("web", *words)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert said in done.stderr
    assert not installed.runs.exists()


@pytest.mark.parametrize(
    ("work", "words"), [("backup", ["--to", "one"]), ("restore", ["page.tar.gz", "--yes"])]
)
def test_one_file_is_not_for_several_hosts(installed, local, archive, work, words):
    installed.playbook("web", REAL)
    done = installed.run("web", work, local("one", "two"), *words)
    assert done.returncode == 2
    assert "is one file, and these are 2 hosts" in done.stderr
    assert "--limit" in done.stderr
