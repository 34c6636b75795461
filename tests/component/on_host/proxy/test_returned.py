"""A gateway tells when it sends to a machine again; the real HAProxy on both."""

from __future__ import annotations

import json
import threading

import pytest
from gateway_site import Site
from ports import free_port
from waiting import until

from kimi_prov.contract import gateways
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.endpoint import haproxy, tls
from kimi_prov.on_host.proxy import converge, rejoin


@pytest.fixture
def site(make_proxy) -> Site:
    made = Site(make_proxy, 2, checks="500ms")
    rows = [
        {"host": name, "server": name, "address": "127.0.0.1", "port": host.port}
        for name, host in made.hosts.items()
    ]
    plan = {"schema": gateways.SCHEMA, "gateway": {"name": "gw1", "hosts": rows}}
    made.gateway.paths.plan.parent.mkdir(parents=True, exist_ok=True)
    made.gateway.paths.plan.write_text(json.dumps(plan))
    return made


def asked(site: Site, host: str = "gpu1", *, timeout_s: float = 60, **more: object) -> dict:
    return rejoin.wait_for_machine(
        site.gateway.paths, {"host": host, "certificate": None, "timeout_s": timeout_s, **more}
    )


def test_it_waits_until_a_host_that_was_drained_is_sent_to(site: Site) -> None:
    socket = site.hosts["gpu1"].paths.socket
    haproxy.set_state(socket, 0, "drain")
    assert until(lambda: site.states()["gpu1"] == "DOWN")
    with pytest.raises(HostError, match="gw1 sends no requests to gpu1, which answers by itself"):
        asked(site, timeout_s=0.5)
    later = threading.Timer(1, haproxy.set_state, (socket, 0, "ready"))
    later.start()
    assert asked(site) == {"asked": True, "changed": False}
    assert site.states()["gpu1"] == "UP"


def renewed(site: Site, monkeypatch: pytest.MonkeyPatch) -> str:
    """Give gpu2 a certificate that its gateway does not know, and return it with its key.

    HAProxy spreads its first checks: that of the second server comes half a second after a start.
    """
    host = site.hosts["gpu2"]
    host.stop()
    pem = tls.make_self_signed(["lab1", "10.0.0.1"])
    tls.install(host.paths, pem)
    host.start()
    assert until(lambda: site.up() == ["gpu1"])

    def again(_: object) -> None:
        """What systemd does of a reload."""
        site.gateway.stop()
        site.gateway.start()

    monkeypatch.setattr(converge, "converge", again)
    return pem


def test_it_takes_a_new_certificate_of_the_host(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    pem = renewed(site, monkeypatch)
    assert asked(site, "gpu2", certificate=tls.extract_certificates(pem))["changed"]
    assert site.states()["gpu2"] == "UP"
    # The same once more is nothing to do.
    assert not asked(site, "gpu2", certificate=tls.extract_certificates(pem))["changed"]


def test_a_host_that_was_not_checked_since_the_reload_is_not_sent_to_yet(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    # HAProxy takes every server for up until its first check, and here that one fails.
    renewed(site, monkeypatch)
    another = tls.extract_certificates(tls.make_self_signed(["lab1", "10.0.0.1"]))
    with pytest.raises(HostError, match=r"gw1 sends no requests to gpu2, .* it is down there"):
        asked(site, "gpu2", certificate=another, timeout_s=3)


def test_it_finds_a_host_at_its_new_port(site: Site) -> None:
    host = site.hosts["gpu2"]
    host.stop()
    host.port = free_port()
    host.start()
    assert until(lambda: site.up() == ["gpu1"])
    with pytest.raises(HostError, match="gw1 sends no requests to gpu2"):
        asked(site, "gpu2", timeout_s=0.5)
    assert asked(site, "gpu2", address="127.0.0.1", port=host.port)["asked"]
    site.hosts["gpu1"].stop()
    assert until(lambda: site.up() == ["gpu2"])
    assert site.ask().status == 200
    # Once more is nothing to do.
    assert asked(site, "gpu2", address="127.0.0.1", port=host.port)["asked"]
    with pytest.raises(HostError, match="refused"):
        asked(site, "gpu2", address="nowhere", port=host.port)


def test_a_gateway_whose_proxy_does_not_run_is_started(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.gateway.stop()
    site.gateway.paths.socket.unlink(missing_ok=True)
    monkeypatch.setattr(converge, "converge", lambda _: site.gateway.start())
    assert asked(site)["asked"]
    assert until(lambda: site.up() == ["gpu1", "gpu2"])


def test_who_is_no_gateway_and_whom_it_does_not_know_are_not_waited_for(site: Site) -> None:
    assert asked(site, "gpu3") == {"asked": False, "changed": False}
    site.gateway.paths.plan.unlink()
    assert asked(site) == {"asked": False, "changed": False}
