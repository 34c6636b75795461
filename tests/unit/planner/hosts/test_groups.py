"""One model over several hosts: what each of them is planned to run."""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Any

import closed_form
import pytest
from plan_inputs import HUGE, LAB_SETTINGS, argument, blocked_by, found, gpu_facts, lab_facts
from plan_inputs import plan as lab_plan

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.errors import UserError
from kimi_prov.on_host.endpoint import firewall
from kimi_prov.planner.hosts import groups
from kimi_prov.planner.plan import make_plan
from kimi_prov.planner.settings.parsing import parse_settings

if TYPE_CHECKING:
    from pathlib import Path

PAIR = {"kimi_hosts_per_model": 2}


def addressed(facts: dict[str, Any], *addresses: str) -> dict[str, Any]:
    """The same machine with these addresses, on an interface of the name of the last byte."""
    other = copy.deepcopy(facts)
    other["network"]["addresses"] = list(addresses)
    other["network"]["interfaces"] = [
        {"name": f"lan{place}", "addresses": [f"{address}/24"]}
        for place, address in enumerate(addresses)
    ]
    return other


def plans(
    *facts: dict[str, Any],
    own: tuple[dict[str, Any], ...] = ({}, {}, {}),
    reached: tuple[str | None, ...] = (None, None, None),
    **settings: Any,
) -> list[dict[str, Any]]:
    """The plan of each host of a group; `own`: what its own host_vars say."""
    hosts = ("alpha", "beta", "gamma")[: len(facts)]
    common = {**LAB_SETTINGS, "kimi_hosts_per_model": len(facts)}
    common |= {f"kimi_{name}": value for name, value in settings.items()}
    parsed = [parse_settings(common | own[n], host=name) for n, name in enumerate(hosts)]
    given = tuple(
        groups.HostInput(
            name,
            facts[n],
            groups.select_shared_settings(parsed[n]),
            reached[n],
            parsed[n].group_address,
        )
        for n, name in enumerate(hosts)
    )
    made = [
        make_plan(facts[n], parsed[n], load_catalogue(), groups.GroupHosts("pair", name, given))
        for n, name in enumerate(hosts)
    ]
    for plan in made:
        closed_form.validate(plan, "plan")
    return made


def two(facts: dict[str, Any] | None = None, **given: Any) -> list[dict[str, Any]]:
    base = facts or lab_facts()
    return plans(addressed(base, "10.1.0.1"), addressed(base, "10.1.0.2"), **given)


def test_processors_share_the_model_by_tensor_parallelism() -> None:
    head, rank = two()
    assert blocked_by(head) == blocked_by(rank) == set()
    assert head["parallel"] == rank["parallel"]
    assert (head["parallel"]["hosts"], head["parallel"]["tensor"]) == (2, 2)
    for number, plan in enumerate((head, rank)):
        assert argument(plan, "--nnodes") == "2"
        assert argument(plan, "--node-rank") == str(number)
        assert argument(plan, "--master-addr") == "10.1.0.1"
        assert argument(plan, "--master-port") == "29501"
        assert argument(plan, "--tensor-parallel-size") == "2"
        assert argument(plan, "--distributed-executor-backend") == "mp"
        environment = plan["instances"][0]["env"]
        assert environment["VLLM_HOST_IP"] == f"10.1.0.{number + 1}"
        assert environment["GLOO_SOCKET_IFNAME"] == "lan0"
        assert environment["VLLM_PORT"] == "29510"
        assert plan["group"]["interface"] == "lan0"
    assert head["group"]["peers"] == ["10.1.0.2"]
    assert rank["group"]["peers"] == ["10.1.0.1"]
    assert [row["host"] for row in rank["group"]["members"]] == ["alpha", "beta"]
    assert head["group"]["digest"] == rank["group"]["digest"]


