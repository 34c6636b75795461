"""`kimi-prov check` as a person runs it: what goes in, what comes out, how it ends, how long."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import closed_form
import command_line
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[4]
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
WHOLE = yaml.safe_load(SHEET.format(name="of-text", gpus=8, dimm=64))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def run(*words: object) -> command_line.Done:
    return command_line.run("check", *words)


def sheet(folder: Path, name: str = "big", *, gpus: int = 8, dimm: int = 64) -> Path:
    file = folder / f"{name}.yml"
    file.write_text(SHEET.format(name=name, gpus=gpus, dimm=dimm))
    return file


def test_a_sheet_that_fits_ends_with_0_and_one_document(tmp_path: Path) -> None:
    done = run(sheet(tmp_path), "--format", "json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = json.loads(done.stdout)
    closed_form.validate(found, "check")
    (target,) = found["targets"]
    assert target["name"] == "big"
    assert target["plan"]["model"]["name"] == "kimi-k2.5"
    assert target["findings"] == target["plan"]["findings"]
    assert target["cost"]["usd_per_hour"] == 26


@pytest.mark.parametrize(
    ("name", "words", "begins"),
    [
        ("r.html", (), "<!DOCTYPE html>"),
        ("r.MD", (), "# Serving"),
        ("r.json", (), "{"),
        ("r.txt", (), "Serving"),
        ("r.html", ("--format", "markdown"), "# Serving"),
    ],
)
def test_the_suffix_of_the_file_decides_the_form_where_none_is_named(
    tmp_path: Path, name: str, words: tuple[str, ...], begins: str
) -> None:
    done = run(sheet(tmp_path), "--output", name, *words)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / name).read_text().startswith(begins)


def test_the_best_number_of_requests_is_what_asking_for_it_gives(tmp_path: Path) -> None:
    def cost(*words: object) -> dict[str, object]:
        done = run(sheet(tmp_path), "--format", "json", *words)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["targets"][0]["cost"]

    best = cost()["break_even"][0]["at_best"]
    asked = cost("--concurrency", best["concurrency"])
    assert best["concurrency"] > 16
    assert best["output_tok_s"] == asked["output_tok_s_at_full_use"]["expected"]
    assert best["cost_over_api_at_full_use"] == asked["break_even"][0]["cost_over_api_at_full_use"]


def test_one_blocked_target_of_several_ends_with_3_and_all_are_reported(tmp_path: Path) -> None:
    short = sheet(tmp_path, "small", gpus=1, dimm=16)
    done = run(sheet(tmp_path), short, LAB, "--format", "json")
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
    done = run(LAB, *settings, *costs, "--format", "json")
    assert done.returncode == 0, done.stderr
    (target,) = json.loads(done.stdout)["targets"]
    assert target["plan"]["model"]["name"] == "kimi-k2-lab"
    assert target["plan"]["model"]["context"] == 2048
    assert target["plan"]["throughput"]["concurrency"] == 4
    assert target["cost"]["utilisation"] == 0.5


@pytest.mark.parametrize("form", ["text", "markdown", "html"])
def test_a_report_goes_to_a_file(tmp_path: Path, form: str) -> None:
    file = tmp_path / "report"
    done = run(sheet(tmp_path), "--format", form, "--output", file)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "big" in file.read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing.yml"], "no such file"),
        (["bigg.yml"], "did you mean big.yml"),
        ([], "--inventory PATH"),
        (["plan.json"], "kimi-prov/plan/v1"),
        (["--inventory", "nothing"], "no such inventory"),
        (["big.yml", "--model", "kimi-k25"], "kimi-k2.5"),
        (["big.yml", "--engine", "vlllm"], "vllm"),
        (["big.yml", "--utilisation", "1.5"], "utilisation"),
        (["big.yml", "--context", "many"], "write for example  --context 32768"),
        (["big.yml", "--context", "999999999"], "a whole number from 1 to 100000000, found"),
        (["unknown.yml"], "kimi-prov catalog cpus"),
        (["big.yml", "--catalog", "site"], "site/cpus.yaml:2: isa_sets.zen4: wanted a list"),
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
    (tmp_path / "plan.json").write_text('{"schema": "kimi-prov/plan/v1"}')
    unknown = sheet(tmp_path, "unknown")
    unknown.write_text(unknown.read_text().replace("EPYC 9654", "EPYC 1"))
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "cpus.yaml").write_text("isa_sets:\n  zen4: 3\n")
    (tmp_path / "empty.yml").write_text("")
    (tmp_path / "binary.yml").write_bytes(b"\xff\xfe\x00\x81")
    done = run(*words)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


RUNS = """{{ lookup('pipe', 'touch ran') }}"""
GROUP = {"kimi": {"hosts": {"q": {"ansible_connection": "local", "kimi_port": RUNS}}}}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("vendor.json", json.dumps(GROUP)),
        ("vendor.yml", f"schema: kimi-prov/spec/v1\nall: {json.dumps({'children': GROUP})}\n"),
        ("vendor.yml", yaml.safe_dump(GROUP)),
        ("vendor", "#!/bin/sh\ntouch ran\necho '{}'\n"),
        ("vendor.yml", f"plugin: constructed\nstrict: true\ncompose: {{a: {json.dumps(RUNS)}}}\n"),
        ("vendor.ini", "[kimi]\nq ansible_connection=local\n"),
    ],
)
def test_a_file_from_elsewhere_runs_nothing(tmp_path: Path, name: str, text: str) -> None:
    """A target is data. The words of a vendor's file never reach Ansible."""
    file = tmp_path / name
    file.write_text(text)
    file.chmod(0o755)
    done = run(file)
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "kimi-prov").exists(), "no run of Ansible was kept"
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    if "schema" not in text:
        assert f"kimi-prov check --inventory {file}" in done.stderr


