"""The page on a real machine: log in and chat through the proxy, its key, its bounds, its end.

A stand-in answers where the engine would: what is looked at is the page. Installing its 177
packages takes most of the time.
"""

from __future__ import annotations

import http.client
import json
import ssl
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from machines import kimi_prov, make_lab
from waiting import until

from kimi_prov.catalog.loader import load_catalogue

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from machines import Host

pytestmark = [pytest.mark.lab, pytest.mark.slow]

NETWORK = "10.93.88"
PORT = 8443
ADMIN = ("admin@example.com", "p-\"$'\\-4711-long")
TAGS = ("--tags", "host_base,proxy,firewall,web_ui")
SAID = "Hello from the stand-in of an engine."

# Answers as the engine's port does, as the engine's user, and only to the machine key.
ENGINE = r"""
import http.server, json
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *args): pass
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        words = SAID.split(" ")
        parts = [{"choices": [{"index": 0, "delta": {"content": w + " "}}]} for w in words]
        if asked.get("stream"):
            body = "".join("data: %s\n\n" % json.dumps(p) for p in parts) + "data: [DONE]\n\n"
            kind = "text/event-stream"
        else:
            answer = {"role": "assistant", "content": SAID}
            body, kind = json.dumps({"choices": [{"index": 0, "message": answer}]}), "application/json"
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())
http.server.ThreadingHTTPServer(("127.0.0.1", 8001), Handler).serve_forever()
"""  # noqa: E501
# In the unit's own cgroup, file systems and user: what it can open and where it can knock.
INSIDE = r"""
import json, os, socket, subprocess, sys
def knock(address, port):
    try:
        socket.create_connection((address, port), timeout=3).close()
    except OSError as error:
        return type(error).__name__
    return "connected"
def read(path):
    try:
        if os.path.isdir(path):
            return "listed %d" % len(os.listdir(path))
        open(path, "rb").read(1)
    except OSError as error:
        return type(error).__name__
    return "read"
knocks, paths = json.loads(sys.argv[1])
print(json.dumps({
    "knocks": [knock(*one) for one in knocks],
    "reads": {path: read(path) for path in paths},
}))
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A machine with the page, and a stand-in for the engine."""
    folder = tmp_path_factory.mktemp("web")
    secret = folder / "admin"
    secret.write_text(":".join(ADMIN) + "\n")
    lab = make_lab(
        folder / "inv",
        NETWORK,
        nodes=["page"],
        kimi_web_ui=True,
        kimi_web_admin_file=str(secret),
    )
    with lab.running():
        host = lab.hosts["page"]
        apply(host)
        host.ssh(f"cat > /usr/local/lib/engine.py <<'EOF'\nSAID = {SAID!r}\n{ENGINE}\nEOF")
        host.ssh("systemd-run --unit=engine -p User=kimi python3 /usr/local/lib/engine.py")
        # What the proxy has seen of it is what the page gets.
        assert until(lambda: ask(host, "GET", "/health", port=8000)[0] == 200)
        yield host