def test_the_head_alone_has_ports_for_clients() -> None:
    head, rank = two(web_ui=True, allowed_networks=["10.0.0.0/8"])
    assert head["instances"][0]["unit"] == "kimi-serve@0.service"
    assert "--headless" not in head["instances"][0]["argv"]
    assert argument(head, "--port") == "8001"
    assert head["proxy"]["backends"] == [{"index": 0, "port": 8001}]
    assert head["web"] is not None
    assert rank["instances"][0]["unit"] == "kimi-rank.service"
    assert "--headless" in rank["instances"][0]["argv"]
    assert "--port" not in rank["instances"][0]["argv"]
    assert rank["instances"][0]["port"] is None
    assert rank["proxy"]["backends"] == []
    assert rank["web"] is None


def test_each_host_shows_its_own_metrics_and_a_rank_nothing_else(tmp_path: Path) -> None:
    key = tmp_path / "metrics-key"
    key.write_text("a-key-of-the-site-0123\n")
    head, rank = two(
        metrics=True,
        metrics_networks=["10.9.0.5/32"],
        metrics_key_file=str(key),
        allowed_networks=["10.0.0.0/8"],
        web_ui=True,
    )
    assert blocked_by(head) == blocked_by(rank) == set()
    for plan in (head, rank):
        assert plan["metrics"]["port"] == plan["firewall"]["metrics"]["port"] == 9443
        assert plan["metrics"]["key_given"]
        assert plan["control"]["metrics_key_file"] == str(key)
        assert plan["firewall"]["metrics"]["ipv4"] == ["10.9.0.5/32"]
        assert "prometheus-node-exporter" in plan["packages"]
    assert head["firewall"]["ports"] == [8000, 8443, 9443]
    assert rank["firewall"]["ports"] == [9443]
    assert rank["proxy"]["backends"] == []
    assert rank["proxy"]["tls"]["mode"] == "self-signed"


def test_a_rank_whose_metrics_port_is_taken_is_refused() -> None:
    facts = lab_facts()
    facts["network"]["listening"] = [{"port": 9443, "process": "other", "unit": "other.service"}]
    rank = two(facts, metrics=True)[1]
    assert "9443 by other" in found(rank, "port.taken")[0]["observed"]
    assert "port.taken" not in {row["id"] for row in two(facts)[1]["findings"]}


def test_a_head_that_watches_itself_is_let_in_by_its_ranks() -> None:
    """Where the head's own variables alone say so too: a rank has no Prometheus of its own."""
    for own in ({"kimi_monitor_local": True}, {"kimi_monitor_local": False}):
        watches = own["kimi_monitor_local"]
        head, rank = two(
            metrics=True, metrics_networks=["10.9.0.5/32"], own=(own, {"kimi_monitor_local": True})
        )
        assert blocked_by(head) == blocked_by(rank) == set()
        assert (head["metrics"]["monitor_local"], rank["metrics"]["monitor_local"]) == (
            watches,
            False,
        )
        let_in = ["10.9.0.5/32", *(["10.1.0.1/32"] if watches else [])]
        assert rank["metrics"]["allowed_networks"] == let_in
        assert rank["firewall"]["metrics"]["ipv4"] == let_in
        assert head["metrics"]["allowed_networks"] == ["10.9.0.5/32"]


@pytest.mark.parametrize("manager", ["ufw", "firewalld"])
def test_a_rank_behind_a_firewall_manager_lets_in_who_watches_and_its_head(manager: str) -> None:
    facts = lab_facts()
    facts["firewall"][manager] = "active"
    head, rank = two(
        facts,
        metrics=True,
        metrics_networks=["10.9.0.5/32"],
        allowed_networks=["10.0.0.0/8"],
        own=({"kimi_monitor_local": True}, {}),
    )
    ports = ("29500-29501", "29510-29541")
    of_group = {(address, port) for address in ("10.1.0.1", "10.1.0.2") for port in ports}
    watches = {("10.9.0.5/32", "9443")}
    assert let_in(head) == {
        *(row for row in of_group if row[0] == "10.1.0.2"),
        *watches,
        ("10.0.0.0/8", "8000"),
    }
    assert let_in(rank) == {
        *(row for row in of_group if row[0] == "10.1.0.1"),
        *watches,
        ("10.1.0.1/32", "9443"),
    }


