"""A certificate ordered by ACME: pebble stands in for the authority, on the control machine."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from machines import ANSIBLE_PLAYBOOK, CHECKOUT, kimi_prov, make_lab, run
from made_certificates import certificate
from waiting import HANGS_S, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from machines import Host, Lab

pytestmark = pytest.mark.lab

NETWORK = "10.93.90"
MANAGED_NETWORK = "10.93.91"
GATEWAY = f"{NETWORK}.1"
NAME = "kimi.lab.test"
DIRECTORY = f"https://{GATEWAY}:14000/dir"
DOOR = ("--tags", "host_base,proxy,firewall,acme")
ORDER = ("--tags", "acme")
TARGET = "python3 -I /srv/kimi/lib/kimi-target.pyz"

# Of a machine's firewall: what enables it, lists its rules and reloads it.
MANAGERS = {
    "ufw": ("ufw allow 22/tcp && ufw --force enable", "ufw status", "ufw reload"),
    "firewalld": (
        "systemctl enable --now firewalld",
        "firewall-cmd --list-all; firewall-cmd --permanent --list-all",
        "firewall-cmd --reload",
    ),
}

# Streams a piece ten times a second until it is told that it is enough.
ENGINE = """
import http.server, os, time
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while not os.path.exists("/run/enough"):
            self.wfile.write(b"5\\r\\nmore\\n\\r\\n")
            self.wfile.flush()
            time.sleep(0.1)
        self.wfile.write(b"5\\r\\ndone\\n\\r\\n0\\r\\n\\r\\n")
http.server.ThreadingHTTPServer(("127.0.0.1", 8001), Handler).serve_forever()
"""

# As seen from the machine itself, while no order is answered.
ASK = """
import http.client
for path in ("/", "/v1/models", "/.well-known/acme-challenge/../../v1/models",
             "/.well-known/acme-challenge/none"):
    connection = http.client.HTTPConnection("127.0.0.1", 80)
    connection.request("GET", path)
    print(connection.getresponse().status)
"""

# Writes and takes away what certbot asks for, by the test server's own means.
HOOK = f"""#!/usr/bin/env python3
import json, os, sys, urllib.request
name = "_acme-challenge." + os.environ["CERTBOT_DOMAIN"] + "."
verb, body = "clear-txt", {{"host": name}}
if sys.argv[1] == "auth":
    verb, body = "set-txt", {{"host": name, "value": os.environ["CERTBOT_VALIDATION"]}}
