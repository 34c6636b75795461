"""`kimi-prov check` with a load: how many machines carry it, and which ones will do."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import closed_form
import pytest
from click.testing import CliRunner

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.cli import cli
from kimi_prov.errors import UserError
from kimi_prov.facts import offers

SPECS = Path(__file__).resolve().parents[4] / "inventories" / "specs"
H200, XEON = SPECS / "quote-8x-h200.yml", SPECS / "quote-xeon-6980p.yml"


def checked(*words: object) -> dict[str, Any]:
    """The document of a check that ends with 0, held against its schema."""
    done = CliRunner().invoke(
        cli, ["check", *map(str, words), "--format", "json"], standalone_mode=False
    )
    assert done.exception is None, done.exception
    assert done.return_value == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    closed_form.validate(found, "check")
    return found


def sized(*words: object) -> dict[str, Any]:
    (target,) = checked(*words)["targets"]
    found: dict[str, Any] = target["sizing"]
    return found


def refused(*words: object) -> str:
    done = CliRunner().invoke(cli, ["check", *map(str, words)], standalone_mode=False)
    assert isinstance(done.exception, UserError), done.output
    assert done.exception.exit_code == 2
    return str(done.exception)


def test_more_users_take_more_machines_and_a_tighter_limit_takes_more_still() -> None:
    few = sized(H200, "--users", 64)
    assert (few["machines"]["expected"], few["bound_by"]) == (1, "users")
    assert few["requests_a_machine"] == 64
    many = sized(H200, "--users", 2000)
    assert many["machines"]["expected"] == -(-2000 // many["most_requests"])
    limited = sized(H200, "--users", 64, "--tpot-ms", 40)
    assert limited["machines"]["expected"] > few["machines"]["expected"]
    assert limited["bound_by"] == "tpot"
    assert limited["tpot_ms"]["expected"] <= 40
    machines = limited["machines"]
    assert machines["low"] <= machines["expected"] <= machines["high"]
    assert machines["low"] < machines["high"]


def test_tokens_a_day_bind_and_shorter_prompts_take_fewer_machines() -> None:
    daily = ("--tokens-per-day", 1e9)
    found = sized(H200, *daily)
    assert found["bound_by"] == "tokens_per_day"
    short = sized(H200, *daily, "--input-tokens", 1024)
    assert short["machines"]["expected"] < found["machines"]["expected"]


def test_tokens_a_day_make_the_use_and_so_the_cost_of_a_token() -> None:
    daily = ("--tokens-per-day", 1e6)
    found = checked(SPECS / "reference-004.yml", *daily)
    (target,), (entry,) = found["targets"], found["answer"]["ranking"]
    # $26 an hour, one machine, a million tokens a day: 24 hours of it for each million.
    assert entry["usd_per_million_output_tokens"]["expected"] == pytest.approx(624, rel=1e-3)
    cost = target["cost"]
    assert cost["usd_per_million_output_tokens"]["expected"] == pytest.approx(624, rel=1e-3)
    given = cost["utilisation"] * cost["output_tok_s_at_full_use"]["expected"] * 86_400
    assert given == pytest.approx(1e6, rel=1e-3)
    (use,) = (row for row in target["assumptions"] if row["what"] == "Use")
    assert use["source"] == "the load's tokens a day"
    own = checked(SPECS / "reference-004.yml", *daily, "--utilisation", 0.5)
    assert own["targets"][0]["cost"]["utilisation"] == 0.5


def test_more_tokens_a_day_than_the_requests_in_flight_give_is_said() -> None:
    found = checked(H200, "--users", 4, "--tokens-per-day", 1e8)["answer"]
    assert found["recommended"] is None
    (entry,) = found["ranking"]
    assert entry["lacks"][0].startswith("100,000,000 output tokens a day (4 requests in flight")
    more = checked(H200, "--users", 8, "--tokens-per-day", 6e7)["targets"][0]
    machines = more["sizing"]["machines"]["expected"]
    rate = more["cost"]["output_tok_s_at_full_use"]["expected"]
    assert machines * rate * 86_400 >= 6e7
    assert more["plan"]["throughput"]["concurrency"] == -(-8 // machines)


def test_the_machine_is_planned_for_its_share_of_the_load() -> None:
    (target,) = checked(H200, "--users", 100)["targets"]
    share = target["sizing"]["requests_a_machine"]
    assert share == 50
    assert target["plan"]["throughput"]["concurrency"] == share
    assert target["plan"]["throughput"]["input_tokens"] == 8192


def test_a_limit_that_cannot_be_met_is_named_and_still_ends_with_0() -> None:
    found = checked(H200, XEON, "--users", 4, "--tpot-ms", 100)
    first, second = found["answer"]["ranking"]
    assert (first["target"], second["machines"]) == ("quote-8x-h200", None)
    assert second["serves"] is True
    assert second["lacks"][0].startswith("100 ms between tokens (it takes ")
    none = checked(XEON, "--users", 4, "--ttft-s", 1)["answer"]
    assert none["recommended"] is None
    assert "first token within 1 s" in none["sentence"]


def test_a_request_that_no_context_holds_is_carried_by_nothing() -> None:
    found = checked(SPECS / "quote-xeon-8468-768gb.yml", "--users", 1, "--input-tokens", 200_000)
    assert found["targets"][0]["sizing"]["bound_by"] == "nothing serves it"
    assert "a context of 201,024 tokens" in found["answer"]["ranking"][0]["lacks"][0]


def test_a_file_says_what_options_say_and_options_win(tmp_path: Path) -> None:
    load = tmp_path / "load.yml"
    load.write_text(
        "schema: kimi-prov/load/v1\nname: a team\nusers: 200\ntpot_ms: 50\noutput_tokens: 512\n"
    )
    found = checked(H200, "--load", load, "--users", 64)
    assert found["load"]["users"] == {"value": 64, "assumed": False}
    assert found["load"]["tpot_ms"] == {"value": 50, "assumed": False}
    assert found["load"]["input_tokens"] == {"value": 8192, "assumed": True}
    by_options = ("--users", 64, "--tpot-ms", 50, "--output-tokens", 512)
    assert found == checked(H200, *by_options)
    assert checked(H200)["load"] is None


def test_every_fault_of_a_load_file_is_told_at_once(tmp_path: Path) -> None:
    load = tmp_path / "load.yml"
    load.write_text("schema: kimi-prov/load/v1\nuser: 3\ntpot_ms: fast\nttft_s: -1\n")
    said = refused(H200, "--load", load)
    assert f"{load}:2: user: unknown key; did you mean 'users'?" in said
    assert f"{load}:3: tpot_ms: wanted a number" in said
    assert f"{load}:4: ttft_s: wanted 0.001 to 86400" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("users: 3\n", "key 'schema' is missing"),
        ("schema: kimi-prov/spec/v1\nusers: 3\n", "wanted kimi-prov/load/v1"),
        ("schema: kimi-prov/load/v1\nname: none\n", "requests nothing"),
        ("schema: kimi-prov/load/v1\nusers: 2.5\n", "wanted a whole number"),
        ("- 3\n", "wanted a mapping"),
        ("{", "not YAML"),
    ],
)
def test_what_is_no_load_is_refused(tmp_path: Path, text: str, said: str) -> None:
    load = tmp_path / "load.yml"
    load.write_text(text)
    assert said in refused(H200, "--load", load)


def test_users_and_a_concurrency_exclude_each_other(tmp_path: Path) -> None:
    assert "exclude each other" in refused(H200, "--users", 3, "--concurrency", 4)
    load = tmp_path / "load.json"
    load.write_text('{"schema": "kimi-prov/load/v1", "users": 3}')
    assert "exclude each other" in refused(H200, "--load", load, "--concurrency", 4)
    assert checked(H200, "--concurrency", 4, "--ttft-s", 9)["load"]["users"] == {
        "value": 4,
        "assumed": True,
    }
    assert not os.path.lexists(tmp_path / "none")
    assert "no such file" in refused(H200, "--load", tmp_path / "none").lower()


def test_the_catalogue_suggests_the_least_machine_of_each_kind_and_why() -> None:
    found = checked("--suggest")
    kinds = {target["suggestion"]["kind"] for target in found["targets"]}
    assert kinds == {"gpu", "hybrid", "cpu"}
    for target in found["targets"]:
        assert target["facts"]["origin"]["kind"] == "suggested"
        assert target["findings"] == target["plan"]["findings"]
    smaller = [target["suggestion"]["smaller"] for target in found["targets"]]
    assert any(one and one["why"] and one["name"] for one in smaller)
    assert found["answer"]["recommended"]


def test_what_is_suggested_carries_the_load_and_stands_beside_the_quotes() -> None:
    found = checked(H200, "--suggest", "--users", 300, "--tpot-ms", 20)
    quoted, *made = found["targets"]
    assert "suggestion" not in quoted
    assert made
    assert all(target["sizing"]["machines"]["expected"] for target in made)
    assert len(found["answer"]["ranking"]) == len(found["targets"])


@pytest.fixture
def few_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalogue of a machine with GPUs, one without and a hybrid: to judge all takes seconds."""
    ladders = offers.list_ladders(load_catalogue())
    few = {ladder[0].kind: ladder for ladder in ladders}
    monkeypatch.setattr(offers, "list_ladders", lambda _: list(few.values()))


