"""`tune`: what is refused before any machine is asked, and where the winner's lines go."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from typing import TYPE_CHECKING

import closed_form
import pytest
import yaml

from kimi_prov.cli import cli
from kimi_prov.commands.common.inventory_writes import add_host_lines
from kimi_prov.commands.tune import split_load
from kimi_prov.errors import UserError
from kimi_prov.show.exit_handling import run_guarded

if TYPE_CHECKING:
    from pathlib import Path

LINES = "# a tune\nkimi_threads: 4\n"


def run(*words: object) -> tuple[int, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run_guarded(partial(cli.main, ["tune", *map(str, words)], standalone_mode=False))
    return code, out.getvalue() + err.getvalue()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--only", "threads,colour"], "no setting 'colour'"),
        (["--within", "soon"], "45m"),
        (["--users", "0"], "1<=x<=10000"),
        (["--for", "fun"], "latency"),
        (["--load", "missing.yml"], "missing.yml"),
    ],
)
def test_options_that_make_no_sense_are_refused_first(words: list[str], message: str) -> None:
    code, said = run("inventories/localhost", *words)
    assert code == 2
    assert message in said


@pytest.mark.parametrize(
    ("kind", "message"), [("slurm", "bench.sbatch"), ("kubernetes", "from its object")]
)
def test_folders_for_clusters_are_refused_with_the_reason(
    tmp_path: Path, kind: str, message: str
) -> None:
    (tmp_path / "render.json").write_text(json.dumps({"kind": kind}))
    code, said = run(tmp_path)
    assert code == 2
    assert message in said


def test_lines_go_into_the_file_that_ansible_reads_for_the_host(tmp_path: Path) -> None:
    file = add_host_lines(tmp_path, "node1", LINES)
    assert file == tmp_path / "host_vars" / "node1.yml"
    assert yaml.safe_load(file.read_text()) == {"kimi_threads": 4}
    own = tmp_path / "host_vars" / "node2"
    own.write_text("kimi_port: 8000\n")
    assert add_host_lines(tmp_path / "hosts.yml", "node2", LINES) == own
    assert own.read_text().startswith("kimi_port: 8000\n")
    (tmp_path / "host_vars" / "node3").mkdir()
    assert add_host_lines(tmp_path, "node3", LINES).name == "tune.yml"


def test_lines_that_are_there_are_never_rewritten(tmp_path: Path) -> None:
    file = add_host_lines(tmp_path, "node1", LINES)
    with pytest.raises(UserError, match="already"):
        add_host_lines(tmp_path, "node1", "kimi_threads: 8\n")
    assert yaml.safe_load(file.read_text()) == {"kimi_threads": 4}
    with pytest.raises(UserError, match="no name of a file"):
        add_host_lines(tmp_path, "../up", LINES)


def test_the_load_and_its_sizes_are_those_of_the_schema() -> None:
    said = split_load({"requests": 8, "input_tokens": 256, "output_tokens": 64, "chat": False})
    assert said["load"] == {"requests": 8, "chat": False}
    host = {"ok": True, "detail": "", **said}
    closed_form.validate({"schema": "kimi-prov/tune/v1", "ok": True, "hosts": {"a": host}}, "tune")