urllib.request.urlopen("http://{GATEWAY}:8055/" + verb, json.dumps(body).encode())
"""


class Authority:
    """pebble, and the name server that it asks."""

    def __init__(self, folder: Path) -> None:
        self.pem = certificate(["pebble"], 1, 30, (GATEWAY,))
        public, _, private = self.pem.partition("-----BEGIN PRIVATE KEY")
        (folder / "cert.pem").write_text(public)
        (folder / "key.pem").write_text("-----BEGIN PRIVATE KEY" + private)
        self.bundle = folder / "bundle.pem"
        system = ssl.get_default_verify_paths().cafile or "/etc/ssl/certs/ca-certificates.crt"
        self.bundle.write_text(public + Path(system).read_text(encoding="utf-8"))
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        for program in ("pebble", "pebble-challtestsrv"):
            if shutil.which(program) is None:
                pytest.fail(f"{program} is not installed: run tests/system-packages pebble")
        settings = {
            "listenAddress": f"{GATEWAY}:14000",
            "managementListenAddress": f"{GATEWAY}:15000",
            "certificate": str(self.folder / "cert.pem"),
            "privateKey": str(self.folder / "key.pem"),
            "httpPort": 80,
            "tlsPort": 443,
            "domainBlocklist": ["blocked.lab.test"],
            "certificateValidityPeriod": 90 * 86400,
        }
        (self.folder / "pebble.json").write_text(json.dumps({"pebble": settings}))
        self._run(
            *("pebble-challtestsrv", "-http01", "", "-https01", "", "-tlsalpn01", ""),
            *("-defaultIPv6", "", "-defaultIPv4", f"{NETWORK}.11"),
            *("-dns01", f"{GATEWAY}:8053", "-management", f"{GATEWAY}:8055"),
        )
        self._run(
            "pebble", "-config", str(self.folder / "pebble.json"), "-dnsserver", f"{GATEWAY}:8053"
        )
        assert until(self.root), (self.folder / "log").read_text()

    def _run(self, *argv: str) -> None:
        # Every order proves its names anew, and at once.
        settled = {"VA_NOSLEEP": "1", "WFE_NONCEREJECT": "0", "AUTHZREUSE": "0"}
        settled = {f"PEBBLE_{name}": value for name, value in settled.items()}
        with (self.folder / "log").open("a") as log:
            made = subprocess.Popen(
                argv, env={**os.environ, **settled}, stdout=log, stderr=log, start_new_session=True
            )
        self.processes.append(made)

    def stop(self) -> None:
        for process in self.processes:
            process.terminate()
            process.wait(timeout=HANGS_S)

    def root(self) -> str:
        """The certificate that a client of what it issues trusts; empty before it is up."""
        context = ssl.create_default_context(cadata=self.pem.partition("-----BEGIN PRIVATE")[0])
        try:
            with urllib.request.urlopen(
                f"https://{GATEWAY}:15000/roots/0", context=context, timeout=HANGS_S
            ) as found:
                return str(found.read().decode())
        except OSError:
            return ""

    def lead(self, address: str) -> None:
        """Have every name lead to this address."""
        body = json.dumps({"ip": address}).encode()
        with urllib.request.urlopen(
            f"http://{GATEWAY}:8055/set-default-ipv4", body, timeout=HANGS_S
        ):
            pass


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def _lab(folder: Path, authority: Authority, network: str, nodes: list[str]) -> Lab:
    (authority.folder / "hook").write_text(HOOK)
    return make_lab(
        folder / "inv",
        network,
        nodes=nodes,
        kimi_tls="acme",
        kimi_tls_names=[NAME],
        kimi_acme_directory_url=DIRECTORY,
        kimi_acme_contact="admin@lab.test",
        kimi_ca_bundle=str(authority.bundle),
    )


@pytest.fixture(scope="module")
def acme_lab(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Lab]:
    made = _lab(tmp_path_factory.mktemp("acme"), authority, NETWORK, ["acme1"])
    made.up()
    try:
        authority.start()
        yield made
    finally:
        authority.stop()
        made.down()


@pytest.fixture(scope="module")
def managed(
    tmp_path_factory: pytest.TempPathFactory, authority: Authority, acme_lab: Lab
) -> Iterator[Lab]:
    """A host for each manager of a firewall; the authority listens in the other's network."""
    assert acme_lab.hosts
    made = _lab(tmp_path_factory.mktemp("managed"), authority, MANAGED_NETWORK, [*MANAGERS])
    made.up()
    yield made
    made.down()


@pytest.fixture(scope="module")
def host(acme_lab: Lab) -> Host:
    return acme_lab.hosts["acme1"]


@pytest.fixture(scope="module")
def first(host: Host) -> str:
    """What Ansible printed of the first apply, which all tests stand on."""
    done = host.playbook(*DOOR)
    assert done.returncode == 0, done.stdout + done.stderr
    # The role that starts the engine, which is not under test, writes what `status` goes by.
    found = kimi_prov("plan", host.inventory, "--format", "json")
    assert found.returncode == 0, found.stderr
    plan = json.dumps(json.loads(found.stdout)["hosts"][host.name])
    host.ssh(f"cat > /etc/kimi/plan.json <<'END'\n{plan}\nEND\n")
    return done.stdout


def served(host: Host, root: str) -> dict[str, Any]:
    """The certificate that a client gets who trusts the authority alone, and asks for the name."""
    context = ssl.create_default_context(cadata=root)
    with (
        socket.create_connection((host.address, 8000), HANGS_S) as raw,
        context.wrap_socket(raw, server_hostname=NAME) as secure,
    ):
        return dict(secure.getpeercert() or {})


def told(host: Host) -> dict[str, Any]:
    """What `status` says of the certificate."""
    return dict(json.loads(host.ssh(f"{TARGET} status"))["port"]["certificate"])


def knock(host: Host) -> bool:
    """Whether port 80 lets this machine in."""
    try:
        socket.create_connection((host.address, 80), 2).close()
    except OSError:
        return False
    return True


