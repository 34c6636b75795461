"""What users of other tools type: it works, or one line names the command that does it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest
from click.shell_completion import ShellComplete

from kimi_prov.cli import SECTIONS, cli

if TYPE_CHECKING:
    from command_line import CommandLine


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        ("ps", "kimi-prov status INVENTORY"),
        ("ps my-server", "kimi-prov status my-server"),
        ("serve 'my server'", "kimi-prov apply 'my server'"),
        ("run", "kimi-prov apply INVENTORY"),
        ("apply my-server --dry-run", "kimi-prov apply my-server --check"),
        ("statuss my-server --limit a", "kimi-prov status my-server --limit a"),
        ("status my-server --formt json", "kimi-prov status my-server --format json"),
        ("apply", "kimi-prov apply INVENTORY"),
        ("lab ssh", "kimi-prov lab ssh INVENTORY HOST"),
        ("render slurm sheet.yml", "kimi-prov render slurm sheet.yml --output DIR"),
        ("render slurm", "kimi-prov render slurm TARGET --output DIR"),
        ("render kubernetes --output x", "kimi-prov render kubernetes --output x TARGET"),
        ("connect", "kimi-prov connect INVENTORY"),
        ("init my-server", "kimi-prov init my-server --profile lab"),
        ("frobnicate", "kimi-prov --help"),
    ],
)
def test_a_wrong_line_is_answered_with_one_to_paste(
    kimi: CommandLine, words: str, fix: str
) -> None:
    given = shlex.split(words)
    done = kimi.run(*given)
    assert (done.returncode, done.stdout) == (2, "")
    error, told = done.stderr.splitlines()
    assert error.startswith("error: ")
    assert told == f"  fix: {fix}"


def test_no_near_miss_proposes_to_destroy(kimi: CommandLine) -> None:
    for word in ("rm", "delete", "remove", "down", "uninstall", "teardown", "purge"):
        assert "destroy" not in kimi.run(word, "x").stderr


def test_version_and_help_are_commands_too(kimi: CommandLine) -> None:
    assert kimi.run("version").stdout == kimi.run("--version").stdout
    assert kimi.run("help", "lab", "up").stdout == kimi.run("lab", "up", "--help").stdout


def test_a_name_is_looked_for_in_every_kind_of_the_catalogue(kimi: CommandLine) -> None:
    done = kimi.run("catalog", "h200")
    assert done.returncode == 0, done.stderr
    assert "(gpus)" in done.stdout


def test_summaries_are_whole_and_short() -> None:
    rows = [row for section in SECTIONS.values() for row in section]
    assert [row.name for row in rows if len(row.short_help) > 45] == []
    assert {row.name for row in rows} == set(cli.commands)


def test_options_of_the_connection_come_last(kimi: CommandLine) -> None:
    own, _, connection = kimi.run("apply", "--help").stdout.partition("Connection, as for ansible")
    assert "--check" in own
    assert "--private-key" not in own
    assert "--private-key" in connection


def test_the_api_keys_file_still_has_its_old_name(kimi: CommandLine) -> None:
    done = kimi.run("connect", "https://localhost:1", "--key-file", "nosuch")
    assert "give --api-key-file" in done.stderr
    assert "nosuch" in done.stderr.partition("\n")[2]


def test_a_line_that_is_not_yet_whole_is_completed() -> None:
    for words in (["bundle"], ["render", "slurm"], ["status"]):
        shell = ShellComplete(cli, {}, "kimi-prov", "_KIMI_PROV_COMPLETE")
        assert {"--help"} < {item.value for item in shell.get_completions(words, "--")}