@pytest.mark.usefixtures("few_machines")
def test_what_no_machine_of_the_catalogue_does_is_said() -> None:
    assert "no machine that the catalogue's parts make" in refused(
        "--suggest", "--users", 4, "--tpot-ms", 0.5
    )


@pytest.mark.usefixtures("few_machines")
def test_what_no_machine_does_keeps_the_quotes_report() -> None:
    found = checked(H200, "--suggest", "--users", 4, "--tpot-ms", 0.5)
    (quoted,) = found["targets"]
    assert quoted["sizing"]["machines"]["expected"] is None


def sheet(folder: Path, **parts: str) -> Path:
    """A sheet of its own, one part a line."""
    parts = {"disks": "[{kind: nvme, size_gb: 7680, count: 2}]", **parts}
    lines = ["schema: kimi-prov/spec/v1", *(f"{key}: {value}" for key, value in parts.items())]
    file = folder / "sheet.yml"
    file.write_text("\n".join(lines) + "\n")
    return file


def test_a_setting_of_the_firmware_that_decides_is_told_with_both_speeds(tmp_path: Path) -> None:
    """A step that six nodes share waits for more links than one that two share."""
    cpu = '{model: "Xeon 6980P", sockets: 2}'
    found = checked(
        sheet(tmp_path, cpu=cpu, memory="{dimms: 24, dimm_gb: 64, speed_mt_s: 6400}"),
        *("--users", 1),
    )
    (target,) = found["targets"]
    (way,) = target["ways"]
    assert "one NUMA node for each socket" in way["condition"]
    here = target["plan"]["throughput"]["single_tok_s"]["expected"]
    assert way["single_tok_s"]["expected"] > 1.25 * here
    assert way["condition"] in found["answer"]["sentence"]
    assert f"(as it stands {here:.3g})" in found["answer"]["sentence"]


