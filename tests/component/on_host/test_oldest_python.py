"""The managed machine may have Python 3.9: what travels there has to run on it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.on_host.__main__ import COMMANDS
from kimi_prov.on_host.cluster import main as cluster
from kimi_prov.on_host.pod import main as pod
from kimi_prov.packaging.zipapp import build_zipapp


def oldest() -> str | None:
    """A Python 3.9 of this computer."""
    found = shutil.which("python3.9")
    kept = sorted((Path.home() / ".pyenv" / "versions").glob("3.9.*/bin/python3.9"))
    return str(kept[0]) if kept else found


def test_every_subcommand_imports_and_weights_are_fetched_and_read(tmp_path: Path) -> None:
    python = oldest()
    if python is None:
        pytest.skip("no Python 3.9 on this computer: the imports were not tried on it")
    archive = build_zipapp(tmp_path / "kimi-target.pyz")
    tables = (cluster.COMMANDS, cluster.ANSWERING, pod.COMMANDS)
    names = [command.module for command in COMMANDS.values()]
    names += [module for table in tables for module in table.values()]
    modules = "; ".join(f"import {module}" for module in names)
    code = f"import sys; sys.path.insert(0, {str(archive)!r}); {modules}"
    subprocess.run([python, "-W", "error", "-c", code], check=True, cwd=tmp_path)
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "model.safetensors").write_bytes(b"abc" * 100_000)
    weights = {"source": f"file://{tmp_path}/disk", "dir": f"{tmp_path}/models/kimi/rev"}
    (tmp_path / "weights.json").write_text(json.dumps(weights))
    stage = {"weights": f"{tmp_path}/weights.json", "target": None, "workers": 2}
    (tmp_path / "stage.json").write_text(json.dumps(stage))
    for name, config in (("fetch", "weights.json"), ("stage", "stage.json")):
        command = [python, "-W", "error", str(archive), name, "--config", str(tmp_path / config)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "1 file," in done.stdout


READ_ROWS = """
import json, re, sys
sys.path.insert(0, sys.argv[1])
from kimi_prov.on_host.troubles.rows import read_packed_rows
rows = read_packed_rows()
for row in rows:
    for text in (*row.match, *row.also, *row.unless, *filter(None, [row.after])):
        re.compile(text)
print(json.dumps([row.id for row in rows]))
"""


def test_the_rows_of_troubles_travel_and_their_expressions_are_understood(tmp_path: Path) -> None:
    archive = build_zipapp(tmp_path / "kimi-target.pyz")
    command = [oldest() or sys.executable, "-I", "-W", "error", "-c", READ_ROWS, str(archive)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert json.loads(done.stdout) == [row.id for row in load_catalogue().troubles]
