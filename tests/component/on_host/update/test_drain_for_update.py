"""A machine that is drained for its update takes requests again, whatever becomes of the run.

systemd-run and systemctl are stand-ins that write down what they are told; HAProxy is real.
"""

from __future__ import annotations

import json
import os

import pytest
from gateway_site import Site
from waiting import until

from kimi_prov.contract import gateways
from kimi_prov.contract import paths as layout
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.endpoint import api_client, haproxy
from kimi_prov.on_host.update import steps

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
WISHES = {"timeout_s": 1, "hold_s": 600}


class Machine:
    def __init__(self, proxy, folder) -> None:
        self.proxy, self.folder = proxy, folder

    @property
    def told(self) -> list[str]:
        return (self.folder / "told").read_text().splitlines()

    def chat(self) -> int:
        return api_client.request_chat(self.proxy.endpoint, self.proxy.key(), BODY).status


@pytest.fixture
def machine(make_proxy, tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("systemd-run", "systemctl"):
        program = folder / name
        program.write_text(
            f'#!/bin/sh\necho "{name} $*" >> {tmp_path}/told\n[ ! -e {tmp_path}/broken ]\n'
        )
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    proxy = make_proxy(engines=2)
    for module in (steps, haproxy):
        monkeypatch.setattr(module, "Paths", lambda: proxy.paths)
    return Machine(proxy, tmp_path)


def test_what_was_drained_comes_back_by_itself_where_the_run_has_gone(machine):
    assert steps.drain(WISHES)["left"] == 0
    assert machine.chat() == 503
    (held,) = [line for line in machine.told if line.startswith("systemd-run")]
    assert "--on-active=601.0" in held
    assert "--unit=kimi-undrain.service" in held
    # What it runs then, on the machine itself.
    program, _, words = held.partition(f" -I {layout.ZIPAPP} ")
    assert "python" in program
    name, *words = words.split()
    assert name == "proxy-state"
    assert haproxy.main(words) == 0
    assert machine.chat() == 200


def test_a_run_that_goes_on_leaves_no_timer(machine):
    steps.drain(WISHES)
    steps.undrain({})
    assert machine.chat() == 200
    assert machine.told[-1] == "systemctl stop kimi-undrain.timer"


def test_without_the_timer_nothing_is_drained(machine):
    (machine.folder / "broken").touch()
    with pytest.raises(HostError, match=r"undrain\.service cannot be started"):
        steps.drain(WISHES)
    assert machine.chat() == 200


@pytest.mark.parametrize("restarts", [True, False])
def test_a_new_haproxy_sends_nothing_to_what_is_drained_for_a_restart(
    machine, monkeypatch, restarts
):
    """apt and systemd are stood in for: haproxy comes, and a reload is one of the real HAProxy."""
    there = {"haproxy": "2.6.12-1"}
    new = {"haproxy": "2.6.12-2"}
    monkeypatch.setattr(steps.apt, "list_installed", there.copy)
    monkeypatch.setattr(steps.apt, "install_in_unit", lambda *_: there.update(new))
    monkeypatch.setattr(steps.applied, "amend_packages", lambda _: None)
    monkeypatch.setattr(steps.units, "read_states", lambda name: {name: {"state": "active"}})
    reloads = []
    monkeypatch.setattr(
        steps.units, "control", lambda verb, _: reloads.append(verb) or machine.proxy.reload()
    )
    if restarts:
        steps.drain(WISHES)
    found = steps.install({"words": ["haproxy=2.6.12-2"], "restarts": restarts})
    assert [row["name"] for row in found["installed"]] == ["haproxy"]
    assert reloads == ([] if restarts else ["reload"])
    assert machine.chat() == (503 if restarts else 200)


@pytest.mark.parametrize("words", [["drain", "x"], ["drain", "0", "1"], ["stop"]])
def test_a_word_that_is_none_is_refused(machine, words):
    with pytest.raises(HostError, match=r"proxy-state \[drain"):
        haproxy.main(words)
    assert machine.chat() == 200


@pytest.fixture
def site(make_proxy, monkeypatch):
    """A gateway before two hosts, whose plan says that it is one."""
    found = Site(make_proxy, 2)
    paths = found.gateway.paths
    plan = {"schema": gateways.SCHEMA, "proxy": {"port": found.gateway.port}}
    paths.plan.write_text(json.dumps(plan))
    monkeypatch.setattr(steps, "Paths", lambda: paths)
    return found


def test_a_gateway_that_is_updated_sends_to_its_hosts_all_the_time(site):
    assert steps.drain(WISHES) == {"changed": False, "seconds": 0.0, "left": 0}
    assert site.ask().status == 200
    assert steps.undrain({}) == {"changed": False}


def test_a_gateway_without_hosts_is_none_to_leave_clients_to(site):
    assert steps.require_serving({}) == {"changed": False}
    for host in site.hosts.values():
        host.stop()
    assert until(lambda: set(site.states().values()) == {"DOWN"})
    with pytest.raises(HostError, match="sends to no machine"):
        steps.require_serving({})