def test_a_machine_that_something_else_blocks_has_both_speeds_of_the_firmware_too(
    tmp_path: Path,
) -> None:
    """Of its disk, which is too small, nobody learns what the processor can do."""
    cpu, memory = '{model: "Xeon 6980P", sockets: 2}', "{dimms: 24, dimm_gb: 64, speed_mt_s: 6400}"
    small = sheet(tmp_path, cpu=cpu, memory=memory, disks="[{kind: nvme, size_gb: 256}]")
    words = ["check", str(small), "--users", "1", "--format", "json"]
    done = CliRunner().invoke(cli, words, standalone_mode=False)
    assert done.return_value == 3, done.output
    found = json.loads(done.stdout)
    (target,) = found["targets"]
    (way,) = target["ways"]
    assert way["condition"].endswith("once nothing else is in the way")
    assert way["machines"] is None
    here = target["plan"]["throughput"]["single_tok_s"]["expected"]
    assert way["single_tok_s"]["expected"] > 1.25 * here
    assert f"(as it stands {here:.3g})" in found["answer"]["sentence"]


def test_larger_modules_are_told_where_two_on_a_channel_slow_the_memory(tmp_path: Path) -> None:
    cpu = '{model: "EPYC 9654", sockets: 2}'
    double = sheet(tmp_path, cpu=cpu, memory="{dimms: 48, dimm_gb: 32, speed_mt_s: 4800}")
    (target,) = checked(double, "--users", 1)["targets"]
    (way,) = target["ways"]
    assert way["condition"] == "one module of 64 GiB on each memory channel, at 4800 MT/s"
    here = target["plan"]["throughput"]["single_tok_s"]["expected"]
    single = sheet(tmp_path, cpu=cpu, memory="{dimms: 24, dimm_gb: 64, speed_mt_s: 4800}")
    (other,) = checked(single, "--users", 1)["targets"]
    there = other["plan"]["throughput"]["single_tok_s"]["expected"]
    assert way["single_tok_s"]["expected"] == there > here
    assert "ways" not in other


