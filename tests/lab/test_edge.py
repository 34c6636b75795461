"""The opened port on real machines: who gets in, who does not, and what destroy leaves behind."""

from __future__ import annotations

import json
import shlex
import ssl
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from firewalls import DISABLED, ENABLED, RELOADED
from machines import ANSIBLE_PLAYBOOK, CHECKOUT, kimi_prov, make_lab, picture, run
from waiting import HANGS_S, until

from kimi_prov.ansible import switching
from kimi_prov.on_host.endpoint import api_client

if TYPE_CHECKING:
    from collections.abc import Iterator

    from machines import Host, Lab

pytestmark = pytest.mark.lab

NETWORK = "10.93.25"
PORT = 8000
DOOR = ("--tags", "host_base,proxy,firewall")


@pytest.fixture(scope="module")
def edge_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Three firewalls, one host outside."""
    made = make_lab(
        tmp_path_factory.mktemp("edge") / "inv",
        NETWORK,
        nodes=["plain", "ufw", "firewalld"],
        outsiders=["outsider"],
        kimi_allowed_networks=["{{ lab_gateway }}/32", "{{ lab_gateway6 }}/128"],
    )
    made.up()
    yield made
    made.down()


@pytest.fixture(scope="module")
def outsider(edge_lab: Lab) -> Host:
    return edge_lab.hosts["outsider"]


def plan_of(host: Host) -> dict[str, Any]:
    done = kimi_prov("plan", host.inventory, "--limit", host.name, "--format", "json")
    assert done.returncode == 0, done.stderr
    plan: dict[str, Any] = json.loads(done.stdout)["hosts"][host.name]
    return plan


def install(host: Host, *more: str) -> None:
    """The packages that an apply would install: they stay, so they are no difference later."""
    wanted = " ".join([*plan_of(host)["packages"], *more])
    host.ssh(
        f"dpkg -s {wanted} >/dev/null 2>&1 || (apt-get update -q && "
        f"DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends {wanted} && "
        "systemctl disable --now haproxy) >/dev/null 2>&1",
        timeout=400,
    )


def open_door(host: Host) -> str:
    """Proxy and guard without an engine: the port itself is under test."""
    done = host.playbook(*DOOR)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def destroy(host: Host, *more: str) -> str:
    """Put the machine back; returns what Ansible printed."""
    playbook = str(CHECKOUT / "playbooks" / "destroy.yml")
    done = run(
        *(ANSIBLE_PLAYBOOK, "-i", str(host.inventory), playbook, "--limit", host.name, "-v"),
        *("-e", '{"destroy_confirmed": true}', *more),
        cwd=CHECKOUT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def addresses(host: Host) -> list[str]:
    """IPv4 and IPv6 of a lab host."""
    text = (host.inventory / "host_vars" / host.name / "lab.yml").read_text()
    six = next(line.split()[1] for line in text.splitlines() if line.startswith("lab_address6:"))
    return [host.address, six]


def status_from_here(address: str, path: str = "/health", key: str | None = None) -> int | None:
    """HTTP status that this machine gets through the port; None when nothing answers."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    name = f"[{address}]" if ":" in address else address
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(f"https://{name}:{PORT}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=HANGS_S, context=context) as answer:  # noqa: S310
            return answer.status
    except urllib.error.HTTPError as answer:
        with answer:
            return answer.code
    except OSError:
        return None


def knocks(outsider: Host, host: Host) -> list[str]:
    """What happens to a TCP connection from outside, for each address."""
    script = "timeout 2 bash -c 'exec 3<>/dev/tcp/{}/{}' 2>/dev/null; echo $?"
    meaning = {"0": "connected", "124": "no answer"}
    seen = [outsider.ssh(script.format(address, PORT)).strip() for address in addresses(host)]
    return [meaning.get(code, "refused") for code in seen]


# Listens where an engine will, as a user of the machine who has nothing to do with it.
SQUATTER = "python3 -m http.server --bind 127.0.0.1 8001"
# As a user of the machine: what comes of a knock at that port.
KNOCK = """
import socket
try:
    socket.create_connection(("127.0.0.1", 8001), 5)
    print("connected")
except OSError as error:
    print(type(error).__name__)
"""


def squat(host: Host) -> None:
    """Have another user take the engine's port."""
    host.ssh(f"systemd-run --quiet --unit=squatter --uid=games --working-directory=/ {SQUATTER}")
    assert until(lambda: host.ssh("ss -Hltn 'sport = :8001'").strip())


def at_the_engines_port(host: Host, user: str) -> str:
    """What a user of the machine meets at the port of an engine."""
    return host.ssh(f"cd /; runuser -u {user} -- python3 - <<'END'\n{KNOCK}\nEND").strip()


def assert_nobody_poses_as_the_engine(host: Host) -> None:
    """Somebody listens there, and neither the proxy nor root gets through to them."""
    met = {user: at_the_engines_port(host, user) for user in ("games", "kimi-proxy", "root")}
    silent = "TimeoutError"
    assert met == {"games": "ConnectionRefusedError", "kimi-proxy": silent, "root": silent}


def assert_guarded(host: Host, outsider: Host) -> None:
    assert [status_from_here(address) for address in addresses(host)] == [503, 503]
    assert knocks(outsider, host) == ["no answer", "no answer"]
    # Nothing but the port is touched.
    ping = f"ping -c1 -W{HANGS_S:.0f} {host.address} >/dev/null && echo up"
    assert outsider.ssh(ping).strip() == "up"
    ssh = f"timeout {HANGS_S} bash -c 'exec 3<>/dev/tcp/{host.address}/22' && echo open"
    assert outsider.ssh(ssh).strip() == "open"


def test_plain_nftables_survives_everything_that_empties_the_rule_set(
    edge_lab: Lab, outsider: Host
) -> None:
    host = edge_lab.hosts["plain"]
    install(host)
    host.ssh("nft add table ip theirs && nft add chain ip theirs keep")
    open_door(host)
    squat(host)
    assert_nobody_poses_as_the_engine(host)
    assert_guarded(host, outsider)
    assert "table ip theirs" in host.ssh("nft list tables")
    for verb in ("start", "reload", "restart", "stop", "start"):
        host.ssh(f"systemctl {verb} nftables.service")
        assert "table inet kimi" in host.ssh("nft list tables"), verb
        assert knocks(outsider, host) == ["no answer", "no answer"], verb
        assert at_the_engines_port(host, "games") == "ConnectionRefusedError", verb
    host.ssh("systemctl stop nftables.service squatter.service")
    destroy(host)
    assert host.ssh("nft list tables").strip() == ""


# Poses as an engine that is up, and notes whatever it is sent.
POSE = """
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
POSE_UNIT = """
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


def chat(host: Host) -> int:
    """HTTP status of a chat through the opened port, as a client has it."""
    key, pin = host.door()
    body = {"messages": [{"role": "user", "content": "a client's own words"}]}
    return api_client.request_chat(
        api_client.Endpoint(host.address, PORT, pin, HANGS_S), key, body
    ).status


def started(host: Host, unit: str) -> int:
    """When the process of a unit was started, in microseconds of the machine's clock."""
    return int(host.ssh(f"systemctl show -p ExecMainStartTimestampMonotonic --value {unit}"))


def test_who_squats_on_an_engines_port_gets_no_prompt_before_or_after_a_reboot(
    edge_lab: Lab,
) -> None:
    host = edge_lab.hosts["plain"]
    install(host)
    open_door(host)
    host.ssh(
        f"cat > /opt/squatter.py <<'END'\n{POSE}\nEND\n"
        f"cat > /etc/systemd/system/squatter.service <<'END'\n{POSE_UNIT}\nEND\n"
        "systemctl daemon-reload && systemctl enable --now --quiet squatter.service"
    )
    listens = "ss -Hltnp 'sport = :8001' | grep -c python3"
    heard = "cat /run/squatter/heard 2>/dev/null; true"
    assert until(lambda: host.ssh(listens, check=False).strip() == "1")
    assert (chat(host), host.ssh(heard)) == (503, "")
    # The network outlives this machine's reboot: of the rules of before, nothing is left.
    before = started(host, "kimi-proxy")
    host.ssh("nft flush ruleset; systemctl reboot", check=False)
    shown = "systemctl show -p ExecMainStartTimestampMonotonic --value kimi-proxy squatter ssh"
    assert until(
        lambda: (
            (times := host.ssh(shown, check=False).split()) != []
            and "0" not in times
            and int(times[0]) > before
        )
    )
    assert until(lambda: host.ssh(listens, check=False).strip() == "1")
    assert (chat(host), host.ssh(heard)) == (503, "")
    rules = started(host, "kimi-firewall")
    assert 0 < rules < min(started(host, unit) for unit in ("kimi-proxy", "squatter", "ssh"))
    # It was there to be fooled: without the rules the proxy takes it for an engine.
    host.ssh("nft delete table inet kimi")
    assert until(lambda: "/health" in host.ssh(heard))
    host.ssh("systemctl disable --now --quiet squatter.service; rm /opt/squatter.py")
    host.ssh("rm /etc/systemd/system/squatter.service; systemctl daemon-reload")
    destroy(host)


def test_without_any_packet_filter_the_proxy_itself_turns_strangers_away(
    edge_lab: Lab, outsider: Host
) -> None:
    host = edge_lab.hosts["plain"]
    open_door(host)
    host.ssh("nft flush ruleset")
    script = (
        "import socket, ssl, sys\n"
        "c = ssl._create_unverified_context()\n"
        "try:\n"
        "    s = c.wrap_socket(socket.create_connection((sys.argv[1], 8000), timeout=60))\n"
        "    print('let in')\n"
        "except OSError as e:\n"
        "    print('turned away')\n"
    )
    for address in addresses(host):
        assert outsider.ssh(f'python3 -c "{script}" {address}').strip() == "turned away"
    assert status_from_here(host.address) == 503
    host.ssh("systemctl restart kimi-firewall.service")
    assert_guarded(host, outsider)
    destroy(host)


@pytest.mark.slow
@pytest.mark.parametrize("manager", ["ufw", "firewalld"])
def test_where_a_firewall_manager_is_active_the_port_is_opened_through_it(
    edge_lab: Lab, outsider: Host, manager: str
) -> None:
    host = edge_lab.hosts[manager]
    install(host, "netbase", manager)
    theirs = {
        "ufw": "ufw allow 22/tcp && ufw allow from 192.0.2.0/24 to any port 8000 proto tcp "
        "&& ufw --force enable",
        "firewalld": "systemctl enable --now firewalld",
    }[manager]
    host.ssh(theirs)
    listed = {
        "ufw": "ufw status",
        "firewalld": "firewall-cmd --list-all; firewall-cmd --permanent --list-all",
    }[manager]
    before, files = host.ssh(listed), picture(host)["files"]
    open_door(host)
    squat(host)
    assert_nobody_poses_as_the_engine(host)
    assert_guarded(host, outsider)
    assert f"{NETWORK}.1" in host.ssh(listed)
    host.ssh(RELOADED[manager])
    assert_nobody_poses_as_the_engine(host)
    assert_guarded(host, outsider)
    host.ssh("systemctl stop squatter.service")
    again = open_door(host)
    assert f"{host.name} " in again
    assert "changed=0" in again, again
    destroy(host)
    assert host.ssh(listed) == before
    after = picture(host)["files"]
    assert isinstance(files, dict)
    assert isinstance(after, dict)
    rules = ("/etc/ufw/", "/etc/firewalld/", "/etc/systemd/", "/etc/kimi", "/srv")
    differing = {
        path
        for path in files.keys() | after.keys()
        if files.get(path) != after.get(path) and path.startswith(rules)
    }
    assert differing == set()


@pytest.mark.slow
@pytest.mark.parametrize("manager", ["ufw", "firewalld"])
def test_the_hourly_look_asks_a_firewall_manager_from_within_its_protection(
    edge_lab: Lab, manager: str
) -> None:
    host = edge_lab.hosts[manager]
    install(host, "netbase", manager)
    host.ssh(ENABLED[manager])
    # The role of the engine keeps the plan, and without a plan nothing counts as applied.
    plan = shlex.quote(switching.render_plan(plan_of(host)))
    host.ssh(f"install -D /dev/stdin /etc/kimi/plan.json <<< {plan}")
    done = host.playbook("--tags", f"{DOOR[1]},drift", "-e", '{"kimi_drift_timer": true}')
    assert done.returncode == 0, done.stdout + done.stderr

    def look() -> tuple[int, str]:
        text = host.ssh("systemctl start kimi-drift.service && cat /var/lib/kimi/state/drift.json")
        kept = json.loads(text)
        return kept["findings"].get("drift.firewall_rule", 0), kept["detail"]

    assert look()[0] == 0
    assert "rules of ufw or firewalld" not in look()[1]
    rule = json.loads(host.ssh("cat /var/lib/kimi/state/firewall.json"))["rules"][0]
    if manager == "ufw":
        host.ssh(f"ufw delete allow proto tcp from {rule['from']} to any port {rule['port']}")
    else:
        remove = f"--zone={rule['zone']} --remove-rich-rule={shlex.quote(rule['rule'])}"
        host.ssh(f"firewall-cmd --permanent {remove} && firewall-cmd {remove}")
    assert look()[0] == 1
    # It does not answer: that says nothing of what it holds.
    program = {"ufw": "/usr/sbin/ufw", "firewalld": "/usr/bin/firewall-cmd"}[manager]
    host.ssh(f"mv {program} {program}.own && printf '#!/bin/sh\\nexit 1\\n' > {program} "
             f"&& chmod 0755 {program}")  # fmt: skip
    try:
        count, detail = look()
    finally:
        host.ssh(f"mv {program}.own {program}")
    assert count == 0
    assert "rules of ufw or firewalld" in detail
    open_door(host)
    assert look()[0] == 0
    destroy(host)
    host.ssh(DISABLED[manager])


def settled(lines: object) -> object:
    """Without the login sessions that come and go."""
    if not isinstance(lines, list):
        return lines
    return [line for line in lines if not line.startswith(("session-", "run-"))]


def ask_for_key(host: Host, tmp_path: Path, *, rotate: bool = False) -> str | None:
    """The operator's key as `kimi-prov key` gets it."""
    out = Path(tempfile.mkdtemp(dir=tmp_path)) / "key"
    done = run(
        *(ANSIBLE_PLAYBOOK, "-i", str(host.inventory), str(CHECKOUT / "playbooks" / "key.yml")),
        *("--limit", host.name, "-vvv", "-e", json.dumps({"kimi_key_rotate": rotate})),
        cwd=CHECKOUT,
        env={"KIMI_PROV_KEY_OUT": str(out)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert out.stat().st_mode & 0o777 == 0o600
    key = json.loads(out.read_text())["key"]
    assert key is None or key not in done.stdout + done.stderr
    return key


def pids(host: Host) -> str:
    return host.ssh("systemctl show -p MainPID kimi-serve@0.service kimi-proxy.service").strip()


def test_keys_are_shown_once_and_rotated_with_no_restart(served_host: Host, tmp_path: Path) -> None:
    before = pids(served_host)
    ask_for_key(served_host, tmp_path)  # an earlier test may have seen the first one
    assert ask_for_key(served_host, tmp_path) is None
    first = ask_for_key(served_host, tmp_path, rotate=True)
    assert status_from_here(served_host.address, "/v1/models", first) == 200
    second = ask_for_key(served_host, tmp_path, rotate=True)
    assert status_from_here(served_host.address, "/v1/models", second) == 200
    assert status_from_here(served_host.address, "/v1/models", first) == 401
    assert "operator.new" not in served_host.ssh("ls /etc/kimi/keys")
    assert pids(served_host) == before
    for key in (first, second):
        assert key is not None
        traces = f"journalctl --no-pager | grep -cF -- {key}; grep -rlF -- {key} /etc /var/lib /srv"
        assert served_host.ssh(traces, check=False).split() == ["0"]


def test_what_is_hardened_stays_hardened(served_host: Host) -> None:
    text = served_host.ssh("systemd-analyze security --no-pager kimi-proxy.service | tail -1")
    exposure = float(text.split("kimi-proxy.service:")[1].split()[0])
    assert exposure <= 2.0
    places = "/run/kimi-proxy /run/kimi-proxy/admin.sock /run/kimi-proxy/master.sock"
    owner = served_host.ssh(f"stat -c '%U %a' {places}")
    assert owner.split() == ["kimi-proxy", "700", *("kimi-proxy", "600") * 2]


def test_verify_says_no_when_the_guard_is_gone(served_host: Host, second_host: Host) -> None:
    served_host.ssh("nft delete table inet kimi")
    try:
        done = kimi_prov(
            "verify", served_host.inventory, "--limit", served_host.name, "--format", "json"
        )
        assert done.returncode == 1, done.stdout + done.stderr
        checks = json.loads(done.stdout)["hosts"][served_host.name]["checks"]
        failed = [check["name"] for check in checks if check["status"] == "fail"]
        assert failed == ["outsider-refused"]
    finally:
        served_host.ssh("systemctl restart kimi-firewall.service")


# An administrator's, with names like ours.
THEIRS = (
    "/etc/apt/apt.conf.d/99-not-kimi-proxy",
    "/etc/apt/sources.list.d/kimi-internal.list",
    "/etc/systemd/system/kimi-backup.service",
    "/etc/systemd/system/kimi-proxy.service.d/theirs.conf",
    "/usr/local/share/ca-certificates/kimi-corp-root.crt",
)


def test_destroy_puts_the_machine_back(edge_lab: Lab) -> None:
    host = edge_lab.hosts["plain"]
    install(host)
    for path in THEIRS:
        text = "[Service]\nExecStart=/bin/true" if path.endswith(".service") else ""
        host.ssh(f"install -D /dev/null {path} && printf '{text}' > {path}")
    before = picture(host)
    done = host.playbook()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "changed=0" not in done.stdout
    listed = destroy(host, "--check")
    assert "unit kimi-serve@0.service" in listed
    assert status_from_here(host.address) == 200
    told = destroy(host)
    assert [path for path in THEIRS if path not in told] == []
    after = picture(host)
    for name in ("units", "running", "mounts", "nft", "sysctls", "users", "listening"):
        assert settled(after[name]) == settled(before[name]), name
    old, new = before["files"], after["files"]
    assert isinstance(old, dict)
    assert isinstance(new, dict)
    differing = {path for path in old.keys() | new.keys() if old.get(path) != new.get(path)}
    left = {path for path in differing if not path.startswith(("/srv/kimi/models", "/root/"))}
    by_packages = ("/etc/ld.so.cache", "/var/lib/", "/etc/passwd-", "/etc/group-", "/etc/shadow")
    assert {p for p in left if not p.startswith((*by_packages, "/etc/gshadow"))} == {"/srv/kimi"}
    assert "changed=0" in destroy(host)
    destroy(host, "-e", '{"destroy_purge_weights": true}')
    assert host.ssh("ls /srv").strip() == ""
    host.ssh("rm -r " + " ".join([*THEIRS, "/etc/systemd/system/kimi-proxy.service.d"]))
