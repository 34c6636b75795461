"""Limits of a key over all machines: the real HAProxy, and the real counters of all of them.

The engines are stand-ins: what they would tell their machine's counter is told by the test.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from gateway_site import Site
from waiting import HANGS_S, until

from kimi_prov.contract.gateways import SCHEMA
from kimi_prov.contract.key_rules import RECENT
from kimi_prov.on_host.endpoint import api_client, certificate
from kimi_prov.on_host.keys import publish
from kimi_prov.on_host.status import gateway
from kimi_prov.on_host.system.files import write_json
from kimi_prov.on_host.usage import counter

if TYPE_CHECKING:
    import pytest


def planned(site: Site) -> None:
    """Write of the gateway's plan what its counter reads."""
    plan = {"schema": SCHEMA, "gateway": site.gateway.gateway}
    write_json(str(site.gateway.paths.plan), plan)


def limited(site: Site, **limits: int) -> None:
    publish.change(site.gateway.paths, "client", {"limits": limits})


def test_tokens_of_two_machines_reach_one_limit(make_proxy, counting) -> None:
    site = Site(make_proxy, 2)
    planned(site)
    hosts = [counting(host) for host in site.hosts.values()]
    limited(site, tokens_per_day=100)
    gateway = counting(site.gateway, gateway=True)
    hosts[0].used("client", "one", 60)
    assert site.ask().status == 200
    hosts[1].used("client", "two", 40)
    assert until(lambda: site.ask().status == 429)
    reply = site.ask()
    error = reply.json()["error"]
    assert (error["code"], error["type"], error["param"]) == ("rate_limit_exceeded", "tokens", None)
    assert error["message"].startswith("This key has reached its limit of tokens a day. Try again ")
    assert int(reply.headers["retry-after"]) > 0
    # The refusals are counted, as a machine's are.
    gateway.end()
    shown = site.gateway.paths.usage_prom.read_text()
    assert 'kimi_usage_refused_total{key="client",reason="tokens_per_day"}' in shown
    # Without its counter the gateway lets in; each machine holds the limits for itself.
    assert site.ask().status == 200


def test_requests_at_once_pass_up_to_the_limit_and_no_more(make_proxy, counting) -> None:
    site = Site(make_proxy, 2)
    planned(site)
    limited(site, requests_per_minute=3)
    counting(site.gateway, gateway=True)
    found: list[int] = []
    asking = [
        threading.Thread(target=lambda n=n: found.append(site.ask(f"n{n}").status))
        for n in range(9)
    ]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join(HANGS_S)
    assert sorted(found) == [200] * 3 + [429] * 6
    reply = site.ask()
    assert 0 < int(reply.headers["retry-after"]) <= 60
    assert "x-should-retry" not in reply.headers
    # Models are listed, and other keys answered, all the same.
    models = api_client.call(site.gateway.endpoint, "GET", "/v1/models", site.client)
    assert models.status == 200
    fresh = publish.add(site.gateway.paths, "other", {})
    body = {"messages": [{"role": "user", "content": "hello"}]}
    assert api_client.request_chat(site.gateway.endpoint, fresh, body).status == 200


def test_requests_at_once_are_limited_over_all_machines(make_proxy, counting) -> None:
    site = Site(make_proxy, 2)
    planned(site)
    limited(site, parallel=2)
    gateway = counting(site.gateway, gateway=True)
    # One after the other never meets it, whatever the gateway has still to clean up.
    assert [site.ask(f"n{n}").status for n in range(20)] == [200] * 20
    for host in site.hosts.values():
        host.engines[0].hold_streams()

    def stream(number: int) -> None:
        asked = {"messages": [{"role": "user", "content": f"n{number}"}], "stream": True}
        list(api_client.stream(site.gateway.endpoint, site.client, asked))

    held = [threading.Thread(target=stream, args=(number,)) for number in range(2)]
    seen = sum(site.asked().values())
    for thread in held:
        thread.start()
    assert until(lambda: sum(site.asked().values()) == seen + 2)
    reply = site.ask()
    assert (reply.status, reply.headers["retry-after"]) == (429, "5")
    assert "limit of requests at once" in reply.json()["error"]["message"]
    other = publish.add(site.gateway.paths, "other", {"limits": {"parallel": 1}})
    body = {"messages": [{"role": "user", "content": "hello"}]}
    assert api_client.request_chat(site.gateway.endpoint, other, body).status == 200
    for host in site.hosts.values():
        host.engines[0].let(1000)
    for thread in held:
        thread.join(HANGS_S)
    assert site.ask("after").status == 200
    gateway.end()
    shown = site.gateway.paths.usage_prom.read_text()
    assert 'kimi_usage_refused_total{key="client",reason="parallel"} 1' in shown


