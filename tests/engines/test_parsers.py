"""Command lines of the GPU inventories through the real parsers of the real engine versions.

vLLM's parser does not need a GPU: the CPU build of the same version carries the same one. Its
torch is overridden, and beside it lie the pure Python packages of the lock for CUDA. What a parser
proves is that the flags exist and their values have the right form, not that the engine serves
with them: drafts, balanced experts and caches in host memory stay unproven.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from engine_environment import IMPORT_PARSER

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.facts import recording
from kimi_prov.on_host.engine import command_check
from kimi_prov.packaging.zipapp import build_zipapp
from kimi_prov.planner.memory import stages
from kimi_prov.planner.plan import make_plan
from kimi_prov.planner.settings.parsing import parse_settings
from kimi_prov.planner.tuning import candidates
from kimi_prov.planner.tuning.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
# KTransformers' server has a parser of its own: tests/lab/test_kt_environment.py asks that one.
GOLDEN = [
    units
    for units in sorted((ROOT / "tests" / "data" / "golden").glob("*.units"))
    if "-m sglang." not in units.read_text()
]
VERSIONS = ("0.19.1", "0.32.0", "0.33.0")
_OPTIONS = f"""
import json
{IMPORT_PARSER}
print(json.dumps(sorted(make_arg_parser(FlexibleArgumentParser())._option_string_actions)))
"""


def command_line(units: Path) -> tuple[list[str], dict[str, str]]:
    """The engine's arguments and environment out of a golden unit."""
    text = units.read_text()
    start = re.search(r"^ExecStart=(.*)$", text, re.MULTILINE)
    assert start
    words = shlex.split(start.group(1))
    python = next(word for word in words if word.endswith("/bin/python"))
    return [python, *words[words.index("-m") :]], dict(
        re.findall(r"^Environment=(VLLM_\w+)=(\S*)$", text, re.MULTILINE)
    )


def refusal(home: Path, argv: list[str], environment: dict[str, str]) -> str | None:
    """What the parser of an environment made here says to a line that was planned for another."""
    return command_check.ask([f"{home}/bin/python", *argv[1:]], environment)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("units", GOLDEN, ids=lambda path: path.stem)
def test_the_real_parser_accepts_the_command_line(
    units: Path, version: str, parser_of: Callable[[str], Path]
) -> None:
    """As planned for 0.19.1; later versions take the same words, and add their NUMA binding."""
    argv, environment = command_line(units)
    if version != "0.19.1":
        argv += ["--numa-bind", "--numa-bind-nodes", *"00001111"]
    assert refusal(parser_of(version), argv, environment) is None


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("card", [("NVIDIA H200", "9.0"), ("NVIDIA B200", "10.0")])
def test_the_real_parser_accepts_what_is_planned_for_it(
    card: tuple[str, str], version: str, parser_of: Callable[[str], Path]
) -> None:
    """The line of each version's own plan; the cards are recorded H200s, the second renamed."""
    facts = recording.read_recording(ROOT / "tests" / "data" / "recordings" / "h200-x8")
    for row in facts["gpus"]:
        row |= {"model": card[0], "compute_capability": card[1]}
    settings = {"kimi_model": "kimi-k2.5", "kimi_engine_version": version}
    instance = make_plan(facts, parse_settings(settings, host="server"), load_catalogue())[
        "instances"
    ][0]
    assert refusal(parser_of(version), instance["argv"], instance["env"]) is None


@pytest.mark.parametrize("name", ["load-format", "capture-sizes"])
def test_the_real_parser_accepts_what_a_tune_tries(
    name: str, parser_of: Callable[[str], Path]
) -> None:
    """All candidates of a setting; one stands for those that differ by a number."""
    facts = recording.read_recording(ROOT / "tests" / "data" / "recordings" / "h200-x8")
    asked, catalogue = parse_settings({"kimi_model": "kimi-k2.5"}, host="server"), load_catalogue()
    served = make_plan(facts, asked, catalogue)
    subject = Subject(facts, asked, catalogue, served, "throughput", 64)
    (setting,) = candidates.select_settings([name])
    rows = candidates.plan_setting(setting, subject, {}, served)
    assert rows
    for row in rows[: 4 if name == "load-format" else 1]:
        instance = row.plan["instances"][0]
        home = parser_of(served["engine"]["version"])
        assert refusal(home, instance["argv"], instance["env"]) is None, row.candidate.label


