"""Signs of failing GPUs, in what a real card said and in the same with other values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gpu_answers import gpu_answer

from kimi_prov.ansible.host_action import complete_findings
from kimi_prov.on_host.probe import gpu_faults, gpu_load, nvidia_smi

RECORDINGS = Path(__file__).resolve().parents[3] / "data" / "recordings"
LINKS = (RECORDINGS / "gpu-metrics" / "nvlink-h100-x2.txt").read_text()
NOTHING = "[N/A]"
START = 1_700_000_000.0


def found(*, growth: dict[str, int] | None = None, **fields: str) -> dict[str, str]:
    """What is observed of one card, by the finding's id."""
    cards = gpu_load.parse(gpu_answer(**fields))
    rows = gpu_faults.list_findings(cards, {0: growth} if growth is not None else {})
    return {row["id"]: row["observed"] for row in complete_findings(rows)}


def test_the_recorded_card_is_well() -> None:
    assert found() == {}
    assert found(growth={"corrected": 0, "replay": 0, "recovery": 0, "crc": 0}) == {}


@pytest.mark.parametrize(
    ("fields", "finding", "words"),
    [
        (
            {
                "remapped_rows__pending": "Yes",
                "remapped_rows__correctable": "1",
                "remapped_rows__uncorrectable": "2",
            },
            "gpu.row_remap_pending",
            "GPU 0: yes (remapped so far: 2 after uncorrectable errors, 1 after corrected errors)",
        ),
        ({"remapped_rows__failure": "Yes"}, "gpu.row_remap_failed", "GPU 0: yes"),
        (
            {"ecc__errors__uncorrected__volatile__total": "3"},
            "gpu.ecc_uncorrected",
            "GPU 0: 3 since the driver was loaded",
        ),
        # nvml.h: 0x20 and 0x40 are heat, 0x80 is the power brake, 0x8 the reason of either.
        (
            {"clocks_event_reasons__active": "0x0000000000000048"},
            "gpu.heat",
            "GPU 0: slowed down now (chip 35 °C, memory 37 °C, 345 of 1980 MHz)",
        ),
        (
            {"clocks_event_reasons__active": "0x20", "temperature__memory": NOTHING},
            "gpu.heat",
            "GPU 0: slowed down now (chip 35 °C, 345 of 1980 MHz)",
        ),
        (
            {"clocks_event_reasons__active": "0x88"},
            "gpu.power_brake",
            "GPU 0: slowed down now, 345 of 1980 MHz",
        ),
        (
            {"clocks_event_reasons__active": "0x8"},
            "gpu.power_brake",
            "GPU 0: slowed down now, 345 of 1980 MHz",
        ),
        ({"pcie__link__width__current": "8"}, "gpu.pcie_width", "GPU 0: x8 of x16"),
    ],
)
def test_a_sign_in_one_reading_is_one_finding(
    fields: dict[str, str], finding: str, words: str
) -> None:
    assert found(**fields) == {finding: words}


@pytest.mark.parametrize(
    "fields",
    [
        # An idle card, the limit of the owner, and a card that never has more lanes.
        {"clocks_event_reasons__active": "0x0000000000000005"},
        {"pcie__link__width__current": "8", "pcie__link__width__max": "8"},
        {"ecc__errors__corrected__aggregate__total": "5000000"},
    ],
)
def test_what_is_usual_is_no_fault(fields: dict[str, str]) -> None:
    assert found(**fields) == {}


@pytest.mark.parametrize("words", [NOTHING, "[Not Supported]", "[Unknown Error]", "", "-1", "1e9"])
def test_what_a_card_does_not_report_is_unknown_and_no_fault(words: str) -> None:
    names = [*gpu_load.COLUMNS[2:], gpu_load.REASONS[0]]
    cards = gpu_load.parse(gpu_answer(**{name.replace(".", "__"): words for name in names}))
    judged = gpu_faults.judge(cards, {})
    assert {fault.name for fault, _, said in judged if said is not None} == set()


def test_the_same_fault_of_several_cards_is_one_finding() -> None:
    lines = [gpu_answer(index=str(index), remapped_rows__pending="Yes") for index in (1, 4)]
    cards = gpu_load.parse("\n".join([gpu_answer(), *lines]))
    (row,) = gpu_faults.list_findings(cards, {})
    assert row["observed"] == "GPU 1: yes; GPU 4: yes"
    assert "nvidia-smi --gpu-reset -i 1,4 " in (row["fix"] or "")