def let_in(plan: dict[str, Any]) -> set[tuple[str, str]]:
    """Whom the manager of a machine lets in, and where."""
    rules = firewall.build_rules(plan["firewall"], ["public"])
    assert {row["manager"] for row in rules} == {plan["firewall"]["manager"]}
    if plan["firewall"]["manager"] == "ufw":
        return {(row["from"], row["port"].replace(":", "-")) for row in rules}
    rule = re.compile(r'source address="([^"]+)" port port="([^"]+)" protocol="tcp" accept$')
    found = [rule.search(row["rule"]) for row in rules]
    return {(one[1], one[2]) for one in found if one} | {("", "") for one in found if not one}


def test_each_host_holds_its_share_of_the_weights() -> None:
    def weights(plan: dict[str, Any]) -> int:
        return sum(row["bytes"] for row in plan["memory"]["host_parts"] if row["kind"] == "weights")

    alone = lab_plan()
    assert alone["group"] is None
    assert weights(two()[0]) < 0.7 * weights(alone)


def test_gpus_have_tensor_parallelism_inside_and_stages_across() -> None:
    """TP8 PP2 over 2x 8 H100: the layout that served K2.5 in INT4 with vLLM 0.18.0."""
    head, rank = two(gpu_facts(8, 81559), **HUGE)
    assert blocked_by(head) == set()
    assert head["parallel"].pop("reason")
    assert head["parallel"] == {
        "hosts": 2,
        "tensor": 8,
        "pipeline": 2,
        "data": 1,
        "decode_context": 1,
        "expert": False,
    }
    assert argument(head, "--pipeline-parallel-size") == "2"
    assert "--distributed-executor-backend" not in head["instances"][0]["argv"]
    assert rank["instances"][0]["gpus"] == list(range(8))
    alone = lab_plan(gpu_facts(8, 81559), **HUGE)
    assert head["memory"]["kv_tokens_max"] > 4 * alone["memory"]["kv_tokens_max"]
    assert head["model"]["context"] == 262144


def test_hosts_with_one_gpu_each_have_a_stage_each() -> None:
    head, rank = two(gpu_facts(1), engine_version="0.25.1")
    assert blocked_by(head) == blocked_by(rank) == set()
    assert (head["parallel"]["tensor"], head["parallel"]["pipeline"]) == (1, 2)
    assert head["group"]["digest"] == rank["group"]["digest"]
    assert [plan["driver"]["action"] for plan in (head, rank)] == ["none", "none"]


def test_the_inventory_may_name_another_layout() -> None:
    wide = two(gpu_facts(), engine_args={"data-parallel-size": 16}, **HUGE)[0]
    assert blocked_by(wide) == set()
    assert (wide["parallel"]["data"], wide["parallel"]["tensor"]) == (16, 1)
    tensor = two(gpu_facts(), engine_args={"tensor-parallel-size": 4}, **HUGE)[0]
    assert tensor["parallel"]["pipeline"] == 4
    uneven = two(
        gpu_facts(),
        engine_args={"tensor-parallel-size": 4, "pipeline-parallel-size": 2},
        **HUGE,
    )[0]
    assert "group.layout" in blocked_by(uneven)
    assert "8 ranks, 16 GPUs" in found(uneven, "group.layout")[0]["observed"]
    ray = two(gpu_facts(), engine_args={"distributed-executor-backend": "ray"}, **HUGE)[0]
    assert "group.ray" in blocked_by(ray)


def test_what_a_group_needs_is_not_to_be_set_as_a_flag() -> None:
    head = two(engine_args={"nnodes": 4})[0]
    assert argument(head, "--nnodes") == "2"
    assert found(head, "engine_args.reserved")


def test_ktransformers_does_not_span_hosts() -> None:
    head = two(gpu_facts(2), engine="ktransformers", **HUGE)[0]
    assert "group.engine" in blocked_by(head)


