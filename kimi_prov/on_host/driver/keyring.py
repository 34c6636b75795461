"""Extracts the one pinned key from a vendor's file. Only gpg reads the file.

What is checked is what apt gets: gpg's own export of that key, and nothing of the file itself.
"""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.system import process

if TYPE_CHECKING:
    import subprocess

# A folder of its own holds all of gpg's state: no options, agent, key server or trust of a user.
_ALONE = (
    *("--batch", "--no-options", "--no-autostart", "--disable-dirmngr", "--quiet"),
    *("--trust-model", "always", "--no-auto-check-trustdb"),
    *("--no-default-keyring", "--keyring"),
)


def extract_key(content: bytes, fingerprint: str, where: str) -> bytes:
    """Return the key of this fingerprint from a file of keys, binary and as small as it can be.

    `where` names the file in messages. Raises HostError where it does not hold that key.
    """
    with tempfile.TemporaryDirectory(prefix="kimi-key-") as home:
        given, ring, taken = (os.path.join(home, name) for name in ("given", "ring.gpg", "taken"))
        with open(given, "wb") as stream:
            stream.write(content)
        # The exit status is ignored: the file may contain other keys that gpg refuses.
        _run_gpg(home, ring, "--import-options", "import-minimal", "--import", given)
        _run_gpg(
            home, ring, "--export-options", "export-minimal", "--output", taken, "--export",
            f"0x{fingerprint}",
        )  # fmt: skip
        # A subkey has a fingerprint too, and would export its primary key with it.
        found = _list_primary(home, ring, "--show-keys", taken) if os.path.exists(taken) else []
        if found != [fingerprint]:
            raise _make_missing_error(where, fingerprint, _list_primary(home, ring, "--list-keys"))
        with open(taken, "rb") as stream:
            return stream.read()


def _make_missing_error(where: str, fingerprint: str, found: list[str]) -> HostError:
    if not found:
        return HostError(
            f"{where} is not an OpenPGP key", "set kimi_nvidia_repo_key_url to the repository's key"
        )
    return HostError(
        f"{where} holds the key {', '.join(found[:5])}, pinned is {fingerprint}",
        "if the repository's owner confirms that key, set kimi_nvidia_repo_key_fingerprint",
    )


def _list_primary(home: str, ring: str, *words: str) -> list[str]:
    """Return the fingerprints of the primary keys that gpg lists."""
    found = []
    primary = False
    for line in _run_gpg(home, ring, "--with-colons", *words).stdout.splitlines():
        row = line.split(":")
        if row[0] == "fpr" and primary:
            found.append(row[9])
        if row[0] in ("pub", "sub", "fpr"):
            primary = row[0] == "pub"
    return found


def _run_gpg(home: str, ring: str, *words: str) -> subprocess.CompletedProcess[str]:
    done = process.run("gpg", "--homedir", home, *_ALONE, ring, *words)
    if isinstance(done, process.Unfinished):
        raise HostError(f"no key can be read: {done.stderr}", "apt-get install gpg")
    return done
