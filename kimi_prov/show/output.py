"""Write a report as JSON or text, to standard output or to a file."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kimi_prov.contract import clean_text
from kimi_prov.errors import UserError
from kimi_prov.user_dirs import replace_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Format = Literal["text", "json", "markdown", "html", "csv"]
_SUFFIXES: dict[str, Format] = {
    ".html": "html",
    ".htm": "html",
    ".md": "markdown",
    ".markdown": "markdown",
    ".json": "json",
}
# The fewest columns in which a report can be read.
_NARROWEST = 20


@dataclass(frozen=True)
class Output:
    """The chosen format, and the file in place of standard output.

    Each command writes formats other than JSON itself.
    """

    format: Format = "text"
    file: Path | None = None

    def check(self) -> None:
        """Refuse a file that cannot be written, before the work is done."""
        if self.file is not None:
            check_writable("--output", self.file)

    def columns(self) -> int | None:
        """Return the width of the terminal that the report goes to; None for a file or a pipe."""
        if self.file is not None or not sys.stdout.isatty():
            return None
        return max(_NARROWEST, shutil.get_terminal_size().columns)

    def write(self, document: object, text: Callable[[], str]) -> None:
        """Write the document as JSON, or as `text` returns it; no character controls a terminal.

        Control characters are escaped in JSON, so that the value stays, and spelt out in text.
        """
        json = self.format == "json"
        content = clean_text.as_json(document) if json else clean_text.clean_block(text())
        content = content.rstrip("\n") + "\n"
        if self.file is None:
            show(content)
            return
        self.check()
        write_whole(self.file, content)


def format_of(file: Path | None) -> Format:
    """Return the format of a report's file by its suffix; text for another suffix."""
    return "text" if file is None else _SUFFIXES.get(file.suffix.lower(), "text")


def check_writable(option: str, file: Path) -> None:
    """Refuse a file that `option` could not write, before the work is done."""
    check_file(option, file)
    folder = file.absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise _make_file_error(option, file, "no file can be written there")


def check_file(option: str, file: Path) -> None:
    """Refuse a path that `option` must not write to: only a regular or new file is allowed."""
    try:
        mode = file.lstat().st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG
    except OSError as error:
        raise _make_file_error(
            option, file, f"no file can be written there: {error.strerror}"
        ) from None
    if stat.S_ISDIR(mode):
        raise _make_file_error(option, file, "no file can be written there: it is a folder")
    if stat.S_ISLNK(mode):
        raise _make_file_error(option, file, "a symbolic link is neither followed nor replaced")
    if not stat.S_ISREG(mode):
        raise _make_file_error(option, file, "this is no regular file, and stays as it is")


def _make_file_error(option: str, file: Path, problem: str) -> UserError:
    fix = "name a file in an existing folder that you may write to"
    if file.absolute().is_relative_to("/dev") and option == "--output":
        fix = "leave out --output: the report goes to standard output"
    return UserError(f"{option} {file}: {problem}", fix=fix)


def write_whole(path: Path, content: str) -> None:
    """Write a file atomically: a reader never sees a part of it."""
    mask = os.umask(0)
    os.umask(mask)
    try:
        replace_file(path, content, 0o666 & ~mask)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path}: cannot be written: {getattr(error, 'strerror', None) or error}",
            fix="name a file in a folder that you may write to, on a disk with room",
        ) from error


def say(line: str) -> None:
    """Write one message to standard error, clean: standard output is for the report."""
    sys.stderr.write(f"{clean_text.clean_block(line)}\n")
    sys.stderr.flush()


def show(text: str) -> None:
    """Write a command's result to standard output, clean."""
    sys.stdout.write(clean_text.clean_block(text))
    sys.stdout.flush()
