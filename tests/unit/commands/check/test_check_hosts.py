"""`check` of hosts that serve one model together: planned, priced and shown as one target."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import closed_form
import pytest
from click.testing import CliRunner

from kimi_prov.cli import cli
from kimi_prov.errors import UserError
from kimi_prov.show.report import group_targets

SPECS = Path(__file__).parents[4] / "inventories" / "specs"
SHEET = SPECS / "quote-2x-8x-h100.yml"


def check(*arguments: object) -> str:
    ran = CliRunner().invoke(cli, ["check", *map(str, arguments)])
    assert ran.exit_code in (0, 3), ran.output
    return ran.stdout


def target(*arguments: object) -> dict[str, Any]:
    document = json.loads(check(*arguments, "--format", "json"))
    closed_form.validate(document, "check")
    found: dict[str, Any] = document["targets"][0]
    return found


def sheet(tmp_path: Path, *lines: str, without: tuple[str, ...] = ()) -> Path:
    kept = [
        line
        for line in SHEET.read_text(encoding="utf-8").splitlines()
        if not line.startswith(without or ("#",))
    ]
    path = tmp_path / "sheet.yml"
    path.write_text("\n".join([*kept, *lines, ""]), encoding="utf-8")
    return path


def test_two_small_machines_stand_beside_a_large_one() -> None:
    said = check(SHEET, SPECS / "quote-8x-h200.yml", "--format", "markdown")
    assert "2 x 8 H100 SXM 80GB" in said
    assert "8 x H200 SXM" in said
    assert "| Hosts that serve together | 1 | 2, joined by 8 x 400 Gbit/s InfiniBand |" in said


@pytest.mark.parametrize("form", ["text", "html"])
def test_every_form_names_the_hosts(form: str) -> None:
    said = " ".join(check(SHEET, "--format", form).split())
    assert "2 x 8 H100 SXM 80GB" in said
    assert "2, joined by 8 x 400 Gbit/s InfiniBand" in said
    assert "2 hosts, each 2 x Xeon Platinum 8480+" in said
    assert "In each host: GPU 0 to 7, each" in said


def test_the_plan_is_of_all_hosts_and_says_that_its_speed_is_estimated() -> None:
    plan = target(SHEET)["plan"]
    assert plan["parallel"]["hosts"] == 2
    assert (plan["parallel"]["tensor"], plan["parallel"]["pipeline"]) == (8, 2)
    assert "over 2 hosts" in plan["throughput"]["basis"]


def test_a_group_holds_more_than_one_of_its_hosts(tmp_path: Path) -> None:
    alone = target(sheet(tmp_path, without=("hosts", "link")))["plan"]["memory"]
    together = target(SHEET)["plan"]["memory"]
    assert together["kv_tokens_max"] > 4 * alone["kv_tokens_max"]
    assert together["weights_bytes_per_gpu"] < 0.6 * alone["weights_bytes_per_gpu"]


@pytest.mark.parametrize("way", ["purchase_usd", "hourly_usd"])
def test_price_and_power_are_those_of_all_hosts(tmp_path: Path, way: str) -> None:
    line = f"price: {{{way}: 30000}}"
    one = target(sheet(tmp_path, line, without=("hosts", "link")))["cost"]
    two = target(sheet(tmp_path, line))
    cost = two["cost"]
    assert cost["usd_per_hour"] == pytest.approx(2 * one["usd_per_hour"], rel=1e-3)
    for key in ("power_kw", "usual_rent_usd_per_hour"):
        assert cost[key] == pytest.approx(2 * one[key])
    notes = {row["what"]: row["value"] for row in two["assumptions"]}
    assert notes["Hosts"] == "2 that serve one model together, each $30,000.00"


def test_the_price_says_what_one_host_costs(tmp_path: Path) -> None:
    said = check(sheet(tmp_path, "price: {purchase_usd: 250000}"))
    assert "$500k to buy (2 x $250k)" in said or "$500,000 to buy (2 x $250,000)" in said


def test_an_option_wins_over_the_sheet() -> None:
    assert target(SHEET, "--hosts-per-model", "4")["plan"]["parallel"]["hosts"] == 4
    assert target(SPECS / "quote-8x-h200.yml")["plan"]["parallel"]["hosts"] == 1


def test_a_number_of_hosts_that_is_none_names_the_option() -> None:
    ran = CliRunner().invoke(cli, ["check", str(SHEET), "--hosts-per-model", "many"])
    assert isinstance(ran.exception, UserError)
    assert ran.exception.message.startswith("--hosts-per-model: ")
    assert "from 1 to 64" in ran.exception.message


def test_a_load_is_carried_by_groups() -> None:
    said = " ".join(check(SHEET, "--users", "4000", "--tpot-ms", "60").split())
    assert re.search(r"\d+ groups of 2 machines( \(.*?\))? like quote-2x-8x-h100", said)


def test_ethernet_is_slower_and_a_link_that_nobody_told_is_assumed(tmp_path: Path) -> None:
    slow = target(sheet(tmp_path, "link: 10 GbE", without=("link",)))["plan"]["throughput"]
    fast = target(SHEET)["plan"]["throughput"]
    assert slow["prefill_tok_s"]["expected"] < fast["prefill_tok_s"]["expected"]
    unknown = target(sheet(tmp_path, without=("link",)))["plan"]["throughput"]
    assert "10 Gbit/s Ethernet" in unknown["assumed"]


def plans() -> dict[str, dict[str, Any]]:
    members = [{"host": "a", "rank": 0}, {"host": "b", "rank": 1}]
    row = {"id": "disk.space", "severity": "blocker", "observed": "1 GiB"}
    return {
        "a": {"group": {"name": "pair", "rank": 0, "members": members}, "findings": [row]},
        "b": {
            "group": {"name": "pair", "rank": 1, "members": members},
            "findings": [row, {**row, "observed": "2 GiB"}, {**row, "severity": "pass"}],
        },
        "c": {"group": None, "findings": []},
    }


def test_the_hosts_of_an_inventory_that_serve_together_are_one_target() -> None:
    found = group_targets.join_groups(plans())
    assert list(found) == ["pair", "c"]
    assert group_targets.find_head("pair", found["pair"]) == "a"
    assert group_targets.find_head("c", found["c"]) == "c"
    assert [row["observed"] for row in found["pair"]["findings"]] == ["1 GiB", "b: 2 GiB"]


def test_a_host_whose_head_was_not_reached_stands_for_itself() -> None:
    left = {host: plan for host, plan in plans().items() if host != "a"}
    found = group_targets.join_groups(left)
    assert list(found) == ["b", "c"]
    assert group_targets.find_head("b", found["b"]) == "b"


def found(*arguments: object) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in target(*arguments)["findings"]}


def test_a_layout_that_ran_elsewhere_is_told_with_its_source() -> None:
    rows = found(SHEET)
    assert rows["group.proven"]["severity"] == "info"
    assert "recipes/pull/395" in rows["group.proven"]["source"]
    assert "group.unproven" not in rows


def test_what_it_wrote_there_is_told(tmp_path: Path) -> None:
    rows = found(sheet(tmp_path, "hosts: 4", without=("hosts",)), "--model", "kimi-k2.6")
    assert "90 tokens/s alone, 335 of 8 together" in rows["group.proven"]["observed"]


def test_a_layout_that_nobody_told_of_is_a_warning_with_the_nearest(tmp_path: Path) -> None:
    rows = found(sheet(tmp_path, "gpus: 8x H200", without=("gpus",)))
    assert rows["group.unproven"]["severity"] == "warning"
    observed = rows["group.unproven"]["observed"]
    assert observed.startswith("TP8 PP2 over 2 hosts with H200 SXM, kimi-k2.5 in int4; the nearest")
    assert "group.proven" not in rows


def test_one_host_is_no_layout_over_several() -> None:
    assert not {"group.proven", "group.unproven"} & set(found(SPECS / "quote-8x-h200.yml"))


@pytest.mark.parametrize("link", ["8x NDR", "2x RoCE 200 Gbit/s"])
def test_a_sheet_with_rdma_has_no_warning_of_tcp(tmp_path: Path, link: str) -> None:
    assert "group.rdma" not in found(sheet(tmp_path, f"link: {link}", without=("link",)))


def test_ethernet_between_hosts_is_a_warning_with_what_it_costs(tmp_path: Path) -> None:
    rows = found(sheet(tmp_path, "link: 100 GbE", without=("link",)))
    assert rows["group.rdma"]["severity"] == "warning"
    assert "long prompts do" in rows["group.rdma"]["observed"]
