"""`kimi-prov check` as a process: standard input, a host that is away, what it loads."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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


MAIN = "from kimi_prov.cli import main; main()"


def run(
    *words: object, home: Path, code: str = MAIN, given: bytes = b""
) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"XDG_STATE_HOME": str(home), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code, "check", *map(str, words)],
        input=given,
        capture_output=True,
        timeout=120,
        check=False,
        env=environment,
        cwd=home,
    )
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


def sheet(folder: Path, name: str = "big", *, gpus: int = 8, dimm: int = 64) -> Path:
    file = folder / f"{name}.yml"
    file.write_text(SHEET.format(name=name, gpus=gpus, dimm=dimm))
    return file


def test_a_host_that_does_not_answer_ends_with_4_after_the_others_were_reported(
    tmp_path: Path,
) -> None:
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(
        "kimi:\n  hosts:\n    gone: {ansible_host: 127.0.0.1, ansible_port: 1}\n"
        "  vars: {ansible_ssh_common_args: '-o ConnectTimeout=2', ansible_ssh_retries: 0}\n"
    )
    words = [sheet(tmp_path), "--inventory", inventory, "--format", "json"]
    done = run(*words, home=tmp_path)
    assert done.returncode == 4, done.stderr
    assert [row["name"] for row in json.loads(done.stdout)["targets"]] == ["big"]
    assert "gone" in done.stderr


FACTS = json.loads(LAB.read_text())


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (LAB.read_bytes(), "/dev/stdin"),
        (LAB.read_bytes(), "-"),
        (gzip.compress(LAB.read_bytes()), "-"),
    ],
    ids=["pipe", "stdin", "gzip-on-stdin"],
)
def test_facts_are_read_from_standard_input(tmp_path: Path, content: bytes, name: str) -> None:
    words = [name, "--model", "kimi-k2-lab", "--format", "json"]
    done = run(*words, home=tmp_path, given=content)
    assert done.returncode == 0, done.stderr
    (target,) = json.loads(done.stdout)["targets"]
    assert target["facts"] == FACTS


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
