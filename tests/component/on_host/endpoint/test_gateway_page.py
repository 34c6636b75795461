"""The page of two gateways: the first has it, the other hands on to it; real HAProxies."""

from __future__ import annotations

import http.client
import json
import ssl
from typing import TYPE_CHECKING, Any

import pytest
from made_certificates import signed
from test_web_frontend import Page
from waiting import HANGS_S, until

from kimi_prov.on_host.endpoint import tls
from kimi_prov.on_host.proxy import pins

if TYPE_CHECKING:
    from collections.abc import Iterator

    from running_proxy import Proxy

UPLOAD = 1000
WRONG = 3
# The gateways reach each other from here; clients come from elsewhere on the loopback.
GATEWAY = "127.0.0.1"
CLIENT = "127.0.0.5"


class Site:
    """Two gateways before one host, and the page behind the first."""

    def __init__(self, make_proxy: Any) -> None:
        host = make_proxy(name="gpu1", gateways={"gateway.gw1": None})
        self.first: Proxy = make_proxy(
            *(0, {}, UPLOAD),
            name="gw1",
            hosts={"gpu1": host},
            doors=[f"{GATEWAY}/32"],
            proxy_web_logins=WRONG,
            proxy_max_connections_per_source=8,
        )
        for one in (host, self.first):
            one.networks = ["127.0.0.0/8"]
        self.second: Proxy = make_proxy(0, {}, name="gw2", hosts={"gpu1": host}, first=self.first)
        assert self.first.web
        self.page = Page(self.first.web["backend_port"])
        assert until(lambda: self.ask("/")[0] == 200), self.second.log
        self.page.seen.clear()

    def ask(
        self, path: str, body: object = None, *, at: str = "gw2", source: str = CLIENT, **more: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Ask the page at a gateway, from an address; underscores of headers are hyphens."""
        assert self.first.web
        assert self.second.gateway
        port = self.first.web["port"] if at == "gw1" else self.second.gateway["page"]["port"]
        line = connection(port, source)
        data = json.dumps(body).encode() if body is not None else None
        named = {name.replace("_", "-"): value for name, value in more.items()}
        line.request("GET" if body is None else "POST", path, data, named)
        answer = line.getresponse()
        content = b"" if answer.status == 101 else answer.read()
        line.close()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, content

    def login(self, source: str, at: str = "gw2", **more: str) -> int:
        wrong = {"password": "wrong"}
        return self.ask("/api/v1/auths/signin", wrong, at=at, source=source, **more)[0]


def connection(port: int, source: str) -> http.client.HTTPSConnection:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(
        "127.0.0.1", port, timeout=HANGS_S, context=context, source_address=(source, 0)
    )


@pytest.fixture
def site(make_proxy: Any) -> Iterator[Site]:
    found = Site(make_proxy)
    yield found
    found.page.shutdown()
    found.page.server_close()


def test_the_page_answers_at_either_gateway_and_knows_who_asks(site: Site) -> None:
    for at in ("gw1", "gw2"):
        status, headers, _ = site.ask("/c/1", at=at, X_Forwarded_For="6.6.6.6")
        assert status == 200
        assert "content-security-policy" in headers
        path, sent = site.page.seen[-1]
        assert (path, sent["x-forwarded-for"]) == ("/c/1", CLIENT)

    def handed_on() -> list[str]:
        lines = [line for line in site.first.log.splitlines() if "web GET /c/1 200" in line]
        return [line.rpartition(" ")[2] for line in lines if line.startswith(GATEWAY)]

    # A line comes when an answer has ended.
    assert until(lambda: handed_on() == [f"for={CLIENT}"]), site.first.log
    assert until(lambda: f"{CLIENT} web GET /c/1 200" in site.second.log)
    # The other gateway looks every 2 seconds.
    assert "/health" not in site.first.log


def test_wrong_logins_count_for_whoever_tries_wherever(site: Site) -> None:
    tried = [site.login("127.0.0.6", at=at) for at in ("gw2", "gw1", "gw2", "gw1")]
    assert tried == [400] * (WRONG + 1)
    assert [site.login("127.0.0.6", at=at) for at in ("gw1", "gw2")] == [429, 429]
    assert site.login("127.0.0.7") == 400
    # Who says to come for another is not believed.
    assert site.login("127.0.0.6", at="gw1", X_Forwarded_For="127.0.0.8") == 429


def test_a_web_socket_and_an_upload_pass_as_at_the_first(site: Site) -> None:
    assert site.second.gateway
    own = f"https://127.0.0.1:{site.second.gateway['page']['port']}"
    upgrade = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec_WebSocket_Version": "13",
    }
    assert site.ask("/ws/socket.io/", **upgrade, Origin=own)[0] == 101
    assert site.ask("/ws/socket.io/", **upgrade, Origin="https://elsewhere.test")[0] == 403
    assert site.ask("/api/v1/files/", {"a": "b"})[0] == 200
    assert site.ask("/api/v1/files/", "x" * UPLOAD)[0] == 413


def test_many_clients_of_the_other_gateway_are_not_one_source(site: Site) -> None:
    assert site.second.gateway
    port = site.second.gateway["page"]["port"]
    lines = [connection(port, f"127.0.1.{number}") for number in range(1, 13)]
    for line in lines:
        line.request("GET", "/")
    assert [line.getresponse().status for line in lines] == [200] * len(lines)
    for line in lines:
        line.close()


def test_a_page_that_is_stopped_is_told_by_the_first_gateway(site: Site) -> None:
    site.page.shutdown()
    site.page.server_close()
    assert until(lambda: b"starting or stopped" in site.ask("/")[2])
    assert site.ask("/")[0] == 503


def test_where_the_first_gateway_is_lost_the_other_says_so(site: Site) -> None:
    site.first.stop()
    assert until(lambda: b"on the other gateway, which is not reached" in site.ask("/")[2])
    status, headers, _ = site.ask("/")
    assert (status, headers["content-type"].partition(";")[0]) == (503, "text/html")
    site.first.start()
    assert until(lambda: site.ask("/")[0] == 200)


def test_a_new_certificate_for_clients_changes_nothing_between_the_gateways(site: Site) -> None:
    _, own = signed(["gw1.test"])
    site.first.stop()
    tls.install(site.first.paths, own)
    site.first.start()
    assert until(lambda: site.ask("/")[0] == 200), site.second.log


def test_another_than_the_first_gateway_gets_no_visitor(site: Site) -> None:
    site.first.stop()
    site.first.paths.page_pem.unlink()
    assert pins.ensure_web_ui_certificate(site.first.paths, shared=True)
    site.first.start()
    assert until(lambda: site.ask("/", at="gw1")[0] == 200)
    assert until(lambda: b"not reached" in site.ask("/c/2")[2])
    assert "/c/2" not in [path for path, _ in site.page.seen]


def test_clients_see_the_certificate_of_the_api(site: Site) -> None:
    assert site.first.web
    shown = ssl.get_server_certificate((GATEWAY, site.first.web["port"]))
    assert tls.compute_fingerprint(shown) == tls.compute_fingerprint(
        site.first.paths.tls_crt.read_text()
    )
