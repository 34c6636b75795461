"""Jobs for a SLURM cluster, as a user of the cluster reads and runs them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import closed_form
import pytest

from kimi_prov import cli
from kimi_prov.planner.registry import DEFINITIONS
from kimi_prov.render import planned
from kimi_prov.show.exit_handling import run_guarded

ROOT = Path(__file__).parents[3]
SPECS = ROOT / "inventories" / "specs"
GOLDEN = ROOT / "tests" / "data" / "golden" / "slurm"
VARIABLES = {
    "reference-002": """
kimi_slurm_root: /valhalla/projects/ab12/kimi
kimi_slurm_partition: gpu
kimi_slurm_cpu_partition: common
kimi_slurm_account: ab12
kimi_slurm_cpu_qos: 2cpu-single-host
kimi_slurm_modules: [nvidia/cuda/12/12.8, anaconda3]
kimi_slurm_idle_minutes: 120
""",
    "quote-2x-8x-h100": """
kimi_slurm_root: /project/kimi
kimi_slurm_gres: "gpu:h100:8"
kimi_slurm_constraint: "h100&ib"
kimi_slurm_time: "2-00:00:00"
kimi_slurm_requeue: true
kimi_slurm_login: me@login.cluster.example.com
kimi_pip_index_url: https://pypi.example.com/simple
kimi_https_proxy: http://me:canary-secret@proxy.example.com:3128
""",
}
# Not read by people, or a copy of a file that lies in this repository.
_NOT_GOLDEN = ("kimi-cluster.pyz", "plan.json", "render.json")


def run(*words: str) -> int:
    return int(run_guarded(lambda: cli.cli.main(list(words), standalone_mode=False)))


def render(target: str, output: Path, *more: str, variables: str | None = None) -> int:
    file = output.parent / f"{target}.vars.yml"
    file.write_text(VARIABLES[target] if variables is None else variables)
    sheet = str(SPECS / f"{target}.yml")
    return run("render", "slurm", sheet, "--vars", str(file), "--output", str(output), *more)


def read(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module", params=sorted(VARIABLES))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("render") / str(request.param)
    assert render(str(request.param), output) == 0
    return output


def test_the_files_are_the_golden_ones(folder: Path) -> None:
    golden = GOLDEN / folder.name
    found = {
        name: content.decode()
        for name, content in read(folder).items()
        if name not in _NOT_GOLDEN and not name.startswith("locks/")
    }
    if os.environ.get("KIMI_PROV_GOLDEN") == "write":
        shutil.rmtree(golden, ignore_errors=True)
        for name, text in found.items():
            path = golden / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    assert found == {name: content.decode() for name, content in read(golden).items()}


def test_the_record_names_every_file_with_its_digest(folder: Path) -> None:
    record = json.loads((folder / "render.json").read_text())
    closed_form.validate(record, "render")
    there = {name: content for name, content in read(folder).items() if name != "render.json"}
    told = {row["path"]: row["sha256"] for row in record["files"]}
    assert told == {name: hashlib.sha256(there[name]).hexdigest() for name in there}
    plan = json.loads((folder / "plan.json").read_text())
    closed_form.validate(plan, "plan")


def test_the_same_input_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    again = tmp_path / "elsewhere"
    assert render(folder.name, again) == 0
    assert read(again) == read(folder)


def test_nothing_of_this_machine_and_no_secret_is_in_them(folder: Path) -> None:
    for name, content in read(folder).items():
        if name == "kimi-cluster.pyz":
            continue
        assert b"canary-secret" not in content, name
        assert str(folder.parent).encode() not in content, name
        assert str(Path.home()).encode() + b"/" not in content, name


def test_no_job_asks_for_root(folder: Path) -> None:
    for path in [*(folder / "jobs").iterdir(), folder / "prepare-login.sh"]:
        assert not re.search(r"\b(sudo|su|systemctl|sysctl|apt-get|mount)\b", path.read_text())


def test_what_sbatch_reads_stands_before_the_first_command(folder: Path) -> None:
    for path in (folder / "jobs").glob("*.sbatch"):
        lines = path.read_text().splitlines()
        first = next(n for n, line in enumerate(lines) if line and not line.startswith("#"))
        options = [n for n, line in enumerate(lines) if line.startswith("#SBATCH")]
        assert lines[0] == "#!/bin/bash"
        assert lines[1].startswith("# ")
        assert options
        assert max(options) < first
        assert all(re.fullmatch(r"#SBATCH --[a-z-]+(=\S+)?", lines[n]) for n in options)
        assert "#SBATCH --output=logs/%x.%j.out" in lines
    assert (folder / "logs").is_dir()


def test_every_file_says_what_it_is(folder: Path) -> None:
    for name, content in read(folder).items():
        if name.endswith((".json", ".pyz")):
            continue
        start = content.decode().splitlines()[:2]
        assert any(line.startswith(("# ", "<!-- ")) for line in start), name


def test_a_changed_file_is_kept_and_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "reference-002"
    assert render("reference-002", output) == 0
    (output / "jobs" / "serve.sbatch").write_text("mine\n")
    capfd.readouterr()
    assert render("reference-002", output) == 0
    assert "kept, because it was changed by hand: jobs/serve.sbatch" in capfd.readouterr().err
    assert (output / "jobs" / "serve.sbatch").read_text() == "mine\n"
    assert render("reference-002", output, "--force") == 0
    assert (output / "jobs" / "serve.sbatch").read_text() != "mine\n"


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    output = tmp_path / "reference-002"
    output.mkdir()
    (output / "thesis.tex").write_text("x")
    assert render("reference-002", output) == 2
    assert [path.name for path in output.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ("kimi_model: kimi-k2.5\n", "kimi_slurm_root is not set"),
        ("kimi_slurm_root: relative/path\n", "vars.yml:1: kimi_slurm_root: expected an absolute"),
        ("kimi_slurm_root: /x/../y\n", "kimi_slurm_root: expected an absolute"),
        ("kimi_slurm_root: /p\nkimi_slurm_time: 24:00:00\n", "vars.yml:2: kimi_slurm_time"),
        (
            "kimi_slurm_root: /p\nkimi_slurm_signal_s: 100000\nkimi_slurm_time: 2-00:00:00\n",
            "vars.yml:2: kimi_slurm_signal_s: expected a whole number from 1 to 65535",
        ),
        (
            'kimi_slurm_root: /p\nkimi_slurm_signal_s: 3600\nkimi_slurm_time: "60"\n',
            "vars.yml:2: kimi_slurm_signal_s: expected less than the 3600 s of kimi_slurm_time",
        ),
        (
            'kimi_slurm_root: /p\nkimi_slurm_time: "4"\n',
            "vars.yml:2: kimi_slurm_time: expected more than the 300 s of kimi_slurm_signal_s",
        ),
        (
            "kimi_slurm_root: /p\nkimi_slurm_idle_minutes: -5\n",
            "vars.yml:2: kimi_slurm_idle_minutes: expected a whole number of minutes, 0 for never",
        ),
        (
            "kimi_slurm_root: /p\nkimi_engine_args: {gpu-memory-utilization: 95}\n",
            "vars.yml:2: kimi_engine_args: expected gpu-memory-utilization to be a number above 0",
        ),
        ("kimi_slurm_root: /p\nkimi_slurm_partition: 'a\\nb'\n", "kimi_slurm_partition"),
        ("kimi_slurm_root: /p\nkimi_slurm_login: -oProxyCommand=id\n", "kimi_slurm_login"),
        ('kimi_slurm_root: /p\nkimi_slurm_account: "x\\n#SBATCH --y"\n', "kimi_slurm_account"),
        ("kimi_slurm_root: /p\nkimi_slurm_rot: /p\n", "did you mean kimi_slurm_root"),
        ("slurm_root: /p\n", "vars.yml:1: slurm_root: expected a variable kimi_..."),
        ("[1]\n", "no mapping of variables"),
    ],
)
def test_wrong_variables_are_refused_with_their_place(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], variables: str, said: str
) -> None:
    assert render("reference-002", tmp_path / "out", variables=variables) == 2
    assert said in capfd.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "out").exists()


def test_a_job_without_a_limit_takes_any_signal(tmp_path: Path) -> None:
    variables = 'kimi_slurm_root: /p\nkimi_slurm_signal_s: 60000\nkimi_slurm_time: "0"\n'
    assert render("reference-002", tmp_path / "out", variables=variables) == 0


def test_a_blocker_writes_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Experts that a machine's own unit would have to convert."""
    sheet = SPECS / "quote-epyc-9755-rtx-pro-6000.yml"
    file = tmp_path / "vars.yml"
    file.write_text("kimi_kt_method: AMXINT8\n")
    words = ["render", "slurm", str(sheet), "--vars", str(file), "--root", "/p"]
    assert run(*words, "--output", str(tmp_path / "out")) == 3
    told = capfd.readouterr().err
    assert "slurm.engine" in told
    assert "nothing was written" in told
    assert not (tmp_path / "out").exists()


