"""How much each unit may do to its machine, by systemd's own figure: no unit gets worse unnoticed.

The ceilings are what the units have now; a change that raises one says here why it is worth it.
What runs as root by purpose (apt, certbot's order, a whole apply) has its ceiling too.
"""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING

import jinja2
import pytest
import yaml
from golden import ROOT, planned, units
from group_hosts import planned as in_group
from serve_inputs import INSTANCE
from serve_inputs import PLAN as ENGINE_PLAN

from kimi_prov.ansible.plugins.filter.kimi import FilterModule
from kimi_prov.contract import protection

if TYPE_CHECKING:
    from pathlib import Path

TEMPLATES = {
    path.name.removesuffix(".j2"): path
    for folder in ("roles", "kimi_prov")
    for path in sorted((ROOT / folder).rglob("*.service.j2"))
}
# By the file, the figure of systemd 252; 10 is a service of root without any limit. A cloud's own
# units run `apply`, which changes the whole machine.
CEILINGS = {
    "kimi-acme.service": 2.7,
    "kimi-drift.service": 2.3,
    "kimi-firewall.service": 1.6,
    "kimi-gateway-address.service": 2.7,
    "kimi-idle.service": 2.3,
    "kimi-wake.service": 2.3,
    "kimi-metrics.service": 2.4,
    "kimi-node-exporter.service": 1.6,
    "kimi-alertmanager.service": 1.5,
    "kimi-monitor-firewall.service": 1.6,
    "kimi-prometheus.service": 1.5,
    "kimi-proxy.service": 1.5,
    "kimi-usage.service": 1.0,
    "fill.service": 2.5,
    "kimi-serve@.service": 1.4,
    "kimi-return.service": 1.8,
    "kimi-web.service": 1.3,
    "kimi-fetch.service": 2.5,
    "kimi-convert.service": 0.9,
    "kimi-rank.service": 1.3,
    "kimi-watchdog.service": 2.6,
    "kimi-give-up.service": 9.6,
    "kimi-preemption.service": 9.6,
    "kimi-up.service": 9.6,
}
# By the kind that transient units are made of.
KINDS = {
    "engine": 1.6,
    "conversion": 1.3,
    "weights": 2.5,
    "share": 1.8,
    "proxy": 1.8,
    "usage": 1.3,
    "pool": 1.8,
    "web": 1.6,
    "certificate": 2.8,
    "firewall": 1.6,
    "restoring": 1.8,
    "resting": 2.3,
    "measuring": 2.1,
    "looking": 2.3,
    "metrics": 2.1,
    "exporter": 2.0,
    "monitor": 1.8,
    "address": 2.7,
    "watching": 2.4,
    "code": 1.2,
}
PLAN = planned("dgx-h200", kimi_metrics=True, kimi_web_ui=True)
PLAN |= {"conversion": {"dir": "/srv/kimi/models/m/1", "method": "x", "argv": ["/usr/bin/true"]}}
RANK = in_group({**PLAN, **ENGINE_PLAN, "instances": [INSTANCE]}, 1)
# Where the mode of a unit's text is decided by its role's tasks.
MORE = {"settings": PLAN, "state": "/var/lib/kimi-up", "zipapp": "/usr/local/lib/kimi.pyz"}


@jinja2.pass_context
def select_as_ansible(context: jinja2.runtime.Context, *words: object) -> list[object]:
    """Ansible gives a list, where Jinja alone gives what has no length."""
    return list(jinja2.filters.FILTERS["select"](context, *words))


def render_unit(path: Path) -> str:
    if path.name == "kimi-serve@.service.j2":
        return units(PLAN)
    if path.name == "kimi-rank.service.j2":
        return units(RANK)
    role = path.parent.parent
    variables = dict(MORE)
    for name in ("defaults", "vars"):
        file = role / name / "main.yml"
        variables |= yaml.safe_load(file.read_text()) or {} if file.is_file() else {}
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(path.parent),
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.ChainableUndefined,
        autoescape=False,  # noqa: S701 - units, not HTML
    )
    own = {"dirname": os.path.dirname, "select": select_as_ansible}
    environment.filters.update({**FilterModule().filters(), **own})
    return environment.get_template(path.name).render(kimi_plan=PLAN, **variables)


def measure_exposure(text: str, unit: Path) -> float:
    unit.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    overall = re.search(r"Overall exposure level.*: ([0-9.]+)", done.stdout)
    assert overall, done.stdout + done.stderr
    return float(overall.group(1))


def test_each_unit_that_is_written_has_a_ceiling() -> None:
    assert sorted(TEMPLATES) == sorted(CEILINGS)
    assert sorted(protection.KINDS) == sorted(KINDS)


@pytest.mark.parametrize("name", TEMPLATES)
def test_no_unit_is_more_exposed_than_before(name: str, tmp_path: Path) -> None:
    unit = tmp_path / name.replace("@", "")
    assert measure_exposure(render_unit(TEMPLATES[name]), unit) <= CEILINGS[name]


@pytest.mark.parametrize("kind", protection.KINDS)
def test_no_transient_unit_is_more_exposed_than_before(kind: str, tmp_path: Path) -> None:
    options = protection.build_run_options(kind)
    lines = [option.partition("=")[2] for option in options if option.startswith("--property=")]
    text = "\n".join(["[Service]", "ExecStart=/bin/true", *lines, ""])
    assert measure_exposure(text, tmp_path / f"kimi-{kind}.service") <= KINDS[kind]


def test_a_unit_that_loses_a_limit_is_noticed(tmp_path: Path) -> None:
    text = render_unit(TEMPLATES["kimi-proxy.service"])
    loose = re.sub(r"(?m)^(ProtectSystem|NoNewPrivileges)=.*$", "", text)
    unit = tmp_path / "kimi-proxy.service"
    assert loose != text
    assert measure_exposure(loose, unit) > CEILINGS["kimi-proxy.service"]