@pytest.mark.parametrize(
    ("counts", "findings"),
    [
        ({"corrected": gpu_faults.MAX_CORRECTED}, {}),
        ({"corrected": 601}, {"gpu.ecc_storm": "GPU 0: 601 in the last hour"}),
        ({"replay": 60, "crc": 6000}, {}),
        (
            {"replay": 61, "crc": 6001, "recovery": 1},
            {
                "gpu.nvlink_errors": "GPU 0: 1 recovery errors, 61 replay errors, "
                "6001 crc errors in the last hour"
            },
        ),
    ],
)
def test_errors_count_by_how_many_there_are_in_an_hour(
    counts: dict[str, int], findings: dict[str, str]
) -> None:
    assert found(growth=counts) == findings


def read_hour(*values: tuple[float, int], links: str = "") -> dict[int, dict[str, int]]:
    """Errors after readings at minutes with so many corrected errors; the state goes by JSON."""
    kept: Any = None
    at = 0.0
    for at, corrected in values:
        line = gpu_answer(ecc__errors__corrected__aggregate__total=str(corrected))
        kept = json.loads(
            json.dumps(
                gpu_faults.add_reading(
                    kept,
                    gpu_load.parse(line),
                    nvidia_smi.parse_link_errors(links),
                    START + at * 60,
                )
            )
        )
        assert len(kept) <= 14
    return gpu_faults.compute_growth(kept, START + at * 60)


def test_only_what_came_within_the_hour_is_counted() -> None:
    assert read_hour((0, 900)) == {}
    assert read_hour((0, 900), (0.5, 905)) == {0: {"corrected": 5}}
    # Two readings a minute for three hours, and one error in each.
    steady = read_hour(*[(half / 2, half) for half in range(360)])
    assert 108 <= steady[0]["corrected"] <= 120
    # A storm of two minutes is over after an hour.
    storm = [(0, 0), (2, 5000), *[(minute, 5000) for minute in range(5, 90, 5)]]
    assert read_hour(*storm[:10])[0]["corrected"] == 5000
    assert read_hour(*storm)[0]["corrected"] == 0


def test_a_counter_that_was_set_back_is_no_storm() -> None:
    assert read_hour((0, 5000), (1, 20), (2, 25)) == {0: {"corrected": 5}}
    assert read_hour((0, 0), (1, 0), links=LINKS)[0] == {
        "corrected": 0,
        "replay": 0,
        "recovery": 0,
        "crc": 0,
    }


@pytest.mark.parametrize(
    "kept",
    [
        "a text",
        [None, 3, {"at": "noon", "errors": {}}, {"at": START, "errors": []}],
        [{"at": START - 1, "errors": {"0": {"corrected": "many"}, "1": None}}],
        [{"at": START - 1, "errors": {"0": {"corrected": True}, "x": {"corrected": 1}}}],
        # Of the future, as after a clock that was wrong.
        [{"at": START + 1e6, "errors": {"0": {"corrected": 0}}}],
    ],
)
def test_a_state_of_another_form_counts_as_none(kept: object) -> None:
    line = gpu_answer(ecc__errors__corrected__aggregate__total="99999")
    rows = gpu_faults.add_reading(kept, gpu_load.parse(line), {}, START)
    growth = gpu_faults.compute_growth(rows, START)
    assert growth.get(0, {}) == {}


def test_a_reading_without_cards_keeps_the_former_ones() -> None:
    """A query that failed once does not hide the errors before and after it."""
    first = gpu_faults.add_reading(None, gpu_load.parse(gpu_answer()), {}, START)
    assert gpu_faults.add_reading(first, [], {}, START + 60) == first


def test_kinds_of_link_errors_are_told_apart() -> None:
    changed = LINKS.replace("Link 17: Recovery Errors: 0", "Link 17: Recovery Errors: 2", 1)
    told = nvidia_smi.parse_link_errors(changed)
    assert told["0"] == {"replay": 0, "recovery": 2, "crc": 0}
    assert nvidia_smi.parse_link_errors(None) == {}
    assert nvidia_smi.parse_link_errors("\t Link 0: Replay Errors: 9") == {}
