"""Command lines of hosts that serve one model together, through vLLM's real parser and settings.

As in test_parsers.py the CPU build of a version answers for it. Beyond the parser its own
`create_engine_config` is asked, which shares out ranks, stages and copies over the hosts: that is
what would end at a start, or hang. What is proven is what vLLM makes of the words, not that it
serves with them: expert parallelism over hosts, prompts apart from answers and context parallelism
over hosts ran on no hardware of this project.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from engine_environment import IMPORT_PARSER

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.facts import recording
from kimi_prov.on_host.engine import command_check
from kimi_prov.planner.hosts import groups
from kimi_prov.planner.plan import find_blockers, make_plan
from kimi_prov.planner.settings.parsing import parse_settings

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ("0.19.1", "0.32.0", "0.33.0")
HEAD, RANK = "10.0.0.1", "10.0.0.2"
# A mixture with MLA and 64 heads, as Kimi is, of a size that settings are made for at once.
MODEL = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": 512,
    "intermediate_size": 512,
    "moe_intermediate_size": 256,
    "num_hidden_layers": 8,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "n_routed_experts": 32,
    "num_experts_per_tok": 4,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 64,
    "q_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "vocab_size": 1024,
    "max_position_embeddings": 262144,
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "bos_token_id": 0,
    "eos_token_id": 1,
}
_ASKED = (
    "nnodes",
    "node_rank",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "data_parallel_size_local",
    "data_parallel_rank",
    "data_parallel_master_ip",
    "decode_context_parallel_size",
    "enable_expert_parallel",
    "world_size",
    "local_world_size",
    "nnodes_within_dp",
    "node_rank_within_dp",
    "distributed_executor_backend",
    "master_addr",
    "master_port",
)
# The parser of `vllm serve` and of the API server's module is one; all lines in one process, for
# the import takes most of the time.
_CONFIGURE = f"""
import json, sys
from vllm.engine.arg_utils import AsyncEngineArgs
{IMPORT_PARSER}

found = {{}}
parser = make_arg_parser(FlexibleArgumentParser())
for name, line in json.load(sys.stdin).items():
    try:
        args = parser.parse_args(line)
        config = AsyncEngineArgs.from_cli_args(args).create_engine_config(headless=args.headless)
        parallel = config.parallel_config
        found[name] = {{key: getattr(parallel, key) for key in {_ASKED!r}}}
        transfer = config.kv_transfer_config
        found[name]["connector"] = transfer and [transfer.kv_connector, transfer.kv_role]
    except (Exception, SystemExit) as error:
        found[name] = {{"refused": f"{{type(error).__name__}}: {{error}}"}}
print(json.dumps(found, default=str))
"""
RAY = ("distributed-executor-backend", "data-parallel-backend")
NIXL = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}


@dataclass(frozen=True)
class Layout:
    """What is set, and what every host has to make of it."""

    args: dict[str, Any]
    expected: dict[str, Any]
    of_rank: dict[str, Any]


ACROSS = {"nnodes_within_dp": 2, "world_size": 16, "local_world_size": 8}
COPIES = {"nnodes_within_dp": 1, "node_rank_within_dp": 0, "enable_expert_parallel": True}
LAYOUTS = {
    "default": Layout(
        {},
        ACROSS | {"tensor_parallel_size": 8, "pipeline_parallel_size": 2},
        {"node_rank_within_dp": 1},
    ),
    "tensor": Layout(
        {"tensor-parallel-size": 16},
        ACROSS | {"tensor_parallel_size": 16, "pipeline_parallel_size": 1},
        {"node_rank_within_dp": 1},
    ),
    "context": Layout(
        {"decode-context-parallel-size": 8},
        ACROSS | {"tensor_parallel_size": 8, "decode_context_parallel_size": 8},
        {"node_rank_within_dp": 1},
    ),
    "wide experts": Layout(
        {"tensor-parallel-size": 1, "data-parallel-size": 16, "enable-expert-parallel": True},
        COPIES | {"data_parallel_size": 16, "data_parallel_size_local": 8, "world_size": 1},
        {"data_parallel_rank": 8},
    ),
    "wide experts, ranks in each host": Layout(
        {"tensor-parallel-size": 8, "data-parallel-size": 2, "enable-expert-parallel": True},
        COPIES | {"data_parallel_size": 2, "data_parallel_size_local": 1, "world_size": 8},
        {"data_parallel_rank": 1},
    ),
    "prompts apart": Layout(
        {"kv-transfer-config": NIXL},
        ACROSS | {"connector": ["NixlConnector", "kv_both"]},
        {"node_rank_within_dp": 1},
    ),
}


def plans(version: str, args: dict[str, Any]) -> list[dict[str, Any]]:
    """The plans of two recorded hosts with eight H200 each, the head's first."""
    facts = recording.read_recording(ROOT / "tests" / "data" / "recordings" / "h200-x8")
    variables = {
        "kimi_model": "kimi-k2.5",
        "kimi_engine_version": version,
        "kimi_engine_args": args,
        "kimi_hosts_per_model": 2,
    }
    found = []
    for own in ("a", "b"):
        settings = parse_settings(variables, host=own)
        shared = groups.select_shared_settings(settings)
        hosts = tuple(
            groups.HostInput(name, facts, shared, address, address)
            for name, address in (("a", HEAD), ("b", RANK))
        )
        pair = groups.GroupHosts("pair", own, hosts)
        found.append(make_plan(facts, settings, load_catalogue(), pair))
    return found


