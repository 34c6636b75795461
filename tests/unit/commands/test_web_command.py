"""`kimi-prov web backup|restore`: what is refused before a machine is asked, and what is told."""

import json

import closed_form
import pytest
from command_line import fails, gives, task

NO_PAGE = {"code": "failed", "message": "there is no web UI on this machine", "fix": "apply"}


def told(asked):
    """What a machine tells of its archive, or that it has no page."""
    if asked.host == "bad":
        return fails("no page", kimi=NO_PAGE)
    row = {"ok": True, "detail": "", "file": asked.variables["web_file"], "bytes": 2048}
    row |= {"sha256": "ab", "version": "0.12.4", "made_unix": 1800000000, "left_out": []}
    return gives({**row, "accounts": 2, "chats": 3, "uploads": 1})


@pytest.fixture
def archive(kimi):
    file = kimi.home / "page.tar.gz"
    file.write_bytes(b"\x1f\x8b of a kind")
    return file


def test_a_backup_is_told_as_a_document_and_as_text(kimi):
    kimi.plays(task("kimi_web_data", told))
    done = kimi.run("web", "backup", kimi.hosts("good", "bad"), "--format", "json")
    assert done.returncode == 1
    document = json.loads(done.stdout)
    closed_form.validate(document, "web")
    assert document["hosts"]["bad"] == {"ok": False, "detail": "there is no web UI on this machine"}
    good = document["hosts"]["good"]
    # The name is the host's and the time's, below the folder that one is in.
    assert good["file"].startswith(f"{kimi.home}/{{host}}-web-2")
    text = kimi.run("web", "backup", kimi.hosts("good"), "--to", "mine.tar.gz")
    assert text.returncode == 0
    # Where the lines end is a matter of how long the folder's name is.
    words_told = "".join(text.stdout.split())
    for words in ("mine.tar.gz, 2.0 KiB", "2027-01-15 08:00:00 UTC", "2 accounts, 3 chats, 1 file"):
        assert words.replace(" ", "") in words_told


def test_a_restore_asks_and_has_no_one_to_ask(kimi, archive):
    kimi.plays(task("kimi_web_data", told))
    words = ("web", "restore", kimi.hosts("good"), archive)
    done = kimi.run(*words)
    assert done.returncode == 2
    assert "replace ALL accounts, chats and uploads of good" in done.stderr
    assert f"kimi-prov web restore {words[2]} {archive} --yes" in done.stderr
    assert not kimi.runs.exists()
    done = kimi.run(*words, "--yes")
    assert done.returncode == 0
    assert "restored from" in done.stdout


def test_behind_gateways_a_restore_is_asked_for_the_first_of_them(kimi, archive):
    inventory = kimi.hosts("good")
    with (kimi.home / inventory).open("a") as hosts:
        hosts.write("\nkimi_gateway:\n  hosts: {gw1: {}, gw2: {}}\n")
    done = kimi.run("web", "restore", inventory, archive)
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
def test_bad_input_is_told_before_a_machine_is_asked(kimi, words, said):
    kimi.hosts("good")
    (kimi.home / "there").write_text("text")
    (kimi.home / "link").symlink_to("there")
    done = kimi.run("web", *words)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert said in done.stderr
    assert not kimi.runs.exists()
