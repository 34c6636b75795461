"""Encrypts archives to age or gpg keys, and decrypts them, by the programs of these names.

Plain text gets no name on this computer's disk: between two programs it is in a file that was
unlinked when it was created, and that is gone with the process, however the process ends.

Decides: what a backup holds, and where it is restored (for whom they are encrypted).
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

from kimi_prov.contract import clean_text
from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Program = Literal["age", "gpg"]

_AGE = re.compile(r"age1[a-z0-9]{20,2000}|ssh-(?:ed25519|rsa) \S.*")
_FINGERPRINT = re.compile(r"(?:0x)?(?:[0-9A-Fa-f]{16}|[0-9A-Fa-f]{40}|[0-9A-Fa-f]{64})")
_PGP_KEY = b"-----BEGIN PGP PUBLIC KEY BLOCK-----"
_MAGIC_BYTES: dict[Program, tuple[bytes, ...]] = {
    "age": (b"age-encryption.org/v1", b"-----BEGIN AGE ENCRYPTED FILE-----"),
    # Armoured text, or a session key's packet: old form (length of one or two bytes) or new form.
    "gpg": (b"-----BEGIN PGP MESSAGE-----", b"\x84", b"\x85", b"\xc1"),
}
_GZIP = b"\x1f\x8b"
_KINDS = (
    "age1..., a line of an SSH public key, a file of these, a gpg fingerprint, or a file of a "
    "gpg public key"
)


@dataclass(frozen=True)
class Recipients:
    """To whom a file is encrypted, as options of the program that does it."""

    program: Program
    options: tuple[str, ...]

    @property
    def command(self) -> list[str]:
        """Encrypt standard input to standard output."""
        if self.program == "age":
            return ["age", "--encrypt", *self.options]
        # The operator named the key: gpg must not ask whether it is trusted.
        always = ("--batch", "--no-tty", "--quiet", "--trust-model", "always")
        return ["gpg", *always, *self.options, "--encrypt", "--output", "-"]


def read_recipients(texts: Sequence[str]) -> Recipients | None:
    """Read the keys to encrypt to; None where none is given.

    Raises UserError for a value that is no key, and where keys of both programs are mixed.
    """
    programs = [_read_recipient(text) for text in texts]
    if len({program for program, _ in programs}) > 1:
        raise UserError(
            "--recipient: keys of age and of gpg are mixed, and one program encrypts a file",
            fix="name keys of one kind",
        )
    if not programs:
        return None
    return Recipients(programs[0][0], tuple(word for _, words in programs for word in words))


def _read_recipient(text: str) -> tuple[Program, tuple[str, ...]]:
    if _AGE.fullmatch(text):
        return "age", ("--recipient", text)
    if _FINGERPRINT.fullmatch(text):
        return "gpg", ("--recipient", text)
    shown = clean_text.clean_line(text[:200])
    try:
        with Path(text).open("rb") as stream:
            start = stream.read(len(_PGP_KEY))
    except (OSError, ValueError):
        raise UserError(
            f"--recipient: {shown} is no key and no file", fix=f"give {_KINDS}"
        ) from None
    file = str(Path(text).absolute())
    if start == _PGP_KEY:
        return "gpg", ("--recipient-file", file)
    return "age", ("--recipients-file", file)


def prove_recipients(chosen: Recipients) -> None:
    """Encrypt an empty text, so that a bad key is reported before a machine is asked.

    Raises UserError with what the program said.
    """
    with tempfile.TemporaryFile() as nothing, tempfile.TemporaryFile() as out:
        _run_program(chosen.command, nothing, out, "--recipient", f"give {_KINDS}")


def encrypt(chosen: Recipients, source: IO[bytes], to: IO[bytes]) -> None:
    """Encrypt the content of one file into another. Raises UserError."""
    source.seek(0)
    _run_program(chosen.command, source, to, "the archive", "look whether there is room for it")


def _run_program(command: list[str], source: IO[bytes], to: IO[bytes], what: str, fix: str) -> None:
    try:
        done = subprocess.run(command, stdin=source, stdout=to, stderr=subprocess.PIPE, check=False)
    except FileNotFoundError:
        raise _make_missing_error(command[0]) from None
    if done.returncode != 0:
        raise UserError(
            f"{what}: {command[0]}: {_extract_complaint(command[0], done.stderr)}", fix=fix
        )


def _extract_complaint(program: str, stderr: bytes) -> str:
    """Return the line with which a program complained: age's first, gpg's last."""
    lines = [line.strip() for line in stderr.decode(errors="replace").splitlines() if line.strip()]
    text = lines[-1 if program == "gpg" else 0] if lines else "it failed and gave no reason"
    return clean_text.clean_line(re.sub(r"^(?:age|gpg): (?:error: )?", "", text))[:300]


def _make_missing_error(program: str) -> UserError:
    package = {"gpg": "gnupg"}.get(program, program)
    return UserError(f"there is no {program} on this computer", fix=f"apt-get install {package}")


def find_program(
    file: Path, description: str = "a file that `kimi-prov backup` wrote"
) -> Program | None:
    """Return the program that decrypts a file; None for an archive that is not encrypted.

    Raises UserError for what is neither, with `description` for what to name instead.
    """
    description = f"name {description}"
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}", fix=description) from error
    try:
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        start = os.read(descriptor, 64) if regular else b""
    finally:
        os.close(descriptor)
    if start.startswith(_GZIP):
        return None
    for program, starts in _MAGIC_BYTES.items():
        if start.startswith(starts):
            return program
    raise UserError(f"{file}: this is no archive, encrypted or in clear", fix=description)


@contextlib.contextmanager
def open_archive(file: Path, identity: Path | None) -> Iterator[Path]:
    """Give a path of the archive, decrypted if need be, for the time of this context.

    The program asks on the terminal for the passphrase of a key. Raises UserError.
    """
    program = find_program(file)
    if identity is not None and program != "age":
        reason = "gpg takes the key from its own keyring" if program else "it is not encrypted"
        raise UserError(f"{file}: --identity is for age: {reason}", fix="leave --identity out")
    if program is None:
        yield file.absolute()
        return
    with tempfile.TemporaryFile() as clear:
        _decrypt_file(program, file, identity, clear)
        yield make_descriptor_path(clear)


def make_descriptor_path(file: IO[bytes]) -> Path:
    """Return a path by which other processes of this user open a file that has no name."""
    return Path(f"/proc/{os.getpid()}/fd/{file.fileno()}")


def _decrypt_file(program: Program, file: Path, identity: Path | None, to: IO[bytes]) -> None:
    if program == "gpg":
        command = ["gpg", "--quiet", "--decrypt", "--", str(file)]
    else:
        if identity is None:
            raise UserError(
                f"{file}: it is encrypted to an age key",
                fix="name the file of the private key with --identity FILE",
            )
        command = ["age", "--decrypt", "--identity", str(identity), "--", str(file)]
    try:
        done = subprocess.run(
            command,
            stdout=to,
            stderr=subprocess.PIPE,
            env=_make_terminal_environment(),
            check=False,
        )
    except FileNotFoundError:
        raise _make_missing_error(program) from None
    if done.returncode != 0:
        raise UserError(
            f"{file}: {program}: {_extract_complaint(command[0], done.stderr)}",
            fix="use the key that it was encrypted to, or another copy of the file",
        )


def _make_terminal_environment() -> dict[str, str]:
    """Return the environment in which gpg finds the terminal to ask on."""
    terminal = {"GPG_TTY": os.ttyname(0)} if sys.stdin.isatty() else {}
    return {**terminal, **os.environ}