def test_a_folder_from_elsewhere_runs_nothing_either(tmp_path: Path) -> None:
    folder = tmp_path / "vendor"
    folder.mkdir()
    (folder / "hosts").write_text("#!/bin/sh\ntouch ran\necho '{}'\n")
    (folder / "hosts").chmod(0o755)
    done = run(folder)
    assert not (tmp_path / "ran").exists()
    assert (done.returncode, done.stdout) == (2, "")
    assert f"kimi-prov check --inventory {folder}" in done.stderr


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({**GROUP, "schema": "kimi-prov/facts/v1"}),
        f"all: {json.dumps({'children': GROUP})}\nschema: kimi-prov/spec/v1\n",
    ],
)
def test_a_document_that_names_a_schema_is_no_inventory(tmp_path: Path, text: str) -> None:
    file = tmp_path / "vendor.json"
    file.write_text(text)
    done = run("--inventory", file)
    assert (done.returncode, done.stdout) == (2, "")
    assert "no inventory" in done.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yml", yaml.safe_dump(WHOLE)),
        ("a.json", json.dumps(WHOLE)),
        ("a", yaml.safe_dump(WHOLE, default_flow_style=True, width=1000)),
    ],
)
def test_a_sheet_is_told_by_its_schema_in_any_spelling(
    tmp_path: Path, name: str, text: str
) -> None:
    file = tmp_path / name
    file.write_text(text)
    done = run(file, "--format", "json")
    assert done.returncode == 0, done.stderr
    assert [row["name"] for row in json.loads(done.stdout)["targets"]] == ["of-text"]


FACTS = json.loads(LAB.read_text())
KIMI_FIRST = json.dumps({"kimi": FACTS["kimi"], **FACTS})


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b"\xef\xbb\xbf" + LAB.read_bytes(), "facts.json"),
        (b"\xef\xbb\xbf" + SHEET.format(name="big", gpus=8, dimm=64).encode(), "sheet.yml"),
        (gzip.compress(LAB.read_bytes()), "facts.json.gz"),
        (KIMI_FIRST.encode(), "facts.json"),
    ],
    ids=["BOM", "sheet-with-BOM", "gzip", "kimi-first"],
)
def test_facts_are_read_however_they_were_sent(tmp_path: Path, content: bytes, name: str) -> None:
    (tmp_path / name).write_bytes(content)
    words = [name, "--model", "kimi-k2-lab", "--format", "json"]
    done = run(*words)
    assert done.returncode == 0, done.stderr
    (target,) = json.loads(done.stdout)["targets"]
    assert target["facts"] == FACTS or target["name"] == "big"
