"""`kimi-prov check` as a person runs it: what goes in, what comes out, how it ends, how long."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from kimi_prov import schemas
from kimi_prov.commands.check import kind_of
from kimi_prov.errors import UserError

ROOT = Path(__file__).resolve().parents[3]
LAB = ROOT / "tests" / "data" / "facts" / "lab-nspawn.json"
SHEET = """\
schema: kimi-prov/spec/v1
name: {name}
cpu: {{model: "AMD EPYC 9654", sockets: 2, numa_nodes: 2}}
memory: {{dimms: 24, dimm_gb: {dimm}, speed_mt_s: 4800}}
gpus: {{model: "H200 SXM", count: {gpus}}}
disks: [{{kind: nvme, size_gb: 3840, count: 4, read_gb_s: 7}}]
software: {{os: debian-12, nvidia_driver: "580.95.05"}}
price: {{hourly_usd: 26}}
"""


MAIN = "from kimi_prov.cli import main; main()"


def run(*words: object, home: Path, code: str = MAIN) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"XDG_STATE_HOME": str(home), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code, "check", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
        cwd=home,
    )


def sheet(folder: Path, name: str = "big", *, gpus: int = 8, dimm: int = 64) -> Path:
    file = folder / f"{name}.yml"
    file.write_text(SHEET.format(name=name, gpus=gpus, dimm=dimm))
    return file


def test_a_sheet_that_fits_ends_with_0_and_one_document(tmp_path: Path) -> None:
    done = run(sheet(tmp_path), "--format", "json", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = json.loads(done.stdout)
    jsonschema.validate(found, schemas.load("check"))
    (target,) = found["targets"]
    assert target["name"] == "big"
    assert target["plan"]["model"]["name"] == "kimi-k2.5"
    assert target["findings"] == target["plan"]["findings"]
    assert target["cost"]["usd_per_hour"] == 26


def test_the_best_number_of_requests_is_what_asking_for_it_gives(tmp_path: Path) -> None:
    def cost(*words: object) -> dict[str, object]:
        done = run(sheet(tmp_path), "--format", "json", *words, home=tmp_path)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["targets"][0]["cost"]

    best = cost()["break_even"][0]["at_best"]
    asked = cost("--concurrency", best["concurrency"])
    assert best["concurrency"] > 16
    assert best["output_tok_s"] == asked["output_tok_s_at_full_use"]["expected"]
    assert best["cost_over_api_at_full_use"] == asked["break_even"][0]["cost_over_api_at_full_use"]


def test_one_blocked_target_of_several_ends_with_3_and_all_are_reported(tmp_path: Path) -> None:
    short = sheet(tmp_path, "small", gpus=1, dimm=16)
    done = run(sheet(tmp_path), short, LAB, "--format", "json", home=tmp_path)
    assert done.returncode == 3, done.stderr
    found = json.loads(done.stdout)
    assert found["ok"] is False
    assert [row["name"] for row in found["targets"]][:2] == ["big", "small"]
    assert len(found["targets"]) == 3


def test_the_settings_of_the_command_line_reach_plan_and_cost(tmp_path: Path) -> None:
    settings = [
        "--model",
        "kimi-k2-lab",
        "--context",
        "2048",
        "--concurrency",
        "4",
        "--engine",
        "vllm",
    ]
    costs = ["--amortise-years", "5", "--utilisation", "0.5", "--power-price", "0.2"]
    done = run(LAB, *settings, *costs, "--format", "json", home=tmp_path)
    assert done.returncode == 0, done.stderr
    (target,) = json.loads(done.stdout)["targets"]
    assert target["plan"]["model"]["name"] == "kimi-k2-lab"
    assert target["plan"]["model"]["context"] == 2048
    assert target["plan"]["throughput"]["concurrency"] == 4
    assert target["cost"]["utilisation"] == 0.5


@pytest.mark.parametrize("form", ["text", "markdown", "html"])
def test_a_report_goes_to_a_file(tmp_path: Path, form: str) -> None:
    file = tmp_path / "report"
    done = run(sheet(tmp_path), "--format", form, "--output", file, home=tmp_path)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "big" in file.read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing.yml"], "no such file"),
        (["bigg.yml"], "did you mean"),
        (["big.yml", "--model", "kimi-k25"], "kimi-k2.5"),
        (["big.yml", "--engine", "vlllm"], "vllm"),
        (["big.yml", "--utilisation", "1.5"], "utilisation"),
        (["big.yml", "--context", "many"], "kimi_context"),
        (["big.yml", "--output", "no/such/folder/file"], "--output"),
        (["broken.json"], "broken.json:1"),
        (["other.json"], "schema"),
        (["empty.yml"], "empty.yml"),
        (["binary.yml"], "UTF-8"),
    ],
)
def test_bad_input_ends_with_2_and_one_message(tmp_path: Path, words: list[str], said: str) -> None:
    sheet(tmp_path)
    (tmp_path / "broken.json").write_text('{"schema": ')
    (tmp_path / "other.json").write_text('{"a": 1}')
    (tmp_path / "empty.yml").write_text("")
    (tmp_path / "binary.yml").write_bytes(b"\xff\xfe\x00\x81")
    done = run(*words, home=tmp_path)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_host_that_does_not_answer_ends_with_4_after_the_others_were_reported(
    tmp_path: Path,
) -> None:
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(
        "kimi:\n  hosts:\n    gone: {ansible_host: 127.0.0.1, ansible_port: 1}\n"
        "  vars: {ansible_ssh_common_args: '-o ConnectTimeout=2', ansible_ssh_retries: 0}\n"
    )
    done = run(sheet(tmp_path), inventory, "--format", "json", home=tmp_path)
    assert done.returncode == 4, done.stderr
    assert [row["name"] for row in json.loads(done.stdout)["targets"]] == ["big"]
    assert "gone" in done.stderr


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("a.yml", SHEET.format(name="a", gpus=1, dimm=16), "spec"),
        ("a.yaml", "# a quote\nname: x\ncpu: {model: y}\n", "spec"),
        ("a.json", '{"schema": "kimi-prov/facts/v1"}', "facts"),
        ("hosts.yml", "all:\n  vars:\n    cpu: 1\n", "inventory"),
        ("hosts.ini", "[kimi]\na ansible_host=10.0.0.1\n", "inventory"),
        ("hosts.json", '{"kimi": {"hosts": {"a": {}}}}', "inventory"),
    ],
)
def test_targets_are_told_apart_by_what_they_hold(
    tmp_path: Path, name: str, text: str, kind: str
) -> None:
    file = tmp_path / name
    file.write_text(text)
    assert kind_of(file) == kind


def test_a_folder_is_a_recording_or_an_inventory(tmp_path: Path) -> None:
    assert kind_of(tmp_path) == "inventory"
    (tmp_path / "lscpu.json").write_text("{}")
    assert kind_of(tmp_path) == "recording"


def test_a_missing_target_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "vendor-a.yml").write_text("")
    with pytest.raises(UserError, match=r"did you mean .*vendor-a\.yml"):
        kind_of(tmp_path / "vendor_a.yml")


COUNT = """
import os, sys
opened = []
sys.addaudithook(lambda event, given: opened.append(str(given[0])) if event == "open" else None)
from kimi_prov.cli import main
try:
    main()
finally:
    slow = {"jsonschema", "ansible", "ansible_runner"} & set(sys.modules)
    rows = [path for path in opened if "/catalog/" in path and path.endswith(".yaml")]
    print(len(rows), sorted(slow), file=sys.stderr)
"""


def test_many_sheets_read_the_catalogue_once_and_load_no_slow_package(tmp_path: Path) -> None:
    """What makes them cheap; the seconds themselves are in `make bench`."""
    files = [sheet(tmp_path, f"m{number}") for number in range(20)]
    one, many = (counted(tmp_path, *given) for given in (files[:1], files))
    assert one == many
    assert one.endswith(" []")
    assert int(one.split()[0]) > 0


def counted(home: Path, *files: Path) -> str:
    """How many files of the catalogue a check opens, and which slow packages it loads."""
    done = run(*files, "--format", "json", home=home, code=COUNT)
    assert done.returncode in {0, 3}, done.stderr
    return done.stderr.splitlines()[-1]
