"""Metrics of GPUs, from what a real nvidia-smi answered (tests/data/recordings/gpu-metrics)."""

from __future__ import annotations

import json
from pathlib import Path

from gpu_answers import gpu_answer

from kimi_prov.on_host.metrics import gpus
from kimi_prov.on_host.probe import gpu_load
from kimi_prov.on_host.system.exposition import render

RECORDINGS = Path(__file__).resolve().parents[3] / "data" / "recordings"
XID = (RECORDINGS / "diagnose" / "gpu_lost" / "kernel.log").read_text()


def shown(planned: int, query: str, links: str | None = None, kernel: str = "") -> list[str]:
    told = {gpus.LINK_ERRORS: links, gpus.KERNEL: kernel}
    samples, _ = gpus.collect(planned, gpu_load.parse(query), lambda argv: told[tuple(argv)])
    return [row for row in render(samples, gpus.HELPS).splitlines() if not row.startswith("#")]


def test_the_recorded_card_is_shown_in_the_units_of_the_names() -> None:
    rows = shown(1, gpu_answer())
    assert "kimi_gpus_seen 1" in rows
    assert 'kimi_gpu_power_watts{gpu="0"} 70.04' in rows
    assert f'kimi_gpu_memory_total_bytes{{gpu="0"}} {81559 << 20}' in rows
    assert 'kimi_gpu_sm_clock_hertz{gpu="0"} 345000000' in rows
    assert 'kimi_gpu_temperature_celsius{gpu="0"} 35' in rows
    assert 'kimi_gpu_ecc_uncorrected_total{gpu="0"} 0' in rows


def test_an_idle_card_is_not_throttled_and_a_hot_one_is() -> None:
    assert not [row for row in shown(1, gpu_answer()) if "throttled" in row and row.endswith(" 1")]
    # 0x48: slowed down by hardware, for heat (nvml.h).
    hot = gpu_answer(clocks_event_reasons__active="0x0000000000000048")
    told = [row for row in shown(1, hot) if "throttled" in row and row.endswith(" 1")]
    assert told == [
        'kimi_gpu_throttled{gpu="0",reason="hw_slowdown"} 1',
        'kimi_gpu_throttled{gpu="0",reason="hw_thermal_slowdown"} 1',
    ]


def test_signs_of_failing_are_shown_by_kind_where_the_card_reports_them() -> None:
    faults = [row for row in shown(1, gpu_answer(remapped_rows__pending="Yes")) if "_fault{" in row]
    assert 'kimi_gpu_fault{gpu="0",fault="row_remap_pending"} 1' in faults
    assert 'kimi_gpu_fault{gpu="0",fault="pcie_width"} 0' in faults
    # One reading says nothing of a rate.
    assert not [row for row in faults if "ecc_storm" in row or "nvlink" in row]
    assert 'kimi_gpu_pcie_lanes{gpu="0"} 16' in shown(1, gpu_answer())


def test_errors_since_the_last_writing_are_judged() -> None:
    def collect(corrected: str, kept: object, now_s: float) -> tuple[list[str], object]:
        cards = gpu_load.parse(gpu_answer(ecc__errors__corrected__aggregate__total=corrected))
        samples, readings = gpus.collect(1, cards, lambda _: None, kept, now_s)
        rows = render(samples, gpus.HELPS).splitlines()
        return [row for row in rows if 'fault="ecc_storm"' in row], json.loads(json.dumps(readings))

    rows, kept = collect("50000", None, 1000.0)
    assert rows == []
    rows, kept = collect("50001", kept, 1030.0)
    assert rows == ['kimi_gpu_fault{gpu="0",fault="ecc_storm"} 0']
    rows, _ = collect("90000", kept, 1060.0)
    assert rows == ['kimi_gpu_fault{gpu="0",fault="ecc_storm"} 1']


def test_what_a_card_does_not_tell_is_left_out() -> None:
    rows = shown(1, gpu_answer(temperature__memory="[N/A]", clocks_event_reasons__active="[N/A]"))
    assert not [row for row in rows if "memory_temperature" in row or "throttled" in row]
    assert 'kimi_gpu_power_watts{gpu="0"} 70.04' in rows


def test_a_card_that_is_gone_shows_in_the_count() -> None:
    lost = "Unable to determine the device handle for GPU0000:44:00.0: Unknown Error"
    rows = shown(2, f"{gpu_answer()}\n{lost}", kernel=XID)
    assert {"kimi_gpus_planned 2", "kimi_gpus_seen 1"} <= set(rows)
    assert 'kimi_gpu_xid_errors_total{code="79"} 1' in rows
    assert "kimi_gpus_seen 0" in shown(2, "")


def test_errors_of_all_links_of_a_card_are_summed() -> None:
    """In what two real cards answered; the errors themselves are made up."""
    query = f"{gpu_answer()}\n{gpu_answer(index='1')}"
    links = (RECORDINGS / "gpu-metrics" / "nvlink-h100-x2.txt").read_text()
    rows = shown(2, query, links)
    assert 'kimi_gpu_nvlink_errors_total{gpu="0"} 0' in rows
    first, _, second = links.partition("GPU 1:")
    errors = {"Link 0: Replay Errors": 1, "Link 0: CRC Errors": 2, "Link 17: Recovery Errors": 4}
    for name, count in errors.items():
        first = first.replace(f"{name}: 0", f"{name}: {count}")
    rows = shown(2, query, f"{first}GPU 1:{second}")
    assert 'kimi_gpu_nvlink_errors_total{gpu="0"} 7' in rows
    assert 'kimi_gpu_nvlink_errors_total{gpu="1"} 0' in rows


def test_one_card_has_no_links_to_ask_for() -> None:
    asked: list[tuple[str, ...]] = []

    def ask(argv: object) -> None:
        asked.append(tuple(argv))  # type: ignore[arg-type]

    gpus.collect(1, gpu_load.parse(gpu_answer()), ask)
    assert gpus.LINK_ERRORS not in asked
