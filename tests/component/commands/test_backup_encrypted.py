"""`kimi-prov backup|restore` with archives that are encrypted by the real age."""

import json
import shutil
import subprocess

import pytest
from backup_answers import told
from command_line import task


@pytest.fixture
def archive(kimi):
    file = kimi.home / "backup.tar.gz"
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


def test_an_encrypted_backup_is_named_for_its_program_and_warns_of_nothing(kimi, age_key):
    kimi.plays(task("kimi_backup", told))
    listed = kimi.home / "recipients"
    listed.write_text(age_key[1] + "\n")
    for recipient in (age_key[1], "recipients"):
        done = kimi.run("backup", kimi.hosts("good"), "--recipient", recipient, "--format", "json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["hosts"]["good"]["file"].endswith(".tar.gz.age")
        assert "in clear" not in done.stderr


def test_an_encrypted_backup_goes_to_the_machine_in_clear_and_to_no_file(kimi, archive, age_key):
    kimi.plays(task("kimi_backup", told))
    clear = kimi.home / "clear"
    clear.write_bytes(b"\x1f\x8b".decode("latin-1").encode() + b"what is in it")
    encrypted = kimi.home / "backup.age"
    making = ["age", "-r", age_key[1], "-o", encrypted, clear]
    subprocess.run(making, check=True)
    clear.unlink()
    words = ("restore", kimi.hosts("good"), encrypted, "--yes")
    done = kimi.run(*words, "--identity", age_key[0])
    assert done.returncode == 0, done.stderr
    brought = kimi.home.parent / "brought"
    assert brought.read_bytes().endswith(b"what is in it")
    brought.unlink()
    left = [path for path in kimi.home.rglob("*") if path.is_file()]
    assert not any(b"what is in it" in path.read_bytes() for path in left)
    refused = kimi.run(*words)
    assert (refused.returncode, "--identity FILE" in refused.stderr) == (2, True)
    assert not brought.exists()
    del archive


def test_a_key_that_gpg_does_not_know_is_told_before_a_machine_is_asked(kimi):
    done = kimi.run("backup", kimi.hosts("good"), "--recipient", "AB" * 20)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "--recipient: gpg: " in done.stderr
    assert not kimi.runs.exists()