def test_joined_machines_are_told_where_they_are_cheaper(tmp_path: Path) -> None:
    rented = sheet(
        tmp_path,
        cpu='{model: "EPYC 9654", sockets: 2}',
        memory="{total_gb: 2048}",
        gpus='{model: "H100 SXM", count: 8}',
        price="{hourly_usd: 24}",
    )
    found = checked(rented, "--users", 60)
    (target,), (entry,) = found["targets"], found["answer"]["ranking"]
    assert target["sizing"]["most_requests"] < 60
    settings, way = target["ways"]
    assert settings["hosts"] == 1
    assert settings["machines"] < entry["machines"]
    assert "kimi_optimise: throughput" in settings["condition"]
    assert settings["condition"] in found["answer"]["sentence"]
    assert way["hosts"] in (2, 4)
    assert way["usd_per_hour"] == 24 * way["hosts"] * way["machines"] < entry["usd_per_hour"]
    assert way["condition"] in found["answer"]["sentence"]
    # Where one holds them all, none is joined.
    one = checked(rented, "--users", 1, "--kv-dtype", "bf16", "--weights-format", "int4")
    assert "ways" not in one["targets"][0]


def test_a_setting_that_is_given_is_not_tried_otherwise() -> None:
    b200 = SPECS / "quote-8x-b200.yml"
    (way,) = checked(b200, "--users", 20)["targets"][0]["ways"]
    assert way["condition"] == ("the weights nvidia/Kimi-K2.5-NVFP4 (kimi_weights_format: nvfp4)")
    assert "ways" not in checked(b200, "--users", 20, "--weights-format", "int4")["targets"][0]


def test_lanes_that_cards_lack_and_lanes_that_nobody_named_are_conditions(tmp_path: Path) -> None:
    cards = '{{model: "RTX PRO 6000 Blackwell (Server)", count: 8{}}}'
    parts = {"cpu": '{model: "EPYC 9654", sockets: 2}', "memory": "{total_gb: 1536}"}
    (half,) = checked(sheet(tmp_path, gpus=cards.format(", pcie_width: 8"), **parts))["targets"]
    (way,) = half["ways"]
    assert way["condition"].startswith("PCIe 5 x16 for each card")
    here = half["plan"]["throughput"]["ttft_s"]["expected"]
    assert way["ttft_s"]["expected"] < here
    (whole,) = checked(sheet(tmp_path, gpus=cards.format(""), **parts))["targets"]
    assert "ways" not in whole
    assert whole["plan"]["throughput"]["ttft_s"] == way["ttft_s"]
    (lanes,) = (row for row in whole["assumptions"] if row["what"] == "PCIe lanes")
    assert f"{here:g} s in place of" in lanes["value"]
    (named,) = checked(sheet(tmp_path, gpus=cards.format(", pcie_width: 16"), **parts))["targets"]
    assert not [row for row in named["assumptions"] if row["what"] == "PCIe lanes"]
    # A board of another generation is another machine.
    older = cards.format(", pcie_width: 8, pcie_gen: 4")
    (half,) = checked(sheet(tmp_path, gpus=older, **parts))["targets"]
    assert any("PCIe 4 x16" in way["condition"] for way in half["ways"])


def test_people_are_counted_by_the_stated_share_and_exclude_requests() -> None:
    found = checked(H200, "--people", 80)
    assert found["load"]["users"] == {"value": 20, "assumed": True}
    (people,) = (row for row in found["targets"][0]["assumptions"] if row["what"] == "People")
    assert people["value"].startswith("25% of 80 have a request in flight")
    assert "hosn.om" in people["source"]
    for other in ("--users", "--concurrency"):
        assert "exclude each other" in refused(H200, "--people", 80, other, 4)


@pytest.mark.parametrize(
    ("speed", "parts"),
    [(6400, ["2 x Xeon 6980P", "1,536 GB of DDR5"]), (8800, ["2 x Xeon 6980P"])],
    ids=["RDIMM", "MRDIMM has no price"],
)
def test_what_processors_and_memory_cost_in_public_stands_beside_an_unknown_price(
    tmp_path: Path, speed: int, parts: list[str]
) -> None:
    file = sheet(
        tmp_path,
        cpu='{model: "Xeon 6980P", sockets: 2}',
        memory=f"{{dimms: 24, dimm_gb: 64, speed_mt_s: {speed}}}",
    )
    (target,) = checked(file)["targets"]
    rows = target["cost"]["usual_parts_usd"]
    assert [row["what"] for row in rows] == parts
    prices = load_catalogue().prices
    for row, name, many in zip(rows, ("Xeon 6980P", "DDR5 RDIMM"), (2, 1536), strict=False):
        price = prices.find_part(name)
        assert price is not None
        assert row["low"] == round(price.low_usd * many) <= row["high"]
    text = CliRunner().invoke(cli, ["check", str(file)], standalone_mode=False).output
    assert "Public price: 2 x Xeon 6980P" in " ".join(text.split())
