"""Sign with a key that the operator's GnuPG has."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

from kimi_prov.errors import ExitCode, UserError

if TYPE_CHECKING:
    from pathlib import Path

_FINGERPRINT = re.compile(r"^fpr:+([0-9A-F]{40}):", re.MULTILINE)
_MAKE = "gpg --quick-generate-key 'offline bundles' default sign never"


def find_fingerprint(key: str) -> str:
    """Return the fingerprint of a secret key by its name or a part of it. Raises UserError."""
    done = _run("--with-colons", "--list-secret-keys", "--", key)
    match = _FINGERPRINT.search(done.stdout.decode(errors="replace"))
    if done.returncode or match is None:
        raise UserError(
            f"--sign-with {key}: gpg has no secret key of that name",
            fix=f"name one of  gpg --list-secret-keys  or make one:  {_MAKE}",
        )
    return match[1]


def export_key(fingerprint: str, into: Path) -> None:
    """Write the public half of a key."""
    done = _run("--export-options", "export-minimal", "--export", fingerprint)
    into.write_bytes(_require_output(done, fingerprint))


def write_signature(content: Path | bytes, fingerprint: str, into: Path) -> None:
    """Write the signature of a file or of bytes."""
    data = content if isinstance(content, bytes) else content.read_bytes()
    done = _run("--local-user", fingerprint, "--armor", "--detach-sign", data=data)
    into.write_bytes(_require_output(done, fingerprint))


def _require_output(done: subprocess.CompletedProcess[bytes], fingerprint: str) -> bytes:
    if done.returncode or not done.stdout:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise UserError(
            f"gpg did not sign with {fingerprint}: {said[-1]}",
            fix="run it in a terminal in which gpg may ask for the passphrase: "
            "export GPG_TTY=$(tty)",
            exit_code=ExitCode.FAILED,
        )
    return done.stdout


def _run(*words: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            ["gpg", "--batch", "--yes", "--quiet", *words],
            input=data,
            capture_output=True,
            check=False,
        )
    except FileNotFoundError:
        raise UserError(
            "gpg is not installed here: it signs an offline bundle", fix="apt-get install gpg"
        ) from None
