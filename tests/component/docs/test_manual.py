"""The manual page: troff reads it without a warning, and it tells of every command and option."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import click
import manual
import pytest

from kimi_prov.cli import cli

PAGE = Path(__file__).resolve().parents[3] / "docs" / "man" / "kimi-prov.1"


def plain(text: str) -> str:
    return re.sub(r"\\-", "-", text)


def test_it_tells_of_every_command_and_option() -> None:
    text = plain(PAGE.read_text())
    for name, command in manual.commands(cli, "kimi-prov"):
        assert f".B {name}\n" in text
        for option in command.params:
            for word in option.opts if isinstance(option, click.Option) else ():
                assert word in text, (name, word)


def test_text_that_looks_like_a_request_stays_text() -> None:
    @click.group(help="Take a machine.")
    def group() -> None:
        pass

    group.command("one", help=".so /etc/passwd\n\n'quoted \\fBword\\fR --flag")(lambda: None)
    page = manual.page(group, "tool")
    assert "\n.so" not in page
    assert "\n\\&.so /etc/passwd\n" in page
    assert "\n\\&'quoted \\efBword\\efR \\-\\-flag\n" in page


@pytest.mark.skipif(not shutil.which("groff"), reason="no groff on this machine")
def test_troff_has_nothing_to_warn_of_and_shows_it() -> None:
    command = ["groff", "-man", "-Tutf8", "-ww", "-rLL=100n", "-P-c", str(PAGE)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    shown = re.sub(r"[\u2010\u2212]", "-", re.sub(".\b", "", done.stdout))
    for words in ("kimi-prov(1)", "NAME", "--power-price USD", "EXIT STATUS", "lab ssh"):
        assert words.lower() in shown.lower(), words
