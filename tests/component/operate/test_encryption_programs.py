"""Archives are encrypted by the real age and gpg, and nothing in clear gets a name on the disk."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile

import pytest

from kimi_prov.errors import UserError
from kimi_prov.operate import encryption

CLEAR = b"\x1f\x8b of a kind, and a secret"


@pytest.fixture(scope="module")
def age_key(tmp_path_factory):
    """The file of a private key, and its public part."""
    if not shutil.which("age-keygen"):
        pytest.skip("no age on this computer: make deps")
    file = tmp_path_factory.mktemp("age") / "identity"
    subprocess.run(["age-keygen", "-o", file], check=True, capture_output=True)
    public = subprocess.run(
        ["age-keygen", "-y", file], check=True, capture_output=True, text=True
    ).stdout.strip()
    return file, public


@pytest.fixture(scope="module")
def gpg_home(tmp_path_factory):
    """A keyring with a key of its own; its agent ends with the folder."""
    if not shutil.which("gpg"):
        pytest.skip("no gpg on this computer: make deps")
    # The agent's socket has to have a short name.
    home = tempfile.mkdtemp(prefix="kimi-gpg-")
    environment = {**os.environ, "GNUPGHOME": home}
    making = ("--batch", "--passphrase", "", "--quick-generate-key", "site@example.org", "default")
    subprocess.run(["gpg", *making], check=True, capture_output=True, env=environment)
    listed = subprocess.run(
        ["gpg", "--with-colons", "--list-keys"],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    ).stdout
    rows = [line.split(":") for line in listed.splitlines()]
    fingerprint = next(row[9] for row in rows if row[0] == "fpr")
    yield home, fingerprint
    subprocess.run(["gpgconf", "--kill", "all"], check=False, env=environment)
    # The agent takes its sockets away by itself while it ends.
    shutil.rmtree(home, ignore_errors=True)


def encrypted(tmp_path, *recipients):
    chosen = encryption.read_recipients(recipients)
    assert chosen is not None
    encryption.prove_recipients(chosen)
    file = tmp_path / f"backup.{chosen.program}"
    with tempfile.TemporaryFile() as clear, file.open("xb") as out:
        clear.write(CLEAR)
        clear.flush()
        encryption.encrypt(chosen, clear, out)
    assert CLEAR not in file.read_bytes()
    return file


def read(file, identity=None):
    with encryption.open_archive(file, identity) as path:
        return path.read_bytes()


def test_a_file_for_an_age_key_is_opened_by_its_private_part(age_key, tmp_path):
    identity, public = age_key
    file = encrypted(tmp_path, public)
    assert encryption.find_program(file) == "age"
    assert read(file, identity) == CLEAR


def test_a_file_of_recipients_and_an_ssh_key_do_as_well(age_key, tmp_path):
    identity, public = age_key
    listed = tmp_path / "recipients"
    listed.write_text(f"# the site's\n{public}\n")
    private = tmp_path / "id_ed25519"
    making = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", private]
    subprocess.run(making, check=True)
    ssh = private.with_suffix(".pub").read_text().strip()
    file = encrypted(tmp_path, str(listed), ssh)
    assert read(file, identity) == read(file, private) == CLEAR


def test_a_file_for_a_gpg_key_is_opened_by_the_keyring(gpg_home, tmp_path, monkeypatch):
    home, fingerprint = gpg_home
    monkeypatch.setenv("GNUPGHOME", home)
    file = encrypted(tmp_path, fingerprint)
    assert encryption.find_program(file) == "gpg"
    assert read(file) == CLEAR
    exported = subprocess.run(
        ["gpg", "--armor", "--export", fingerprint], check=True, capture_output=True
    ).stdout
    public = tmp_path / "site.asc"
    public.write_bytes(exported)
    monkeypatch.setenv("GNUPGHOME", str(tmp_path))
    os.chmod(tmp_path, 0o700)  # noqa: PTH101
    file.unlink()
    encrypted(tmp_path, str(public))
    with pytest.raises(UserError, match=r"gpg: .*secret key"):
        read(file)
    monkeypatch.setenv("GNUPGHOME", home)
    assert read(file) == CLEAR


def test_another_key_opens_nothing(age_key, tmp_path):
    file = encrypted(tmp_path, age_key[1])
    other = tmp_path / "other"
    subprocess.run(["age-keygen", "-o", other], check=True, capture_output=True)
    with pytest.raises(UserError, match="age: no identity matched"):
        read(file, other)
    with pytest.raises(UserError, match="encrypted to an age key") as caught:
        read(file)
    assert "--identity" in caught.value.fix
    broken = bytearray(file.read_bytes())
    broken[-5] ^= 1
    file.write_bytes(broken)
    with pytest.raises(UserError, match=r"backup\.age: age: "):
        read(file, age_key[0])


def test_what_a_program_does_not_take_is_told(age_key, tmp_path, monkeypatch):
    del age_key
    wrong = encryption.read_recipients(["age1" + "q" * 58])
    with pytest.raises(UserError, match="--recipient: age: "):
        encryption.prove_recipients(wrong)
    unknown = encryption.read_recipients(["AB" * 20])
    monkeypatch.setenv("GNUPGHOME", str(tmp_path))
    with pytest.raises(UserError, match="--recipient: gpg: "):
        encryption.prove_recipients(unknown)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="there is no age") as caught:
        encryption.prove_recipients(wrong)
    assert caught.value.fix == "apt-get install age"


def test_what_is_in_clear_has_no_name():
    with tempfile.TemporaryFile() as file:
        path = encryption.make_descriptor_path(file)
        # Another process of this user writes and reads it, as sftp does.
        subprocess.run(["sh", "-c", 'printf secret > "$0"', path], check=True)
        assert path.read_bytes() == b"secret"
        assert "(deleted)" in str(path.readlink())
    with pytest.raises(FileNotFoundError):
        path.open("rb")
