"""`kimi-prov backup|restore`: what is refused before a machine is asked, and what is told."""

import json

import closed_form
import pytest
from backup_answers import told
from command_line import task


@pytest.fixture
def archive(kimi):
    file = kimi.home / "backup.tar.gz"
    file.write_bytes(b"\x1f\x8b of a kind")
    return file


def test_a_backup_is_told_as_a_document_and_as_text(kimi):
    kimi.plays(task("kimi_backup", told))
    done = kimi.run("backup", kimi.hosts("good", "bad"), "--format", "json")
    assert done.returncode == 1
    document = json.loads(done.stdout)
    closed_form.validate(document, "backup")
    assert document["hosts"]["bad"] == {"ok": False, "detail": "this machine is not provisioned"}
    assert document["hosts"]["good"]["file"].startswith(f"{kimi.home}/{{host}}-backup-2")
    assert "holds secrets in clear" in done.stderr
    text = kimi.run("backup", kimi.hosts("good"), "--to", "mine.tar.gz")
    assert text.returncode == 0
    words_told = "".join(text.stdout.split())
    for words in (
        "mine.tar.gz, 2.0 KiB, IN CLEAR",
        "2027-01-15 08:00:00 UTC, on one",
        "API keys alice, operator; certificate abababababababab; the ACME account;",
        "3 entries of the history; of the web UI 2 accounts, 3 chats, 1 file",
        "left out the certificate: it has ended",
    ):
        assert words.replace(" ", "") in words_told


def test_a_restore_asks_and_has_no_one_to_ask(kimi, archive):
    kimi.plays(task("kimi_backup", told))
    words = ("restore", kimi.hosts("good"), archive)
    done = kimi.run(*words)
    assert done.returncode == 2
    assert "replace API keys, certificate, history" in done.stderr
    assert f"kimi-prov restore {words[1]} {archive} --yes" in done.stderr
    assert not kimi.runs.exists()
    done = kimi.run(*words, "--yes")
    assert done.returncode == 0
    assert "restored from" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["backup", "hosts.yml", "--to", "there"], "there: there is a file already"),
        (["backup", "hosts.yml", "--to", "no/such/folder/x"], "no file can be written there"),
        (["backup", "hosts.yml", "--to", "{{ x }}"], "as a template"),
        (["backup", "hosts.yml", "--recipient", "somebody"], "somebody is no key and no file"),
        (["backup", "nosuch"], "nosuch: there is no such inventory"),
        (["restore", "hosts.yml", "nosuch", "--yes"], "nosuch: No such file"),
        (["restore", "hosts.yml", "there", "--yes"], "there: this is no archive"),
        (["restore", "hosts.yml"], "FILE"),
    ],
)
def test_bad_input_is_told_before_a_machine_is_asked(kimi, words, said):
    kimi.hosts("good")
    (kimi.home / "there").write_text("text")
    done = kimi.run(*words)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert said in done.stderr
    assert not kimi.runs.exists()
