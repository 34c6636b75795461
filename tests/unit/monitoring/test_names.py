"""Every metric that rules, dashboards and consoles ask for is there, in what really shows it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from engine_metrics import VLLM, names
from metric_names import all_asked, asked, expressions
from ports import free_port
from prometheus import program, shown

from kimi_prov.contract.paths import Paths
from kimi_prov.monitoring import RULES
from kimi_prov.on_host.endpoint import gauges
from kimi_prov.on_host.metrics import collect
from kimi_prov.on_host.usage import exposition
from kimi_prov.on_host.watchdog import state as watchdog

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORDED = Path(__file__).resolve().parents[2] / "data" / "recordings" / "metrics"
PROXY = Path(__file__).resolve().parents[3] / "roles" / "proxy" / "templates" / "haproxy.cfg.j2"
HAPROXY = """
defaults
    mode http
    timeout client 5s
    timeout server 5s
    timeout connect 5s
frontend metrics
    bind 127.0.0.1:{port}
    http-request use-service prometheus-exporter
"""


@pytest.fixture(scope="module")
def haproxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder, port = tmp_path_factory.mktemp("haproxy"), free_port()
    (folder / "haproxy.cfg").write_text(HAPROXY.format(port=port))
    address = f"http://127.0.0.1:{port}/metrics"
    with program(folder, "haproxy", "-db", "-f", "haproxy.cfg", ready=address):
        yield shown(address)


def beginning(prefix: str) -> dict[str, set[str]]:
    found = {name: files for name, files in all_asked().items() if name.startswith(prefix)}
    assert found
    return found


def lacking(prefix: str, there: set[str]) -> dict[str, set[str]]:
    return {name: files for name, files in beginning(prefix).items() if name not in there}


@pytest.mark.parametrize("version", [*VLLM, "0.32.0-served"])
def test_vllm_has_every_name(version: str) -> None:
    assert lacking("vllm:", names((RECORDED / f"vllm-{version}.txt").read_text())) == {}


def test_sglang_has_every_name() -> None:
    assert lacking("sglang:", names((RECORDED / "sglang-kt-0.7.2.txt").read_text())) == {}


def test_kimi_prov_writes_every_name(tmp_path: Path) -> None:
    watched = watchdog.Record(Paths(str(tmp_path))).metrics({}, {})
    there = {*collect.HELPS, *gauges.HELPS, *names(watched), *names(exposition.render_rows([]))}
    assert lacking("kimi_", there) == {}


def test_the_frontend_of_the_clients_is_called_so() -> None:
    asked_for = {name for _, text in expressions() for name in re.findall(r'proxy="(\w+)"', text)}
    frontends = re.findall(r"^frontend (\w+)", PROXY.read_text(), re.MULTILINE)
    assert asked_for == {"api"}
    assert asked_for <= set(frontends)


def test_what_is_recorded_by_rules_is_recorded() -> None:
    groups = yaml.safe_load((RULES / "kimi-signals.yml").read_text())["groups"]
    recorded = {rule["record"] for group in groups for rule in group["rules"]}
    assert lacking("kimi:", recorded) == {}


def test_nothing_else_is_asked_for() -> None:
    known = re.compile(r"vllm:|sglang:|kimi:|kimi_|haproxy_|node_|up$")
    assert [name for name in all_asked() if not known.match(name)] == []


# sglang-kt keeps no cache in host memory.
OF_VLLM_ALONE = re.compile(r"vllm:external_prefix_cache_\w+|kimi:host_cache_hit_ratio")


def test_both_engines_are_asked_for_the_same() -> None:
    for file, expression in expressions():
        if OF_VLLM_ALONE.search(expression):
            continue
        found = {name.partition(":")[0] for name in asked(expression)} & {"vllm", "sglang"}
        assert found in (set(), {"vllm", "sglang"}), f"{file}: {expression}"


def test_each_label_that_selects_is_a_label_of_the_engine() -> None:
    """A label that the metric lacks would select nothing: `mode` of sglang's counts of tokens."""
    text = (RECORDED / "sglang-kt-0.7.2.txt").read_text()
    modes = set(re.findall(r'^sglang:realtime_tokens_total\{.*?mode="(\w+)"', text, re.MULTILINE))
    assert {"decode", "prefill_compute"} <= modes
