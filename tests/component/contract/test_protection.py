"""Every unit, installed or transient, is judged by systemd itself."""

from __future__ import annotations

import re
import subprocess
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any

import pytest
from golden import planned, units
from group_hosts import planned as in_group
from role_templates import filled
from serve_inputs import INSTANCE, PLAN

from kimi_prov.ansible.plugins.filter.kimi import FilterModule
from kimi_prov.contract import protection
from kimi_prov.contract.unit_comparison import parse_assignments

if TYPE_CHECKING:
    from pathlib import Path

GPU = planned("dgx-h200")
CONVERSION = {"dir": "/srv/kimi/models/m/1", "method": "AMXINT4", "argv": ["/usr/bin/true"]}
MOST = 2.5


def on_cpu() -> dict[str, Any]:
    return {**GPU, **PLAN, "instances": [INSTANCE]}


def planned_group(rank: int) -> dict[str, Any]:
    return in_group(on_cpu(), rank)


def ram_disk(*, enabled: bool) -> dict[str, Any]:
    return {**GPU, "ram_disk": {"enabled": enabled, "path": "/srv/kimi/ram"}}


def low_port() -> dict[str, Any]:
    return {**GPU, "firewall": {**GPU["firewall"], "ports": [443]}}


def challenged() -> dict[str, Any]:
    return {**GPU, "firewall": {**GPU["firewall"], "challenge_port": 80}}


def transient(options: list[str]) -> str:
    """What systemd makes of systemd-run's options, as a unit file."""
    given = [option.partition("=")[2] for option in options if option.startswith("--property=")]
    here = [line for line in given if not line.startswith(("Wants=", "After="))]
    return "\n".join(["[Service]", "ExecStart=/bin/true", *here, ""])


def proxy(plan: dict[str, Any]) -> str:
    return filled("proxy", "kimi-proxy.service.j2", plan, proxy_max_connections=4096)


UNITS = {
    "serve-gpu": units(GPU),
    "serve-cpu": units(on_cpu()),
    "serve-head": units(planned_group(0)),
    "rank": units(planned_group(1)),
    "convert": filled("convert", "kimi-convert.service.j2", {**GPU, "conversion": CONVERSION}),
    "fetch": filled("weights", "kimi-fetch.service.j2", GPU),
    "stage": filled("ram_disk", "fill.service.j2", ram_disk(enabled=True)),
    "warm": filled("ram_disk", "fill.service.j2", ram_disk(enabled=False)),
    "proxy": proxy(GPU),
    "proxy-443": proxy(low_port()),
    "proxy-80": proxy(challenged()),
    "acme": filled("acme", "kimi-acme.service.j2", GPU),
    "firewall": filled("firewall", "kimi-firewall.service.j2", GPU),
    "bench": transient(protection.build_run_options("measuring", write=["/run/kimi"])),
    "bench-gpu": transient(
        protection.build_run_options("measuring", gpus=True, write=["/run/kimi"])
    ),
    "code": transient(protection.build_code_options(20)),
    "sandbox": transient(protection.build_sandbox_options(gpus=False)),
    "sandbox-gpu": transient(FilterModule().filters()["engine_sandbox"](GPU)),  # type: ignore[arg-type]
}


def service(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in parse_assignments(text):
        found.setdefault(name, []).append(value)
    return found


@pytest.mark.parametrize("name", UNITS)
def test_exposure_is_at_most_two_and_a_half(name: str, tmp_path: Path) -> None:
    unit = tmp_path / f"kimi-{name}.service"
    unit.write_text(UNITS[name])
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    overall = re.search(r"Overall exposure level.*: ([0-9.]+)", done.stdout)
    assert overall, done.stdout + done.stderr
    # The order is root's: it opens a port and runs certbot as another user.
    assert float(overall.group(1)) <= {"acme": 2.7}.get(name, MOST), done.stdout
    assert "ignoring" not in done.stderr, done.stderr


def test_the_firewall_may_change_the_network_and_nothing_else() -> None:
    unit = service(UNITS["firewall"])
    assert unit["CapabilityBoundingSet"] == ["CAP_NET_ADMIN"]
    assert unit["AmbientCapabilities"] == [""]
    assert unit["IPAddressDeny"] == ["any"]
    assert unit["RestrictAddressFamilies"] == ["AF_UNIX AF_NETLINK"]


def test_the_proxy_may_take_a_low_port_only_where_it_has_one() -> None:
    for name, given in {"proxy": "", "proxy-443": "X", "proxy-80": "X"}.items():
        wanted = given.replace("X", "CAP_NET_BIND_SERVICE")
        assert service(UNITS[name])["AmbientCapabilities"] == [wanted]


def test_settings_of_the_machine_s_own_certbot_change_no_order() -> None:
    assert service(UNITS["acme"])["InaccessiblePaths"] == ["-/etc/letsencrypt"]


@pytest.mark.parametrize("name", ["serve-gpu", "sandbox-gpu"])
def test_of_the_devices_the_cards_alone_are_reachable(name: str) -> None:
    unit = service(UNITS[name])
    assert unit["DevicePolicy"] == ["closed"]
    # As an H100's machine lists them in /proc/devices; of the switches none is needed.
    for driver, allowed in {
        "nvidia": True,
        "nvidiactl": True,
        "nvidia-uvm": True,
        "nvidia-caps": True,
        "nvidia-caps-imex-channels": True,
        "nvidia-nvswitch": False,
        "nvidia-nvlink": False,
        "mem": False,
        "rtc": False,
    }.items():
        patterns = [row.partition(" ")[0] for row in unit["DeviceAllow"]]
        assert any(fnmatch(f"char-{driver}", pattern) for pattern in patterns) == allowed, driver
    assert "PrivateDevices" not in unit
    assert service(UNITS[name.replace("-gpu", "-cpu")] if "serve" in name else UNITS["sandbox"])[
        "PrivateDevices"
    ] == ["yes"]


@pytest.mark.parametrize(("unit", "like"), [("sandbox", "serve-cpu"), ("sandbox-gpu", "serve-gpu")])
def test_an_engine_s_code_is_held_as_the_engine_is(unit: str, like: str) -> None:
    """Every setting of the server's protection, in both directions."""
    held, served = service(UNITS[unit]), service(UNITS[like])
    wanted = dict(
        protection.build_settings("engine", gpus="gpu" in unit, write=["/srv/kimi/cache"])
    )
    assert {name: held[name][-1] for name in wanted} == wanted
    assert {name: served[name][-1] for name in wanted} == wanted
    for name in ("User", "Group", "WorkingDirectory", "UMask"):
        assert held[name] == served[name]