def test_the_real_parser_refuses_what_is_dead(parser_of: Callable[[str], Path]) -> None:
    """The judge can say no."""
    argv, environment = command_line(GOLDEN[0])
    said = refusal(parser_of("0.19.1"), [*argv, "--swap-space", "4"], environment)
    assert said is not None
    assert "unrecognized arguments: --swap-space" in said


@pytest.mark.parametrize("version", VERSIONS)
def test_the_table_of_flags_is_what_the_parser_has(
    version: str, parser_of: Callable[[str], Path]
) -> None:
    done = subprocess.run(
        [parser_of(version) / "bin" / "python", "-c", _OPTIONS],
        capture_output=True,
        text=True,
        check=True,
    )
    options = set(json.loads(done.stdout.splitlines()[-1]))
    catalogue = load_catalogue()
    wrong = {}
    for row in catalogue.flags:
        verdict = row.versions.get(version)
        if row.engine == "vllm" and row.value is None and verdict is not None:
            there = row.flag in options
            if there != (verdict != "rejected"):
                wrong[row.flag] = verdict
    common = [s for s in catalogue.flag_sets if s.engine == "vllm" and version in s.versions]
    wrong |= {flag: "accepted" for s in common for flag in s.flags if flag not in options}
    assert wrong == {}


_RANK = """
import sys
sys.path.insert(0, {program!r})
import vllm.entrypoints.cli.serve as serve
names = ("node_rank", "nnodes", "api_server_count")
serve.run_headless = lambda given: print("rank", *[getattr(given, name) for name in names])
from kimi_prov.on_host.engine import launch
sys.exit(launch.main(["-m", "vllm.entrypoints.openai.api_server", *{words!r}]))
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_a_headless_rank_is_started_by_what_the_real_engine_has(
    parser_of: Callable[[str], Path], tmp_path: Path, version: str
) -> None:
    """Up to vLLM's own start of the workers, which needs the other hosts."""
    program = str(build_zipapp(tmp_path / "kimi-target.pyz"))
    words = ["--model", "/tmp", "--tensor-parallel-size", "2", "--nnodes", "2", "--node-rank", "1"]
    words += ["--master-addr", "10.0.0.1", "--master-port", "29501", "--headless"]
    python = str(parser_of(version) / "bin" / "python")
    script = _RANK.format(program=program, words=words)
    done = subprocess.run([python, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.endswith("rank 1 2 0\n"), done.stderr


_FUSES = """
from vllm.config import vllm
usual = vllm.VllmConfig.__dataclass_fields__["optimization_level"].default
passes = vllm.OPTIMIZATION_LEVEL_TO_CONFIG[usual]["compilation_config"]["pass_config"]
print(passes["fuse_allreduce_rms"] is vllm.enable_allreduce_rms_fusion)
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_the_engine_fuses_the_all_reduce_by_itself(
    version: str, parser_of: Callable[[str], Path]
) -> None:
    """A reason of docs/data/recipes.yaml: the recipe's flag is what the engine sets anyway."""
    python = str(parser_of(version) / "bin" / "python")
    done = subprocess.run([python, "-c", _FUSES], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "True"


_STAGES = """
import json
from vllm.distributed.utils import get_pp_indices
cuts = {n: [get_pp_indices(61, place, n) for place in range(n)] for n in range(1, 62)}
print(json.dumps({n: [end - start for start, end in found] for n, found in cuts.items()}))
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_stages_are_cut_as_the_real_engine_cuts_them(
    version: str, parser_of: Callable[[str], Path]
) -> None:
    python = str(parser_of(version) / "bin" / "python")
    done = subprocess.run([python, "-c", _STAGES], capture_output=True, text=True, check=True)
    shape = load_catalogue().model("kimi-k2.5").architecture
    assert shape.layers == 61
    assert json.loads(done.stdout.splitlines()[-1]) == {
        str(count): [stage.layers for stage in stages.cut_stages(shape, count)]
        for count in range(1, 62)
    }
