"""Speeds of one model over several hosts: what one request and many get, by layout and link."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from plan_inputs import gpu_facts

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.facts.host import read_host
from kimi_prov.planner import throughput
from kimi_prov.planner.throughput import hosts, links, subjects
from kimi_prov.planner.throughput.inputs import Link

if TYPE_CHECKING:
    from kimi_prov.planner.throughput import Estimate

ROW = load_catalogue().model("kimi-k2.6")
MODEL = throughput.make_shape(ROW.name, ROW.architecture)
EIGHT = subjects.find_gpus("H100 SXM 80GB", 8)
assert EIGHT is not None
MACHINE = throughput.Machine(gpus=EIGHT)
INFINIBAND, ROCE, ETHERNET = Link("infiniband", 400), Link("roce", 400), Link("ethernet", 12.5)
ONE = throughput.Serving(
    "vllm",
    throughput.find_weight_format("int4"),
    input_tokens=1000,
    output_tokens=8000,
    tensor_parallel=8,
)
PIPELINE = replace(ONE, stages=2, hosts=2, link=INFINIBAND)
TENSOR = replace(ONE, tensor_parallel=16, hosts=2, link=INFINIBAND)
WIDE = replace(ONE, tensor_parallel=1, data_parallel=16, hosts=2, link=INFINIBAND)


def port(device: str, layer: str, state: str, gbit: int) -> dict[str, Any]:
    found = {"device": device, "port": 1, "link_layer": layer, "state": state}
    return {**found, "speed_bits_per_s": gbit * 10**9}


def estimate(serving: throughput.Serving) -> Estimate:
    return throughput.estimate_speed(MODEL, MACHINE, serving)


def test_one_request_is_a_little_slower_over_stages_than_on_one_host() -> None:
    alone, staged = estimate(ONE).decode_tok_s, estimate(PIPELINE).decode_tok_s
    assert 0.9 * alone.expected < staged.expected < alone.expected


def test_many_requests_fill_the_stages() -> None:
    many = estimate(replace(ONE, concurrency=64)).aggregate_tok_s
    staged = estimate(replace(PIPELINE, concurrency=64)).aggregate_tok_s
    assert many.expected * 1.1 < staged.expected < many.expected * 2


@pytest.mark.parametrize("serving", [PIPELINE, TENSOR, WIDE])
@pytest.mark.parametrize("requests", [1, 64])
def test_a_slow_link_never_helps(serving: throughput.Serving, requests: int) -> None:
    serving = replace(serving, concurrency=requests)
    speeds = [
        (found.decode_tok_s.expected, found.prefill_tok_s.expected)
        for found in (estimate(replace(serving, link=link)) for link in (INFINIBAND, ETHERNET))
    ]
    assert speeds[1] < speeds[0]
    assert speeds[1][1] < speeds[0][1]


def test_ethernet_costs_tensor_parallelism_much_more_than_stages() -> None:
    def share(serving: throughput.Serving) -> float:
        slow = estimate(replace(serving, link=ETHERNET)).decode_tok_s.expected
        return slow / estimate(serving).decode_tok_s.expected

    assert share(PIPELINE) > 0.95
    assert share(TENSOR) < 0.6


@pytest.mark.parametrize("serving", [PIPELINE, TENSOR, WIDE])
def test_ranges_over_hosts_are_wider_than_those_of_one(serving: throughput.Serving) -> None:
    def wide(found: Estimate) -> float:
        return found.decode_tok_s.high / found.decode_tok_s.low

    assert wide(estimate(serving)) > 1.5 * wide(estimate(ONE))


@pytest.mark.parametrize(("requests", "together"), [(1, 90), (8, 335), (70, 2400)])
def test_what_was_reported_of_four_hosts_is_in_the_range(requests: int, together: float) -> None:
    """K2.6 over four hosts with eight H100 each: huggingface/physics-intern, pulls 2 and 12.

    The pulls tell neither link nor lengths: long answers to short questions were assumed.
    """
    serving = replace(ONE, stages=4, hosts=4, link=INFINIBAND, concurrency=requests)
    found = estimate(serving).aggregate_tok_s
    assert found.low < together < found.high


def test_one_host_has_no_link_in_its_speed() -> None:
    assert estimate(replace(ONE, link=ETHERNET)) == estimate(ONE)
    assert hosts.count_crossings(8, ONE) == hosts.Crossings()


@pytest.mark.parametrize(
    ("serving", "hops", "exchanging"),
    [
        (PIPELINE, 2, 1),
        (replace(PIPELINE, stages=4, hosts=4), 4, 1),
        # Two stages in each host: a crossing in the middle, and the way back.
        (replace(PIPELINE, tensor_parallel=4, stages=4), 2, 1),
        (TENSOR, 0, 2),
        (WIDE, 0, 2),
        (replace(TENSOR, stages=2, hosts=4), 2, 2),
    ],
)
def test_what_crosses_hosts_follows_from_the_layout(
    serving: throughput.Serving, hops: int, exchanging: int
) -> None:
    assert hosts.count_crossings(8, serving) == hosts.Crossings(hops, exchanging)


def test_processors_share_the_work_and_pay_for_every_layer() -> None:
    cpu = throughput.Cpu(sockets=2, cores=96, bandwidth_gb_s=600)
    machine = throughput.Machine(cpu=cpu)
    one = throughput.Serving("vllm", throughput.find_weight_format("int4"))
    alone = throughput.estimate_speed(MODEL, machine, one)
    both = hosts.divide_over_hosts(alone, MODEL, replace(one, hosts=2, link=ETHERNET))
    assert alone.decode_tok_s.expected < both.decode_tok_s.expected
    assert both.decode_tok_s.expected < 2 * alone.decode_tok_s.expected
    assert both.single_ttft_s.expected < alone.single_ttft_s.expected
    assert hosts.divide_over_hosts(alone, MODEL, one) is alone


@pytest.mark.parametrize(
    ("facts", "kind", "gb_s", "assumed"),
    [
        (
            {"group": {"link": {"kind": "roce", "speed_bits_per_s": 4e11, "count": 8}}},
            "roce",
            400.0,
            None,
        ),
        (
            {"group": {"link": {"kind": "infiniband", "speed_bits_per_s": None, "count": 2}}},
            "infiniband",
            25.0,
            "a port of the link between the hosts: 100 Gbit/s InfiniBand",
        ),
        (
            {
                "network": {
                    "rdma": [port(f"mlx5_{n}", "InfiniBand", "ACTIVE", 400) for n in range(8)]
                }
            },
            "infiniband",
            400.0,
            None,
        ),
        (
            {
                "network": {
                    "rdma": [
                        port("mlx5_0", "Ethernet", "ACTIVE", 200),
                        port("mlx5_1", "Ethernet", "DOWN", 200),
                    ]
                }
            },
            "roce",
            25.0,
            None,
        ),
        (
            {"nics": [{"speed_bits_per_s": 1e10}, {"speed_bits_per_s": 1e11}]},
            "ethernet",
            12.5,
            "the hosts are joined by one port of 100 Gbit/s Ethernet",
        ),
        (
            {"network": {"interfaces": [{"name": "eth0", "speed_bits_per_s": None}]}},
            "ethernet",
            1.25,
            "a port of the link between the hosts: 10 Gbit/s Ethernet",
        ),
    ],
)
def test_the_link_is_what_the_facts_say_and_else_assumed(
    facts: dict[str, Any], kind: str, gb_s: float, assumed: str | None
) -> None:
    machine = gpu_facts()
    network = {**machine["network"], **facts.pop("network", {})}
    link, said = links.find_link(
        read_host({**machine, **facts, "network": network}, load_catalogue())
    )
    assert (link.kind, link.gb_s) == (kind, gb_s)
    assert said == assumed
