"""No command runs a file of a folder that it is given: a rendered folder's launch.sh starts a paid
machine, and a folder of hosts may hold programs for other uses.

Every command that takes an inventory is tried, as the command line itself lists them.
"""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import click
import command_line
import pytest

from kimi_prov.cli import cli
from kimi_prov.contract.rendered_kinds import MARKERS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FITTING = {
    "kimi.sky.yaml": "launch.sh",
    "user-data": "launch.sh",
    "kustomization.yaml": "kimi-prov apply",
    "cluster.env": "kimi-prov submit",
}
# They take a folder with its record: all kinds the first two, one for Kubernetes the others too.
SERVED = ("connect", "chat", "apply", "verify", "status", "stop", "start", "restart")
# What the folder is not named as, for a command that wants more.
OTHERS = {"FILE": "backup.tar", "HOST": "a", "TARGET": None, "[TARGET]...": None, "COMMAND": None}


def walk(command: click.Command, words: list[str]) -> Iterator[tuple[list[str], click.Command]]:
    if not isinstance(command, click.Group):
        yield words, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from walk(found, [*words, name])


def lines(folder: Path) -> Iterator[list[str]]:
    """Give the command line of each command that takes an inventory, with this folder as one."""
    for words, command in walk(cli, []):
        by_option = any("--inventory" in parameter.opts for parameter in command.params)
        given, takes = list(words), by_option
        for parameter in command.params:
            name = parameter.metavar or parameter.human_readable_name
            if isinstance(parameter, click.Argument) and "INVENTORY" in name:
                given.append(str(folder))
                takes = True
            elif isinstance(parameter, click.Argument):
                given += [word for word in [OTHERS.get(name)] if word]
            elif parameter.required:
                given += [parameter.opts[0], str(folder.parent / "written")]
            elif "--yes" in parameter.opts:
                given.append("--yes")
        if takes:
            yield [*given, *(["--inventory", str(folder)] if by_option else [])]


def write_program(path: Path, mark: Path) -> None:
    path.write_text(f'#!/bin/sh\ntouch "{mark}"\necho \'{{"kimi": {{"hosts": ["a"]}}}}\'\n')
    path.chmod(0o755)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("KIMI_API_KEY", "sk-kimi-for-chat")
    (tmp_path / "backup.tar").write_bytes(gzip.compress(b""))
    return tmp_path


def make_rendered(folder: Path, marker: str, *, record: bool) -> None:
    folder.mkdir()
    (folder / marker).write_text("kimi: {hosts: {a: {}}}\n")
    (folder / "hosts.yml").write_text("kimi: {hosts: {a: {lab_kind: nspawn}}}\n")
    for name in ("launch.sh", "launch"):
        write_program(folder / name, folder.parent / "RAN")
    if record:
        kind = MARKERS[marker]
        document = {"schema": "kimi-prov/render/v1", "kind": kind, "version": "0", "target": "t"}
        (folder / "render.json").write_text(
            json.dumps({**document, "plan_digest": "0" * 64, "files": []})
        )


@pytest.mark.parametrize("record", [False, True], ids=["without-record", "with-record"])
@pytest.mark.parametrize("marker", MARKERS)
def test_no_command_takes_a_rendered_folder_for_an_inventory(
    place: Path, marker: str, record: bool
) -> None:
    folder = place / "folder"
    make_rendered(folder, marker, record=record)
    tried = list(lines(folder))
    assert len(tried) > 25
    for words in tried:
        if record and words[0] in (SERVED if marker == "kustomization.yaml" else SERVED[:2]):
            continue  # A command for such a folder: it asks its cluster, and reads no hosts.
        done = command_line.run(*words)
        assert done.returncode == 2, (words, done)
        assert str(folder) in done.stderr, (words, done.stderr)
        assert "rendered for" in done.stderr, (words, done.stderr)
        if not record:
            assert FITTING[marker] in done.stderr, (words, done.stderr)
    assert not (place / "RAN").exists()


def test_no_command_runs_a_program_of_an_inventory_s_folder(place: Path) -> None:
    folder = place / "folder"
    folder.mkdir()
    (folder / "hosts.yml").write_text("kimi: {hosts: {a: {lab_kind: nspawn}}}\n")
    write_program(folder / "cloud_hosts", place / "RAN")
    for words in lines(folder):
        done = command_line.run(*words)
        assert done.returncode == 2, (words, done)
        assert f"{folder / 'cloud_hosts'}: this is a program" in done.stderr, (words, done.stderr)
    assert not (place / "RAN").exists()