def line(plan: dict[str, Any], model: Path) -> list[str]:
    """A plan's arguments, for a model that is there.

    Its tokenizer is not, and what reads that, the parser of reasoning, is left out.
    """
    argv: list[str] = list(plan["instances"][0]["argv"])
    argv[argv.index("--model") + 1] = str(model)
    reasoning = argv.index("--reasoning-parser")
    return [*argv[3:reasoning], *argv[reasoning + 2 :], "--skip-tokenizer-init"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(MODEL))
    return folder


def configured(home: Path, lines: dict[str, list[str]], folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [home / "bin" / "python", "-c", _CONFIGURE],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        timeout=900,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "VLLM_TARGET_DEVICE": "cpu"}
        | {"HF_HUB_OFFLINE": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module", params=VERSIONS)
def answers(
    request: pytest.FixtureRequest, parser_of: Callable[[str], Path], model: Path
) -> dict[str, Any]:
    """What a version makes of every layout, on the head and on the rank, and of what is none."""
    # Without GPUs the executor is not chosen by itself.
    executor = ["--distributed-executor-backend", "mp"]
    lines = {
        f"{name} {rank}": [*line(plan, model), *executor]
        for name, layout in LAYOUTS.items()
        for rank, plan in enumerate(plans(request.param, layout.args))
    }
    for flag in RAY:
        lines[flag] = line(plans(request.param, {flag: "ray"})[0], model)
    uneven = [*lines["default 0"]]
    uneven[uneven.index("--nnodes") + 1] = "3"
    return configured(parser_of(request.param), {**lines, "uneven": uneven}, model)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_engine_shares_a_layout_out_as_planned(answers: dict[str, Any], name: str) -> None:
    for rank in (0, 1):
        found = answers[f"{name} {rank}"]
        assert "refused" not in found, found
        wanted = {
            **LAYOUTS[name].expected,
            **(LAYOUTS[name].of_rank if rank else {}),
            "nnodes": 2,
            "node_rank": rank,
            "master_addr": HEAD,
            "master_port": 29501,
            "distributed_executor_backend": "mp",
        }
        assert {key: found[key] for key in wanted} == wanted


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name.startswith("wide")])
def test_copies_of_attention_meet_at_the_head(answers: dict[str, Any], name: str) -> None:
    assert {answers[f"{name} {rank}"]["data_parallel_master_ip"] for rank in (0, 1)} == {HEAD}
    assert answers[f"{name} 0"]["data_parallel_rank"] == 0


@pytest.mark.parametrize("flag", RAY)
def test_ray_is_refused_by_the_plan_and_by_the_engine(answers: dict[str, Any], flag: str) -> None:
    plan = plans(VERSIONS[0], {flag: "ray"})[0]
    assert "group.ray" in {row["id"] for row in find_blockers(plan)}
    assert "nnodes" in answers[flag]["refused"]


def test_ranks_that_do_not_come_out_even_are_refused_by_both(answers: dict[str, Any]) -> None:
    plan = plans(VERSIONS[0], {"tensor-parallel-size": 8, "pipeline-parallel-size": 1})[0]
    assert "group.layout" in {row["id"] for row in find_blockers(plan)}
    assert "world" in answers["uneven"]["refused"]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_check_before_the_start_accepts_the_line_of_a_rank(
    version: str, parser_of: Callable[[str], Path]
) -> None:
    """The whole line as planned, reasoning and all; the head's has no flag besides."""
    instance = plans(version, {})[1]["instances"][0]
    argv = [f"{parser_of(version)}/bin/python", *instance["argv"][1:]]
    assert command_check.ask(argv, instance["env"]) is None