def apply(host: Host) -> str:
    done = host.apply(*TAGS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def ask(
    host: Host,
    method: str,
    path: str,
    body: object = None,
    token: str | None = None,
    port: int = PORT,
) -> tuple[int, bytes]:
    """Ask the page, or what is on another port, through the proxy."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    connection = http.client.HTTPSConnection(host.address, port, timeout=120, context=context)
    headers = {"Content-Type": "application/json"}
    headers |= {"Authorization": f"Bearer {token}"} if token else {}
    data = json.dumps(body).encode() if body is not None else None
    connection.request(method, path, data, headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content


def login(host: Host, email: str = ADMIN[0], password: str = ADMIN[1]) -> str | None:
    status, content = ask(
        host, "POST", "/api/v1/auths/signin", {"email": email, "password": password}
    )
    return json.loads(content)["token"] if status == 200 else None


def chat(host: Host, token: str | None, *, stream: bool = True) -> tuple[int, bytes]:
    message = {"role": "user", "content": "Hello"}
    asked = {"model": "kimi-k2-lab", "messages": [message], "stream": stream}
    return ask(host, "POST", "/api/chat/completions", asked, token)


def answered(host: Host, token: str | None) -> bool:
    status, content = chat(host, token)
    return status == 200 and b"stand-in" in content


def inside(host: Host, knocks: list[tuple[str, int]], paths: list[str]) -> dict[str, Any]:
    """What a process in the unit gets, where the unit's own has no part of it left out."""
    host.ssh(f"cat > /usr/local/lib/inside.py <<'EOF'\n{INSIDE}\nEOF")
    question = json.dumps([knocks, paths])
    told = host.ssh(
        "pid=$(systemctl show -P MainPID kimi-web); "
        "echo $$ > /sys/fs/cgroup$(systemctl show -P ControlGroup kimi-web)/cgroup.procs; "
        "nsenter -t $pid -m setpriv --reuid=kimi-web --regid=kimi-web --clear-groups "
        f"python3 -c \"$(nsenter -t 1 -m cat /usr/local/lib/inside.py)\" '{question}'"
    )
    return json.loads(told)


def test_one_logs_in_and_an_answer_streams_through_the_page(host: Host) -> None:
    assert ask(host, "GET", "/api/models")[0] in (401, 403)
    assert login(host, password="wrong-wrong") is None
    token = login(host)
    assert token
    listed = json.loads(ask(host, "GET", "/api/models", None, token)[1])["data"]
    assert [row["id"] for row in listed] == ["kimi-k2-lab"]
    status, content = chat(host, token)
    assert status == 200
    assert content.count(b"data:") > len(SAID.split())


def test_no_secret_is_where_others_read_it(host: Host) -> None:
    shown = host.ssh("systemctl show kimi-web; ps axww -o args; journalctl -u kimi-web")
    assert ADMIN[1] not in shown
    assert "sk-kimi-" not in shown
    assert "web-admin.env" not in host.ssh("ls /etc/kimi")
    assert host.ssh("stat -c '%a %U' /etc/kimi/web.env /srv/kimi/web").split() == [
        *("600", "root"),
        *("700", "kimi-web"),
    ]


def test_signing_up_is_closed(host: Host) -> None:
    asked = {"name": "x", "email": "x@example.com", "password": "p-4711-long"}
    assert ask(host, "POST", "/api/v1/auths/signup", asked)[0] == 403


def keys(host: Host, *words: str) -> list[str]:
    """Host and name of each key that is left, without what is told of it."""
    done = kimi_prov("key", host.inventory, *words)
    assert done.returncode == 0, done.stderr
    return [" ".join(line.split()[:2]) for line in done.stdout.splitlines()]


def test_the_page_has_a_key_that_can_be_revoked_and_comes_back(host: Host) -> None:
    assert keys(host, "--list") == ["page operator", "page verify", "page web"]
    token = login(host)
    assert answered(host, token)
    assert keys(host, "--remove", "web") == ["page operator", "page verify"]
    assert b"API key" in chat(host, token)[1]
    apply(host)
    assert answered(host, token)


def test_an_engine_that_is_down_is_told_in_a_sentence_and_comes_back(host: Host) -> None:
    token = login(host)
    host.ssh("systemctl stop engine")
    assert until(lambda: b"starting or stopped" in chat(host, token, stream=False)[1])
    assert json.loads(ask(host, "GET", "/api/models", None, token)[1])["data"]
    host.ssh("systemd-run --unit=engine -p User=kimi python3 /usr/local/lib/engine.py")
    assert until(lambda: answered(host, token))


def test_the_unit_reaches_the_proxy_s_port_and_nothing_else(host: Host) -> None:
    host.ssh("install -D -m 0644 /dev/null /srv/other/data; install -m 0644 /dev/null /home/notes")
    ways = [("127.0.0.1", 8003), ("127.0.0.1", 8001), ("127.0.0.1", 8000), ("127.0.0.1", 22)]
    ways += [(f"{NETWORK}.1", 22), (host.address, 22)]
    closed = ["/etc/kimi", "/etc/kimi/web.env", "/var/lib/kimi", "/home/notes", "/root"]
    closed += ["/srv/other/data", "/srv/kimi/models", "/srv/kimi/lib"]
    seen = inside(host, ways, [*closed, "/srv/kimi/web", "/srv/kimi/web-env"])
    assert seen["knocks"][0] == "connected"
    assert "connected" not in seen["knocks"][1:]
    told = seen["reads"]
    assert [path for path in closed if told[path] == "read"] == []
    listed = {told[path] for path in closed if told[path].startswith("listed")}
    assert listed <= {"listed 0"}
    assert told["/srv/kimi/web"].startswith("listed")


def test_others_of_the_machine_do_not_reach_the_page_past_the_proxy(host: Host) -> None:
    script = "timeout 3 bash -c 'exec 3<>/dev/tcp/127.0.0.1/{}' 2>/dev/null; echo $?"
    for port in (8002, 8003):
        told = host.ssh(
            f"setpriv --reuid=nobody --regid=nogroup --clear-groups {script.format(port)}"
        )
        assert told.strip() != "0"


def test_nothing_is_done_twice(host: Host) -> None:
    apply(host)
    since = host.ssh("systemctl show -P ActiveEnterTimestampMonotonic kimi-web")
    assert "changed=0" in apply(host)
    assert host.ssh("systemctl show -P ActiveEnterTimestampMonotonic kimi-web") == since


def broken_version(folder: Path) -> Path:
    """Write a catalogue whose page is a newer version that cannot be started."""
    row = {**asdict(load_catalogue().web[-1]), "version": "99.0.0"}
    (folder / "locks").mkdir(parents=True)
    rows = {"schema": "kimi-prov/catalog/web/v1", "web": [row]}
    (folder / "web.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(rows))))
    pinned = load_catalogue().lock(load_catalogue().web[-1].lock_name("3.11"))
    start = pinned.index("aiocache==")
    lock = pinned[start : pinned.index("\naiodns", start)]
    (folder / "locks" / "open-webui-slim-99.0.0-cp311.txt").write_text(f"{lock}\n")
    return folder


def test_an_upgrade_that_fails_goes_back_and_chats_stay(host: Host, tmp_path: Path) -> None:
    token = login(host)
    overlay = {"KIMI_PROV_CATALOG": str(broken_version(tmp_path / "catalogue"))}
    done = kimi_prov("apply", host.inventory, *TAGS, env=overlay)
    assert done.returncode == 1
    assert "99.0.0" in done.stdout + done.stderr
    assert "rolled back to 0.12.4" in done.stdout + done.stderr
    assert answered(host, token)
    assert "/0.12.4-" in host.ssh("readlink -f /srv/kimi/web-env/current/bin/open-webui")
    apply(host)
    assert answered(host, token)


def test_destroy_keeps_the_chats_until_it_is_told_otherwise(host: Host) -> None:
    done = kimi_prov("destroy", host.inventory, "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "/srv/kimi/web" in done.stdout
    assert host.ssh("ls /srv/kimi/web/webui.db; getent passwd kimi-web || echo gone").split() == [
        "/srv/kimi/web/webui.db",
        "gone",
    ]
    done = kimi_prov("destroy", host.inventory, "--yes", "--purge-web")
    assert done.returncode == 0, done.stdout + done.stderr
    assert host.ssh("ls -d /srv/kimi/web /srv/kimi/web-env 2>&1 | grep -c 'No such'").strip() == "2"