def test_what_keys_used_is_told_to_gateways_alone(make_proxy, counting) -> None:
    site = Site(make_proxy, 1)
    host = site.hosts["gpu1"]
    counting(host).used("client", "one", 7)
    told = api_client.call(host.endpoint, "GET", RECENT, host.key())
    assert told.status == 404
    assert api_client.call(host.endpoint, "GET", RECENT, None).status == 401
    assert api_client.call(site.gateway.endpoint, "GET", RECENT, site.client).status == 404


def test_a_machine_that_is_lost_and_comes_back_is_asked_again(make_proxy, counting) -> None:
    site = Site(make_proxy, 2)
    planned(site)
    limited(site, tokens_per_day=100)
    hosts = {name: counting(host) for name, host in site.hosts.items()}
    counting(site.gateway, gateway=True)
    hosts["gpu1"].used("client", "one", 60)
    site.hosts["gpu2"].stop()
    assert until(lambda: site.up() == ["gpu1"])
    assert site.ask().status == 200
    site.hosts["gpu2"].start()
    # What is asked every second is no line of a log.
    assert RECENT not in site.hosts["gpu1"].log
    hosts["gpu2"].used("client", "two", 40)
    assert until(lambda: site.ask().status == 429)


def shown(site: Site) -> dict[str, float]:
    """What the gateway tells the monitoring."""
    rows = site.gateway.paths.usage_prom.read_text().splitlines()
    told = [row.rpartition(" ") for row in rows if not row.startswith("#")]
    return {name: float(value) for name, _, value in told}


def test_a_gateway_tells_the_monitoring_what_it_sees(
    make_proxy, counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counter, "SETTLE_S", 0.2)
    site = Site(make_proxy, 2)
    assert site.gateway.gateway is not None
    # The loopback's own address is here, and one of TEST-NET-1 is nobody's.
    site.gateway.gateway["address"] = "127.0.0.1"
    planned(site)
    for host in site.hosts.values():
        counting(host)
    counting(site.gateway, gateway=True)
    apart = 'kimi_gateway_clock_apart_seconds{machine="gpu1"}'
    assert until(lambda: apart in shown(site))
    found = shown(site)
    assert found['kimi_gateway_machine_up{machine="gpu1"}'] == 1
    assert found['kimi_gateway_machine_up{machine="gpu2"}'] == 1
    assert found['kimi_gateway_has_address{address="127.0.0.1"}'] == 1
    assert abs(found[apart]) < 1
    ends = 'kimi_gateway_machine_certificate_expires_timestamp_seconds{machine="gpu1"}'
    pinned = certificate.read(site.hosts["gpu1"].paths.tls_crt.read_text())
    assert pinned is not None
    assert found[ends] == pinned.not_after
    assert found["kimi_gateway_requests_waiting"] == 0
    assert found["kimi_gateway_requests_waiting_most"] == 4
    site.gateway.gateway["address"] = "192.0.2.1"
    planned(site)
    site.hosts["gpu1"].stop()
    assert until(lambda: shown(site)['kimi_gateway_machine_up{machine="gpu1"}'] == 0)
    assert until(lambda: apart not in shown(site))
    assert until(lambda: shown(site).get('kimi_gateway_has_address{address="192.0.2.1"}') == 0)
    assert shown(site)['kimi_gateway_machine_up{machine="gpu2"}'] == 1


def test_status_warns_of_clocks_apart_and_of_certificates_that_end(
    make_proxy, counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(make_proxy, 2)
    assert site.gateway.gateway is not None
    for host in site.hosts.values():
        counting(host)
    behind = gateway.describe_hosts(site.gateway.paths, {"gateway": site.gateway.gateway})

    def warned() -> list[str]:
        return gateway.list_warnings(site.gateway.paths, behind, ["gpu1", "gpu2"])

    assert warned() == []
    monkeypatch.setattr(gateway, "MAX_CLOCK_SKEW_S", -1.0)
    assert [text.split(" is ")[0] for text in warned()] == [
        "the clock of gpu1",
        "the clock of gpu2",
    ]
    monkeypatch.setattr(gateway, "MAX_CLOCK_SKEW_S", 5.0)
    monkeypatch.setattr(certificate, "AHEAD_S", 100 * 365 * certificate.DAY_S)
    assert [text.split(" ends ")[0] for text in warned()] == [
        "the certificate of gpu1", "the certificate of gpu2",
    ]  # fmt: skip
