"""One page for all machines: on the first of two gateways, and at the address that both share.

A stand-in answers where the engine would; page, proxies, keepalived and nftables are the real ones.
Installing the page takes most of the time.
"""

from __future__ import annotations

import http.client
import json
import ssl
from typing import TYPE_CHECKING

import pytest
from gateways import Site, site_up
from host_stand_ins import stand_ins
from machines import kimi_prov
from waiting import HANGS_S, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.lab, pytest.mark.slow]

NETWORK = "10.93.136"
TAGS = ("--tags", "host_base,proxy,firewall,gateway,web_ui")
ADMIN = ("admin@example.com", "p-4711-long")
NODE = ("node1",)
AWAY = b"on the other gateway, which is not reached"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("page")
    secret = folder / "admin"
    secret.write_text(":".join(ADMIN) + "\n")
    wishes = {"kimi_web_ui": True, "kimi_web_admin_file": str(secret)}
    answers = lambda lab: stand_ins(lab, NODE)  # noqa: E731
    with site_up(folder, NETWORK, *TAGS, nodes=NODE, applied=answers, **wishes) as found:
        assert until(found.takes_all)
        yield found


def addresses(site: Site) -> list[str]:
    return [site.host("gw1").address, site.host("gw2").address, site.address]


def ask(
    address: str, path: str, body: object = None, token: str | None = None
) -> tuple[int, bytes]:
    """Ask the page at an address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    line = http.client.HTTPSConnection(address, 8443, timeout=HANGS_S, context=context)
    headers = {"Content-Type": "application/json"}
    headers |= {"Authorization": f"Bearer {token}"} if token else {}
    data = json.dumps(body).encode() if body is not None else None
    line.request("GET" if body is None else "POST", path, data, headers)
    answer = line.getresponse()
    content = answer.read()
    line.close()
    return answer.status, content


def login(address: str) -> str:
    asked = {"email": ADMIN[0], "password": ADMIN[1]}
    status, content = ask(address, "/api/v1/auths/signin", asked)
    assert status == 200, content
    return str(json.loads(content)["token"])


def answered(address: str, token: str) -> bool:
    message = {"role": "user", "content": "Hello"}
    asked = {"model": "kimi-k2-lab", "messages": [message], "stream": False}
    status, content = ask(address, "/api/chat/completions", asked, token)
    return status == 200 and b"A stand-in says so." in content


def test_one_account_is_let_in_and_answered_at_every_address(site: Site) -> None:
    token = login(site.address)
    assert [answered(address, token) for address in addresses(site)] == [True] * 3
    units = "systemctl is-active kimi-web"
    states = {n: site.host(n).ssh(units, check=False).strip() for n in ("gw1", "gw2", *NODE)}
    assert states == {"gw1": "active", "gw2": "inactive", "node1": "inactive"}


def test_status_and_verify_tell_of_the_page(site: Site) -> None:
    rows = site.status()
    assert rows["gw1"]["web"]["answers"]
    assert rows["gw2"]["web"] is None
    words = ("--only", "tls", "--only", "*-key-refused", "--only", "page", "--format", "json")
    done = kimi_prov("verify", site.lab.inventory, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)["hosts"]
    for name in ("gw1", "gw2"):
        ran = {row["name"] for row in found[name]["checks"] if row["status"] == "ok"}
        assert ran == {"tls", "no-key-refused", "wrong-key-refused", "page"}


def test_nothing_is_done_twice(site: Site) -> None:
    # What stands in for engines wrote the plans of its machines.
    kimi_prov("apply", site.lab.inventory, *TAGS)
    done = kimi_prov("apply", site.lab.inventory, *TAGS)
    assert "changed=0" in done.stdout, done.stdout + done.stderr


def test_what_the_page_keeps_comes_from_the_gateway_that_has_it(site: Site, tmp_path: Path) -> None:
    file = tmp_path / "page.tar.gz"
    done = kimi_prov("web", "backup", site.lab.inventory, "--to", file)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 account" in done.stdout
    done = kimi_prov("web", "restore", site.lab.inventory, file, "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert answered(site.address, login(site.address))


def test_where_the_first_gateway_is_lost_the_page_is_away_and_the_api_is_not(site: Site) -> None:
    site.host("gw1").ssh("systemctl stop kimi-proxy")
    try:
        assert until(lambda: site.has_address() == ["gw2"])
        assert until(lambda: AWAY in ask(site.address, "/")[1])
        assert "A stand-in says so." in site.ask()
    finally:
        site.host("gw1").ssh("systemctl start kimi-proxy")
    assert until(lambda: ask(site.address, "/")[0] == 200)
    assert answered(site.address, login(site.address))


def test_destroy_keeps_the_chats_until_it_is_told_otherwise(site: Site) -> None:
    done = kimi_prov("destroy", site.lab.inventory, "--yes", "--limit", "gw1,gw2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "gw1 keeps /srv/kimi/web" in done.stdout
    assert site.host("gw1").ssh("ls /srv/kimi/web/webui.db; getent passwd kimi-web || echo gone")
