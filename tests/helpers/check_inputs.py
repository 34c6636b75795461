"""Targets in the form of the contract, some from the planner, their speeds and prices made up."""

from __future__ import annotations

import copy
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.planner.plan import make_plan
from kimi_prov.planner.settings.parsing import parse_settings
from kimi_prov.show.report import check
from kimi_prov.show.report.cost import Api, MachinePrices, Rate, Use

LAB = Path(__file__).resolve().parents[1] / "data" / "facts" / "lab-nspawn.json"
GIB = 1 << 30
ASSUMED = {
    "amortise": Rate(4, "assumed"),
    "utilisation": Rate(0.3, "assumed"),
    "electricity": Rate(0.15, "assumed"),
    "idle_power": Rate(0.3, "assumed"),
}
APIS = (
    Api("gemini-3-pro", None, 2, 12, "reference 004"),
    Api("kimi-k2.5", "kimi-k2.5", 0.6, 3.0, "a pricing test"),
)
KNOWN = MachinePrices(
    assumed=ASSUMED,
    apis=APIS,
    power_kw=Rate(13.84, "InferenceX, April 2026"),
    usual_rent=Rate(13.92, "InferenceX, April 2026"),
)


def facts(
    *,
    cpu: tuple[str, int, int] = ("Intel Xeon Platinum 8480+", 2, 56),
    gib: int = 2048,
    gpus: tuple[str, int, int] | None = None,
    driver: str = "580.159.04",
    price: dict[str, float] | None = None,
    kind: str = "spec",
) -> dict[str, Any]:
    """Facts of a machine; `gpus` is name, MiB and number, `cpu` is name, sockets and cores each."""
    found: dict[str, Any] = json.loads(LAB.read_text())
    name, sockets, cores = cpu
    found["cpu"] |= {"model": name, "sockets": sockets, "cores": sockets * cores}
    found["memory"] |= {"total_bytes": gib * GIB, "available_bytes": gib * GIB}
    found["host"] |= {"container": None, "virtualization": None}
    for row in found["filesystems"]:
        row |= {"total_bytes": 8 << 40, "free_bytes": 7 << 40}
    if gpus:
        model, mib, number = gpus
        found["gpus"] = [
            {
                "index": n,
                "vendor": "nvidia",
                "model": model,
                "memory_total_bytes": mib << 20,
                "memory_bytes": mib << 20,
                "uuid": None,
                "pci": None,
                "compute_capability": "9.0",
            }
            for n in range(number)
        ]
        found["nvidia"] = {
            "pci_devices": number,
            "driver_loaded": driver,
            "driver_installed": driver,
            "open_module": True,
        }
    found["price"] = price
    found["origin"] = {"kind": kind, "name": "quote", "detail": "quotes/a.yaml"}
    found["origins"] = {
        "cpu.isa": f"catalogue: {name}",
        "memory.channels_total": f"catalogue: {name}",
    }
    return found


def speeds(decode: float | None, many: int, prefill: float | None, load: float) -> dict[str, Any]:
    """A throughput in the form of the contract, each range 0.75 to 1.3 of what is expected."""

    def spread(value: float | None) -> dict[str, float | None]:
        if value is None:
            return {"low": None, "expected": None, "high": None}
        return {"low": value * 0.75, "expected": value, "high": value * 1.3}

    return {
        "concurrency": many,
        "decode_tok_s": spread(decode),
        "aggregate_tok_s": spread(decode and decode * many),
        "single_tok_s": spread(decode and 2 * decode),
        "prefill_tok_s": spread(prefill),
        "ttft_s": spread(prefill and 8192 / prefill),
        "load_s": spread(load),
        "input_tokens": 4000,
        "output_tokens": 1000,
        "basis": "latency-bound; fitted on measured rows",
    }


def target(
    name: str,
    facts: dict[str, Any],
    speed: dict[str, Any] | None = None,
    *,
    use: Use | None = None,
    known: MachinePrices = KNOWN,
    **settings: Any,
) -> dict[str, Any]:
    """A judged target; keyword arguments are settings without their prefix."""
    given = {
        "kimi_model": "kimi-k2.5",
        "kimi_weights_source": "hf://moonshotai/Kimi-K2.5@main",
        **{f"kimi_{key}": value for key, value in settings.items()},
    }
    plan = make_plan(facts, parse_settings(given, host=name), load_catalogue())
    if speed:
        plan["throughput"] = speed
    return check.build_target(name, facts, plan, use or Use(), known)


def eight_h200(name: str = "vendor-a", **changed: Any) -> dict[str, Any]:
    """8 x H200: fits."""
    given = {"gpus": ("H200 SXM", 143771, 8), "price": {"hourly_usd": 26.0}}
    return target(name, facts(**given | changed), speeds(48.1, 16, 7144, 330))


def two_h100(name: str = "vendor-b") -> dict[str, Any]:
    """2 x H100 NVL with an old driver, all weights asked on them: blocked."""
    found = facts(
        cpu=("AMD EPYC 9654", 2, 96),
        gib=1536,
        gpus=("H100 NVL 94GB", 95830, 2),
        driver="570.133.20",
        price={"purchase_usd": 250000},
    )
    return target(name, found, speeds(15.6, 4, 410, 700), engine="vllm")


def no_gpu(name: str = "vendor-c <script>alert(1)</script>") -> dict[str, Any]:
    """Dual Xeon without a GPU or a price, and too little memory: blocked."""
    return target(name, facts(cpu=("Intel Xeon 6980P", 2, 128), gib=512))


def lab(name: str = "lab1") -> dict[str, Any]:
    """The lab's own small model: fits."""
    found = copy.deepcopy(json.loads(LAB.read_text()))
    return target(name, found, speeds(30, 16, None, 20), model="kimi-k2-lab")


def document() -> dict[str, Any]:
    """A report on all of them."""
    return check.build_document([eight_h200(), two_h100(), no_gpu()])


class Reader(HTMLParser):
    """Collects what a page holds, and refuses tags that do not close."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta", "br", "hr", "img", "link"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader
