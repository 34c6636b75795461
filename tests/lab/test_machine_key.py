"""An engine is nobody else's: other users of the machine, their programs on its port, its key."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from machines import newest_run
from waiting import HANGS_S, until

from kimi_prov.on_host.gateway import api

if TYPE_CHECKING:
    from machines import Host

pytestmark = pytest.mark.lab

ENGINE = "kimi-serve@0.service"
KEY_FILE = "/etc/kimi/machine-key.map"
PROMPT = "canary: a client's own words"
# Prints the HTTP status, or why there is none.
ASK = """
import http.client, json, sys
path, key = (sys.argv[1:] + [""])[:2]
headers = {"Content-Type": "application/json"}
if key:
    headers["Authorization"] = "Bearer " + open(key).read().split()[1]
engine = http.client.HTTPConnection("127.0.0.1", 8001, timeout=60)
try:
    engine.request("GET", path, headers=headers)
    print(engine.getresponse().status)
except OSError as error:
    print(type(error).__name__)
"""
# Poses as an engine that is up, and notes whatever it is sent.
SQUATTER = """
import http.server
class Pose(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with open("/run/squatter/heard", "a") as heard:
            print(self.requestline, self.headers, file=heard)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()
http.server.ThreadingHTTPServer(("127.0.0.1", 8001), Pose).serve_forever()
"""
# From the first moment that a program of another user can have at a boot.
SQUATTER_UNIT = """
[Unit]
After=sysinit.target
DefaultDependencies=no
[Service]
User=games
RuntimeDirectory=squatter
ExecStart=/usr/bin/python3 /opt/squatter.py
Restart=always
RestartSec=1
[Install]
WantedBy=basic.target
"""


def ask(host: Host, path: str, *key: str, user: str = "root") -> str:
    """What a user of the machine gets from the engine's own port."""
    host.ssh(f"cat > /tmp/ask.py <<'END'\n{ASK}\nEND\nchmod 755 /tmp/ask.py")
    return host.ssh(f"runuser -u {user} -- python3 /tmp/ask.py {path} {' '.join(key)}").strip()


def chat(host: Host) -> int:
    """HTTP status of a chat through the opened port, as a client has it."""
    key = host.ssh("cat /etc/kimi/keys/verify.key").strip()
    plan = json.loads(host.ssh("cat /etc/kimi/plan.json"))
    pin = host.ssh(
        "openssl x509 -in /etc/kimi/proxy/tls.crt -outform der | sha256sum | cut -d' ' -f1"
    ).strip()
    body = {
        "model": plan["model"]["served_names"][0],
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": 1,
    }
    endpoint = api.Endpoint(host.address, plan["proxy"]["port"], pin, HANGS_S)
    return api.chat(endpoint, key, body).status


def started(host: Host, unit: str) -> int:
    """When the process of a unit was started, in microseconds of the machine's clock."""
    shown = host.ssh(f"systemctl show -p ExecMainStartTimestampMonotonic --value '{unit}'")
    return int(shown)


def test_the_engine_refuses_who_has_no_key_and_no_other_user_reaches_it(served_host: Host) -> None:
    closed = ("/v1/models", "/invocations", "/tokenize", "/metrics", "/version", "/docs")
    assert {path: ask(served_host, path) for path in closed} == dict.fromkeys(closed, "401")
    assert ask(served_host, "/health") == "200"
    assert ask(served_host, "/v1/models", KEY_FILE) == "200"
    assert ask(served_host, "/v1/models", user="games") == "ConnectionRefusedError"
    assert ask(served_host, "/health", user="games") == "ConnectionRefusedError"
    assert chat(served_host) == 200


def test_the_key_is_in_its_file_and_nowhere_else(served_host: Host) -> None:
    assert served_host.ssh(f"stat -c '%a %U %G' {KEY_FILE}").split() == ["640", "root", "kimi"]
    key = served_host.ssh(f"cut -d' ' -f2 {KEY_FILE}").strip()
    assert len(key) >= 43
    # The pattern comes by standard input: no process has it among its arguments.
    search = (
        f"cut -d' ' -f2 {KEY_FILE} | grep -rslaF -f - /etc /opt /root /run /srv /tmp /var "
        "/proc/[0-9]*/cmdline /proc/[0-9]*/environ; "
        f"cut -d' ' -f2 {KEY_FILE} | (journalctl --no-pager | grep -cF -f /dev/fd/3) 3<&0"
    )
    assert served_host.ssh(search, check=False, timeout=300).split() == [KEY_FILE, "0"]
    run = newest_run(served_host.inventory)
    assert not [file for file in run.rglob("*") if file.is_file() and key in file.read_text()]


def test_who_squats_on_the_port_gets_no_prompt_before_or_after_a_reboot(served_host: Host) -> None:
    host = served_host
    host.ssh(f"systemctl stop '{ENGINE}'", timeout=300)
    host.ssh(
        f"cat > /opt/squatter.py <<'END'\n{SQUATTER}\nEND\n"
        f"cat > /etc/systemd/system/squatter.service <<'END'\n{SQUATTER_UNIT}\nEND\n"
        "systemctl daemon-reload && systemctl enable --now --quiet squatter.service"
    )
    heard = "cat /run/squatter/heard 2>/dev/null; true"
    try:
        listens = "ss -Hltnp 'sport = :8001' | grep -c python3"
        assert until(lambda: host.ssh(listens, check=False).strip() == "1")
        assert chat(host) == 503
        host.ssh("systemctl restart nftables.service")
        assert chat(host) == 503
        assert host.ssh(heard) == ""
        # Of what the rules were before, nothing is left when it comes up again.
        boot = host.ssh("systemctl show -p UserspaceTimestampMonotonic --value")
        host.ssh("nft flush ruleset; systemctl reboot", check=False)
        again = "systemctl show -p UserspaceTimestampMonotonic --value; systemctl is-active "
        assert until(
            lambda: (
                host.ssh(again + "kimi-proxy squatter", check=False).split()[1:] == ["active"] * 2
                and host.ssh(again + "kimi-proxy", check=False).split()[0] != boot.strip()
            )
        )
        assert host.ssh(listens).strip() == "1"
        assert chat(host) == 503
        assert host.ssh(heard) == ""
        rules = started(host, "kimi-firewall.service")
        others = ("squatter.service", "ssh.service", "kimi-proxy.service")
        assert [unit for unit in others if started(host, unit) <= rules] == []
    finally:
        host.ssh("systemctl disable --now --quiet squatter.service")
        host.ssh("rm /etc/systemd/system/squatter.service /opt/squatter.py")
        host.ssh(f"systemctl daemon-reload; systemctl restart '{ENGINE}'", timeout=900)
    assert started(host, ENGINE) > rules
    assert until(lambda: chat(host) == 200)