def test_ktransformers_has_its_proxy_and_the_node(tmp_path: Path) -> None:
    sheet = SPECS / "reference-000.yml"
    words = ["render", "slurm", str(sheet), "--root", "/p", "--output", str(tmp_path / "out")]
    assert run(*words) == 0
    serve = (tmp_path / "out" / "jobs" / "serve.sbatch").read_text()
    assert "--module sglang.launch_server" in serve
    # The whole node's cores, and no memory for files that are copied: experts and what GPUs read.
    assert "#SBATCH --cpus-per-task=192" in serve
    memory = int(re.search(r"#SBATCH --mem=(\d+)G", serve)[1])  # type: ignore[index]
    assert 608 + 126 <= memory < 608 + 554
    assert "chosen by the plan" not in serve
    # The job's own folders stay behind the engine's.
    assert "${PATH:+:$PATH}" in serve
    assert "KIMI_HAPROXY" in (tmp_path / "out" / "cluster.env").read_text()
    rows = json.loads((tmp_path / "out" / "plan.json").read_text())["findings"]
    assert {"slurm.proxy", "slurm.kt_kernel"} <= {row["id"] for row in rows}


def test_the_distribution_of_the_nodes_is_no_blocker(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Clusters run Rocky: `apply` needs apt there, a job does not."""
    sheet = tmp_path / "node.yml"
    text = (SPECS / "quote-8x-h200.yml").read_text()
    sheet.write_text(text.replace("ubuntu-24.04", "rocky-9"))
    assert "rocky-9" in sheet.read_text()
    words = ("render", "slurm", str(sheet), "--root", "/p", "--output", str(tmp_path / "out"))
    assert run(*words) == 0
    assert "os.supported" not in capfd.readouterr().err


@pytest.mark.parametrize(
    "wish", ["kimi_idle_action: poweroff", "kimi_hour_usd: 2"], ids=["poweroff", "price"]
)
def test_hosts_that_a_sheet_puts_together_are_held_to_what_such_hosts_may(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], wish: str
) -> None:
    """As `apply` holds an inventory to it; unless the operator says that each serves alone."""
    variables = f"kimi_slurm_root: /p\nkimi_idle_stop: 20m\n{wish}\n"
    out = tmp_path / "out"
    assert render("quote-2x-8x-h100", out, variables=variables) == 2
    assert "of hosts that serve one model together the head alone" in capfd.readouterr().err
    assert not out.exists()
    more = ("--hosts-per-model", "1", "--context", "4096", "--concurrency", "1")
    render("quote-2x-8x-h100", out, *more, variables=variables)
    assert "the head alone" not in capfd.readouterr().err


def test_a_node_without_gpus_is_rendered_too(tmp_path: Path) -> None:
    """As the lab does: one rank a node, tensor parallelism over both."""
    (tmp_path / "v.yml").write_text(
        "kimi_slurm_root: /p\nkimi_model: kimi-k2-lab\nkimi_hosts_per_model: 2\n"
        "kimi_weights_source: file:///p/source\n"
    )
    facts = str(ROOT / "tests" / "data" / "facts" / "lab-nspawn.json")
    out = tmp_path / "out"
    words = ("render", "slurm", facts, "--vars", str(tmp_path / "v.yml"), "--output", str(out))
    assert run(*words) == 0
    job = (out / "jobs" / "serve.sbatch").read_text()
    assert "#SBATCH --nodes=2" in job
    assert "--gres" not in job
    assert "  --distributed-executor-backend mp\n" in job
    assert "--node-rank" not in job
    # The facts' node has no more, and SLURM refuses a job that wants more.
    for path in (out / "jobs").glob("*.sbatch"):
        assert int(re.findall(r"--cpus-per-task=(\d+)", path.read_text())[0]) <= 2, path


def test_requests_of_a_data_parallel_engine_are_told_as_its_own(tmp_path: Path) -> None:
    variables = (
        "kimi_slurm_root: /p\nkimi_concurrency: 64\n"
        "kimi_engine_args: {data-parallel-size: 8, enable-expert-parallel: true}\n"
    )
    out = tmp_path / "out"
    sheet = str(tmp_path / "node.yml")
    assert run("init", "--spec", sheet) == 0
    (tmp_path / "v.yml").write_text(variables)
    words = ("--vars", str(tmp_path / "v.yml"), "--output", str(out))
    assert run("render", "slurm", sheet, *words) == 0
    before, _, after = (out / "jobs" / "serve.sbatch").read_text().partition("--max-num-seqs ")
    assert "of each data-parallel engine" in before.splitlines()[-2]
    assert after.split()[0] == "16"


def test_settings_without_effect_are_named(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("x")
    variables = (
        f"kimi_slurm_root: /p\nkimi_web_ui: true\nkimi_ram_disk: always\n"
        f"kimi_hf_token_file: {tmp_path}/cert.pem\nkimi_allowed_networks: [10.0.0.0/8]\n"
    )
    assert render("reference-002", tmp_path / "out", variables=variables) == 0
    plan = json.loads((tmp_path / "out" / "plan.json").read_text())
    rows = {row["id"]: row for row in plan["findings"]}
    named = rows["slurm.settings"]["observed"]
    assert named == "kimi_web_ui, kimi_allowed_networks, kimi_hf_token_file"
    assert "keys/hub-token" in rows["slurm.settings"]["required"]
    assert rows["slurm.ram_disk"]["severity"] == "warning"


def test_what_holds_in_a_job_is_told_by_ids_that_exist() -> None:
    gone = {name for name in DEFINITIONS if not planned.is_true_there(name)}
    assert {"firewall.closed", "os.supported", "python.lock", "driver.branch"} <= gone
    assert {"gpu.memory", "context.memory", "os.glibc", "weights.unpinned"}.isdisjoint(gone)
    assert set(planned.NOT_THERE_EITHER) <= set(DEFINITIONS)


def test_weights_from_nowhere_are_a_blocker(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    facts = str(ROOT / "tests" / "data" / "facts" / "lab-nspawn.json")
    words = ("render", "slurm", facts, "--root", "/p", "--model", "kimi-k2-lab")
    assert run(*words, "--output", str(tmp_path / "out")) == 3
    assert "set kimi_weights_source" in capfd.readouterr().err


def test_what_root_would_do_is_asked_of_the_administrator(folder: Path) -> None:
    rows: dict[str, dict[str, Any]] = {
        row["id"]: row for row in json.loads((folder / "plan.json").read_text())["findings"]
    }
    for name in ("tuning", "firewall", "ram_disk", "driver", "python"):
        assert rows[f"slurm.{name}"]["required"], name
    assert not [name for name in rows if name.startswith(("firewall.", "port.", "ram_disk."))]


def test_the_command_fits_a_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert render("quote-2x-8x-h100", tmp_path / "out") == 0
    lines = capfd.readouterr().err.replace(str(tmp_path), "").splitlines()
    assert [line for line in lines if len(line) > 80] == []


def test_a_target_and_an_inventory_exclude_each_other(tmp_path: Path) -> None:
    out = ("--root", "/p", "--output", str(tmp_path / "out"))
    assert run("render", "slurm", *out) == 2
    sheet = str(SPECS / "reference-002.yml")
    assert run("render", "slurm", sheet, "--inventory", "inventories/lab", *out) == 2
    assert run("render", "slurm", sheet, "--host", "a", *out) == 2
