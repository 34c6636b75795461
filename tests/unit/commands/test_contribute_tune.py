"""`contribute` takes the measurements of a tune: what serves, and each candidate."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import yaml
from click.testing import CliRunner
from tune_inputs import tuned_host

from kimi_prov.acceptance import bench_results
from kimi_prov.cli import cli

if TYPE_CHECKING:
    from pathlib import Path


def document(path: Path, **changes: Any) -> Path:
    host = {**tuned_host(), "load": {}, "prompts_of_file": False, "stand_ins": [], **changes}
    file = path / "tune.json"
    whole = {"schema": "kimi-prov/tune/v1", "ok": True, "hosts": {"node1": host}}
    file.write_text(json.dumps(whole))
    return file


def test_what_serves_is_the_hosts_result_and_each_candidate_one_of_its_own(tmp_path: Path) -> None:
    results = bench_results.read_results(document(tmp_path))
    assert "node1" in results
    assert "node1: 4 threads" in results
    assert [level["concurrency"] for level in results["node1"]["serve"]["levels"]] == [8]
    assert results["node1"]["serve"]["output_tokens"] == 10


def test_rows_of_speeds_come_of_a_tune(tmp_path: Path) -> None:
    file = document(tmp_path, model="kimi-k2.5")
    done = CliRunner().invoke(cli, ["contribute", str(file)])
    assert done.exception is None, done.exception
    rows = yaml.safe_load(done.stdout)["rows"]
    assert len(rows) >= 3
    assert {row["concurrency"] for row in rows} == {8}


def test_a_tune_with_prompts_of_a_file_or_a_stand_in_is_no_measurement(tmp_path: Path) -> None:
    for changes in ({"prompts_of_file": True}, {"stand_ins": ["a model of random weights"]}):
        rows = bench_results.read_results(document(tmp_path, **changes)).values()
        assert all(bench_results.find_refusal(row) for row in rows)
