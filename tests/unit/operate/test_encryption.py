"""Archives are encrypted by the real age and gpg, and nothing in clear gets a name on the disk."""

from __future__ import annotations

import pytest

from kimi_prov.errors import UserError
from kimi_prov.operate import encryption

CLEAR = b"\x1f\x8b of a kind, and a secret"


def read(file, identity=None):
    with encryption.open_archive(file, identity) as path:
        return path.read_bytes()


@pytest.mark.parametrize(
    "text", ["", "age1", "site@example.org", "DEADBEEF", "/no/such/file", "ssh-dss AAAA", "\0"]
)
def test_what_is_no_recipient_is_refused(text):
    """A name or address of gpg's could be anybody's: a key is named by its fingerprint."""
    with pytest.raises(UserError, match="is no key and no file"):
        encryption.read_recipients([text])


def test_keys_of_two_programs_are_not_mixed():
    with pytest.raises(UserError, match="mixed"):
        encryption.read_recipients(["age1" + "q" * 58, "AB" * 20])
    assert encryption.read_recipients([]) is None


def test_an_archive_in_clear_is_read_as_it_is(tmp_path):
    file = tmp_path / "backup.tar.gz"
    file.write_bytes(CLEAR)
    assert encryption.find_program(file) is None
    assert read(file) == CLEAR
    with pytest.raises(UserError, match="it is not encrypted"):
        read(file, tmp_path / "identity")


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04"])
def test_what_is_no_archive_is_refused(tmp_path, content):
    file = tmp_path / "x"
    file.write_bytes(content)
    with pytest.raises(UserError, match="this is no archive"):
        encryption.find_program(file)
    with pytest.raises(UserError, match="this is no archive"):
        encryption.find_program(tmp_path)
