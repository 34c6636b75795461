"""Memory that is no processor's own is told apart by what the machine shows of its nodes."""

from __future__ import annotations

from typing import Any

import pytest
from plan_inputs import HUGE, found, metal_facts, plan

from kimi_prov.contract.node_kinds import classify_memory

GIB = 1 << 30


def make_facts(model: str, arch: str, *sizes: int, gpus: tuple[tuple[str, int], ...] = ()) -> Any:
    """Make facts of two nodes of 480 GiB with processors, and of others with these GiB."""
    facts = metal_facts(nodes=2, gib=960, cores=96)
    facts["host"]["arch"], facts["cpu"]["model"] = arch, model
    for row in facts["numa"]["nodes"]:
        row |= {"kind": "ddr", "memory_total_bytes": 480 * GIB}
    for number, size in enumerate(sizes, 2):
        facts["numa"]["nodes"].append(
            {"id": number, "cpus": "", "kind": None, "memory_total_bytes": size * GIB}
        )
    facts["memory"]["total_bytes"] = (960 + sum(sizes)) * GIB
    facts["gpus"] = [
        {"index": n, "vendor": "nvidia", "model": name, "memory_total_bytes": size * GIB}
        for n, (name, size) in enumerate(gpus)
    ]
    return facts


@pytest.mark.parametrize(
    ("facts", "kind", "bytes_of_kind"),
    [
        (make_facts("Neoverse-V2", "aarch64", 95, gpus=(("NVIDIA GH200 480GB", 95),)), "gpu", 95),
        # The driver's own tool was not there: seven empty nodes tell of a GPU's instances.
        (make_facts("Neoverse-V2", "aarch64", 95, *[0] * 7), "gpu", 95),
        (make_facts("Intel(R) Xeon(R) CPU Max 9480", "x86_64", 64, 64), "hbm", 128),
        (make_facts("Intel(R) Xeon(R) CPU Max 9460", "x86_64", 16, 16, 16, 16), "hbm", 64),
        (make_facts("AMD EPYC 9654", "x86_64", 256), "cxl", 256),
        # A GPU of the same size as the expander does not make it the GPU's.
        (make_facts("AMD EPYC 9654", "x86_64", 80, gpus=(("NVIDIA H100", 80),)), "cxl", 80),
    ],
)
def test_only_memory_of_processors_is_the_machines(
    facts: Any, kind: str, bytes_of_kind: int
) -> None:
    classify_memory(facts)
    assert facts["memory"]["total_bytes"] == 960 * GIB
    assert facts["memory"]["other_bytes"] == {kind: bytes_of_kind * GIB}
    classify_memory(facts)
    assert facts["memory"]["total_bytes"] == 960 * GIB


def test_the_node_that_the_driver_names_is_a_gpus() -> None:
    facts = make_facts("AMD EPYC 9654", "x86_64", 128)
    facts["gpus"] = [
        {"index": 0, "vendor": "nvidia", "memory_total_bytes": None, "memory_numa_node": 2}
    ]
    classify_memory(facts)
    assert facts["numa"]["nodes"][2]["kind"] == "gpu"


def test_a_node_whose_processors_an_old_probe_could_not_use_is_still_counted() -> None:
    facts = make_facts("AMD EPYC 9654", "x86_64", 256)
    for row in facts["numa"]["nodes"]:
        del row["kind"]
    classify_memory(facts)
    assert facts["memory"]["total_bytes"] == 1216 * GIB


def test_memory_is_spread_over_the_processors_nodes_and_the_rest_is_named() -> None:
    facts = make_facts("Intel(R) Xeon(R) CPU Max 9480", "x86_64", 64, 64)
    classify_memory(facts)
    document = plan(facts, **HUGE)
    assert document["instances"][0]["numactl"] == ["numactl", "--interleave=0-1"]
    (row,) = found(document, "numa.other_memory")
    assert "node 2, 3" in row["observed"]
    assert "128.0 GiB" in row["observed"]