def test_hosts_that_are_not_alike_are_told_with_what_differs() -> None:
    small, large = gpu_facts(8, 81559), gpu_facts(8)
    for card in small["gpus"]:
        card["model"] = "NVIDIA H100 80GB HBM3"
    head, rank = plans(addressed(small, "10.1.0.1"), addressed(large, "10.1.0.2"), **HUGE)
    (row,) = [row for row in found(head, "group.unlike") if row["severity"] == "blocker"]
    assert row["observed"] == ("GPUs: alpha: NVIDIA H100 80GB HBM3 (8); beta: NVIDIA H200 (8)")
    # The least of them counts for both.
    assert head["memory"]["gpu_bytes"] == rank["memory"]["gpu_bytes"]
    older = gpu_facts(driver="575.57.08")
    head, _ = plans(addressed(gpu_facts(), "10.1.0.1"), addressed(older, "10.1.0.2"), **HUGE)
    assert "575.57.08" in found(head, "group.unlike")[0]["observed"]


def test_a_setting_of_one_host_alone_is_told() -> None:
    head, rank = two(own=({}, {"kimi_concurrency": 4}))
    for plan in (head, rank):
        (row,) = found(plan, "group.settings")
        assert row["severity"] == "blocker"
        assert "kimi_concurrency" in row["required"]
        assert "beta: 4" in row["observed"]


@pytest.mark.parametrize(
    ("addresses", "reached", "own", "chosen"),
    [
        (("10.1.0.1",), None, {}, "10.1.0.1"),
        (("10.1.0.1", "192.168.7.1"), "192.168.7.1", {}, "192.168.7.1"),
        (("10.1.0.1", "192.168.7.1"), "gpu1.example.com", {}, None),
        (("10.1.0.1", "192.168.7.1"), "10.1.0.1", {"kimi_group_address": "192.168.7.1"}, None),
        (("10.1.0.1", "fd00::1"), None, {}, "10.1.0.1"),
    ],
)
def test_the_address_is_the_one_that_is_set_or_known(
    addresses: tuple[str, ...], reached: str | None, own: dict[str, Any], chosen: str | None
) -> None:
    chosen = own.get("kimi_group_address", chosen)
    head, _ = plans(
        addressed(lab_facts(), *addresses),
        addressed(lab_facts(), "10.1.0.2"),
        own=(own, {}),
        reached=(reached, None),
    )
    assert head["group"]["address"] == chosen


def test_a_sheet_is_planned_as_the_head_of_equal_hosts() -> None:
    plan = make_plan(
        gpu_facts(), parse_settings(LAB_SETTINGS | PAIR, host="quote"), load_catalogue()
    )
    assert plan["group"]["size"] == 2
    assert plan["group"]["rank"] == 0


def test_the_head_alone_rests_and_is_woken_and_a_rank_tells_what_stays_taken() -> None:
    head, rank = two(idle_stop="30m", wake="hold", ram_disk="always")
    assert (head["rest"]["idle"]["after_s"], head["rest"]["wake"]) == (1800, "hold")
    assert (rank["rest"]["idle"], rank["rest"]["wake"]) == (None, "off")
    assert not found(head, "rest.memory")
    (row,) = found(rank, "rest.memory")
    assert "alpha, the head of group pair," in row["observed"]
    # The head's own setting is the group's; a rank's is none.
    head, rank = two(own=({"kimi_idle_stop": "30m"}, {}), ram_disk="always")
    assert (head["rest"]["idle"]["after_s"], rank["rest"]["idle"]) == (1800, None)
    assert found(rank, "rest.memory")
    head, rank = two(own=({}, {"kimi_idle_stop": "30m"}), ram_disk="always")
    assert (head["rest"]["idle"], rank["rest"]["idle"]) == (None, None)
    assert not found(rank, "rest.memory")
    _, rank = two(idle_stop="30m", ram_disk="always", stopped_memory="keep")
    assert "stopped or asleep" in found(rank, "rest.memory")[0]["observed"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"idle_action": "poweroff"}, "kimi_idle_action: poweroff: of hosts that serve one model"),
        ({"idle_action": "hook", "idle_hook": "/bin/true"}, "the head alone would do it"),
        ({"hour_usd": 26}, "the head alone counts its hours"),
    ],
)
def test_what_the_head_alone_would_do_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        two(idle_stop="30m", **settings)


def test_three_hosts_share_no_heads_that_three_does_not_divide() -> None:
    base = lab_facts()
    many = [addressed(base, f"10.1.0.{n}") for n in (1, 2, 3)]
    assert "gpu.divisible" in blocked_by(plans(*many)[0])