def put(host: Host, pem: str) -> None:
    """Put a certificate where the last order put its own, and where the proxy reads it."""
    public = pem.partition("-----BEGIN PRIVATE KEY")[0]
    host.ssh(
        f"cd /etc/kimi/proxy && umask 077 && cat > acme.pem <<'END'\n{pem}\nEND\n"
        f"cat acme.pem > tls.pem; cat > tls.crt <<'END'\n{public}\nEND\n"
    )


def destroy(host: Host) -> None:
    """Put the machine back."""
    playbook = str(CHECKOUT / "playbooks" / "destroy.yml")
    done = run(
        *(ANSIBLE_PLAYBOOK, "-i", str(host.inventory), playbook, "--limit", host.name),
        *("-e", '{"destroy_confirmed": true}'),
        cwd=CHECKOUT,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def renew(host: Host) -> str:
    """Do what the timer does; `ok` or `failed`."""
    return host.ssh("systemctl start kimi-acme && echo ok || echo failed").strip()


def test_apply_orders_a_certificate_that_the_authoritys_clients_trust(
    host: Host, first: str, authority: Authority
) -> None:
    assert "changed=" in first
    assert ("DNS", NAME) in served(host, authority.root())["subjectAltName"]
    # The proxy began with a self-signed one and was not started a second time.
    journal = host.ssh("journalctl -u kimi-proxy -o cat --no-pager")
    assert journal.count("Started kimi-proxy.service") == 1
    assert journal.count("Reloaded kimi-proxy.service") == 1
    found = told(host)
    assert found["state"] == "ok"
    assert found["mode"] == "acme"
    assert found["names"] == [NAME]
    assert found["last_order"]["ok"]
    assert host.ssh("systemctl is-active kimi-acme.timer").strip() == "active"
    # From elsewhere the port is closed; behind it is nothing but the answer to a challenge.
    assert not knock(host)
    asked = host.ssh(f"cat > /tmp/ask.py <<'END'\n{ASK}\nEND\npython3 /tmp/ask.py")
    assert asked.split() == ["404", "404", "404", "503"]


def test_a_second_apply_orders_nothing_and_keeps_the_account(
    host: Host, first: str, authority: Authority
) -> None:
    before = served(host, authority.root())["serialNumber"]
    done = host.playbook(*DOOR)
    assert "changed=0" in done.stdout, done.stdout + first
    assert served(host, authority.root())["serialNumber"] == before
    accounts = "/var/lib/kimi/acme/client/config/accounts/*/dir/*/regr.json"
    assert len(host.ssh(f"ls {accounts}").split()) == 1
    # What is secret is its owner's alone.
    for user in ("kimi", "kimi-proxy", "nobody"):
        for path in ("/var/lib/kimi/acme/client/config", "/etc/kimi/acme.json"):
            denied = host.ssh(f"cd /; runuser -u {user} -- cat {path} 2>&1 || true")
            assert "Permission denied" in denied


@pytest.mark.usefixtures("first")
def test_a_renewal_drops_no_stream(
    host: Host, authority: Authority, request: pytest.FixtureRequest
) -> None:
    before = served(host, authority.root())["serialNumber"]
    host.ssh(f"cat > /run/engine.py <<'END'\n{ENGINE}\nEND\nrm -f /run/enough")
    host.ssh("systemd-run -q --unit=stand-in --uid=kimi python3 /run/engine.py")
    key = host.ssh("cat /etc/kimi/keys/verify.key").strip()
    context = ssl.create_default_context(cadata=authority.root())
    context.check_hostname = False

    def answers() -> bool:
        knocking = http.client.HTTPSConnection(host.address, 8000, context=context, timeout=HANGS_S)
        with closing(knocking):
            knocking.request("GET", "/health")
            return knocking.getresponse().status == 200

    assert until(answers)
    stream = http.client.HTTPSConnection(host.address, 8000, context=context, timeout=HANGS_S)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request.addfinalizer(stream.close)
    stream.request("POST", "/v1/chat/completions", b"{}", headers)
    answer = stream.getresponse()
    assert answer.read(5) == b"more\n"

    put(host, certificate([NAME], 80, 10))
    assert renew(host) == "ok"
    assert served(host, authority.root())["serialNumber"] != before
    host.ssh("touch /run/enough")
    rest = answer.read()
    assert set(rest.split()) == {b"more", b"done"}
    assert rest.endswith(b"done\n")
    answer.close()
    host.ssh("systemctl stop stand-in")


@pytest.mark.usefixtures("first")
def test_a_renewal_that_fails_is_told_and_the_next_one_mends_it(
    host: Host, authority: Authority
) -> None:
    put(host, certificate([NAME], 80, 10))
    authority.lead(GATEWAY)
    assert renew(host) == "failed"
    found = told(host)
    assert found["state"] == "expiring"
    assert "connection refused" in found["detail"]
    assert "port 80" in found["fix"]
    assert found["last_order"]["kind"] == "challenge"
    assert found["issuer"] == "CN=made by the test"
    assert not knock(host)

    authority.lead(host.address)
    assert renew(host) == "ok"
    assert told(host)["state"] == "ok"
    assert ("DNS", NAME) in served(host, authority.root())["subjectAltName"]


@pytest.mark.slow
@pytest.mark.usefixtures("first")
def test_a_refused_order_stops_apply_with_cause_and_fix(host: Host) -> None:
    done = host.playbook(*ORDER, "-e", '{"kimi_tls_names": ["blocked.lab.test"]}')
    assert done.returncode != 0
    text = " ".join(done.stdout.split())
    assert "for blocked.lab.test: the certificate authority refused the order" in text
    assert "list another one in kimi_tls_names" in text


@pytest.mark.slow
@pytest.mark.usefixtures("first")
def test_an_authority_that_is_not_there_stops_apply_with_cause_and_fix(host: Host) -> None:
    nowhere = {"kimi_acme_directory_url": f"https://{GATEWAY}:14999/dir"}
    done = host.playbook(*ORDER, "-e", json.dumps({**nowhere, "kimi_tls_names": ["b.lab.test"]}))
    assert done.returncode != 0
    text = " ".join(done.stdout.split())
    assert "Connection refused" in text
    assert "let the machine reach kimi_acme_directory_url" in text


@pytest.mark.slow
@pytest.mark.usefixtures("first")
def test_a_wildcard_is_proven_by_the_sites_own_program(host: Host, authority: Authority) -> None:
    wishes = {
        "kimi_tls_names": ["*.lab.test"],
        "kimi_acme_challenge": "dns-01",
        "kimi_acme_dns_hook": str(authority.folder / "hook"),
    }
    done = host.playbook(*DOOR, "-e", json.dumps(wishes))
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("DNS", "*.lab.test") in served(host, authority.root())["subjectAltName"]
    assert not re.search(r"dport 80\b", host.ssh("nft list table inet kimi"))


@pytest.mark.slow
@pytest.mark.parametrize("manager", MANAGERS)
def test_behind_a_firewall_manager_port_80_is_let_in_for_an_order_alone(
    managed: Lab, host: Host, authority: Authority, manager: str, request: pytest.FixtureRequest
) -> None:
    other, host = host, managed.hosts[manager]
    enable, listing, reload = MANAGERS[manager]
    host.ssh(
        "apt-get update -q && DEBIAN_FRONTEND=noninteractive "
        f"apt-get install -qy --no-install-recommends netbase {manager}",
        timeout=HANGS_S * 4,
    )
    host.ssh(enable)
    before = host.ssh(listing)
    authority.lead(host.address)
    request.addfinalizer(lambda: authority.lead(other.address))
    done = host.playbook(*DOOR)
    assert done.returncode == 0, done.stdout + done.stderr
    first = served(host, authority.root())
    assert ("DNS", NAME) in first["subjectAltName"]
    # They let it in; our own table does while an order is answered, and never else.
    assert re.search(r"\b80\b", host.ssh(listing))
    assert not knock(host)
    host.ssh(reload)
    assert not knock(host)
    put(host, certificate([NAME], 80, 10))
    assert renew(host) == "ok"
    assert served(host, authority.root())["serialNumber"] != first["serialNumber"]
    assert not knock(host)
    again = host.playbook(*DOOR)
    assert "changed=0" in again.stdout, again.stdout + again.stderr
    destroy(host)
    assert host.ssh(listing) == before


@pytest.mark.slow
@pytest.mark.usefixtures("first")
def test_destroy_takes_account_certificates_units_and_user_away(host: Host) -> None:
    destroy(host)
    left = host.ssh(
        "ls -d /var/lib/kimi /etc/kimi /etc/systemd/system/*kimi* 2>/dev/null;"
        "getent passwd kimi-acme; getent group kimi-acme; systemctl is-active kimi-acme.timer; true"
    )
    assert left.split() == ["inactive"]
