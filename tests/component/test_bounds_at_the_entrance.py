"""Names, paths and numbers out of bounds: exit 2 with a fix, wherever they come in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import fuzzing
import pytest
import yaml

from kimi_prov.on_host.cluster import queue, slurm
from kimi_prov.show.text.lines import WIDTH

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SHEETS = fuzzing.ROOT / "inventories" / "specs"
CLOUD_VARIABLES = fuzzing.ROOT / "inventories" / "gcp-h100-spot" / "group_vars" / "kimi.yml"
LONG_NAME = "n" * 300
LONG_PATH = "/".join(["n" * 200] * 30)
MANY_DIGITS = "9" * 5000


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def refused(words: Sequence[object], tmp_path: Path) -> str:
    ended = fuzzing.run([str(word) for word in words], tmp_path / "state")
    assert (fuzzing.faults(ended), ended.code) == ([], 2)
    return ended.err


@pytest.mark.parametrize("name", [LONG_NAME, LONG_PATH, "a\0b"])
@pytest.mark.parametrize(
    "words",
    [
        ("init", "PATH", "--profile", "localhost"),
        ("init", "--spec", "PATH"),
        ("check", SHEETS / "reference-002.yml", "--format", "text", "--output", "PATH"),
        ("check", SHEETS / "reference-002.yml", "--catalog", "PATH"),
        ("render", "slurm", SHEETS / "reference-002.yml", "--output", "PATH"),
        ("image", "--output", "PATH"),
        ("submit", "PATH"),
        ("status", "PATH"),
        ("plan", "PATH"),
    ],
)
def test_a_path_that_no_system_can_look_up_is_refused(
    words: tuple[object, ...], name: str, tmp_path: Path
) -> None:
    place = name if "\0" in name else f"{tmp_path}/{name}"
    refused([place if word == "PATH" else word for word in words], tmp_path)


def test_figures_that_are_wider_than_the_page_are_shown(tmp_path: Path) -> None:
    sheet = yaml.safe_load((SHEETS / "reference-002.yml").read_text())
    sheet["price"] = {"purchase_usd": 1_000_000}
    (tmp_path / "sheet.yml").write_text(yaml.safe_dump(sheet))
    words = ["check", str(tmp_path / "sheet.yml"), "--format", "text", "--utilisation", "1e-9"]
    ended = fuzzing.run(words, tmp_path / "state")
    assert fuzzing.faults(ended) == []
    assert "sheet" in ended.out
    assert any(len(line) > WIDTH for line in ended.out.splitlines())


@pytest.mark.parametrize("key", ["memory_gb", "sockets", "cores", "gpus"])
def test_a_row_of_a_machine_that_cannot_be_is_named(key: str, tmp_path: Path) -> None:
    rows = yaml.safe_load((fuzzing.ROOT / "kimi_prov/catalog/clouds.yaml").read_text())
    for row in rows["clouds"]:
        row[key] *= 1000
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "clouds.yaml").write_text(yaml.safe_dump(rows))
    told = refused(
        [
            *("render", "cloud-init", SHEETS / "reference-004.yml", "--vars", CLOUD_VARIABLES),
            *("--output", tmp_path / "rendered", "--catalog", tmp_path / "rows"),
        ],
        tmp_path,
    )
    assert "clouds.yaml" in told
    assert rows["clouds"][0]["name"] in told


@pytest.mark.parametrize("name", [LONG_NAME, "a\x1b[2Jb"])
def test_a_hosts_name_that_no_file_can_bear_is_refused(name: str, tmp_path: Path) -> None:
    hosts = {name: {"ansible_connection": "local"}}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"kimi": {"hosts": hosts}}))
    told = refused(["plan", tmp_path / "hosts.yml"], tmp_path)
    assert "hosts.yml: " in told


@pytest.mark.parametrize(
    "time", [MANY_DIGITS, f"{MANY_DIGITS}-1", f"1:{MANY_DIGITS}:1", "٣", "1-²"]
)
def test_a_walltime_out_of_bounds_is_none(time: str) -> None:
    assert slurm.parse_time_s(time) is None


@pytest.mark.parametrize(
    "changed",
    [
        {0: MANY_DIGITS},
        {4: "9999-99-99T99:99:99", 5: MANY_DIGITS},
        {6: f"{MANY_DIGITS}-00:00:01"},
        {7: "/a\0b"},
        {7: f"/{LONG_PATH}"},
    ],
)
def test_a_false_line_of_the_queue_is_left_out_or_its_field_unknown(
    changed: dict[int, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = ["7", "RUNNING", "None", "n1", "N/A", "N/A", "1:00", str(tmp_path), "x", "kimi-serve"]
    honest, false = list(fields), [changed.get(at, text) for at, text in enumerate(fields)]
    honest[0] = "6"
    answer = "".join("\x1f".join(row) + "\x1e" for row in (false, honest))
    (tmp_path / "squeue").write_text(f"#!/bin/sh\ncat {tmp_path}/answer\n")
    (tmp_path / "squeue").chmod(0o755)
    (tmp_path / "answer").write_bytes(answer.encode())
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    jobs = queue.list_jobs(str(tmp_path))
    assert jobs[-1].number == "6"
    assert all(job.ends_at is None and len(job.number) < 20 for job in jobs)
