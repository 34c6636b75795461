"""The page as people have it: the distribution's Chromium logs in, asks, and finds its history.

A stand-in answers where the engine would, half of it when it is told to go on: so that a stream is
seen, and not only its end. The pictures lie where KIMI_PROV_SCREENSHOTS says, else in a folder of
pytest's that is printed.
"""

from __future__ import annotations

import base64
import json
import os
import re
import ssl
import stat
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import browsers
import pytest
from machines import kimi_prov, make_lab
from pictures import png
from playwright.sync_api import expect
from waiting import HANGS_S, until
from web_visitors import HANGS_MS, NARROW, PORT, WIDE, Visitor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from machines import Host, Lab
    from playwright.sync_api import Browser

# Installing the page's 177 packages takes most of the time.
pytestmark = [pytest.mark.lab, pytest.mark.slow]

NETWORK = "10.93.89"
ADMIN = ("admin@example.org", "correct horse battery staple")
SECOND = ("second@example.org", "another horse of the stable")
TAGS = ("--tags", "host_base,proxy,firewall,web_ui")
RED = png(40, 30, (200, 30, 30))
DOWN = "The engine is starting or stopped; try again."

# Answers as the engine's port does, and writes down what it was asked last. A question with
# "slowly" gets its second half when /run/go is there.
ENGINE = r"""
import http.server, json, os, time
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *args): pass
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")
    def piece(self, text):
        part = {"choices": [{"index": 0, "delta": {"content": text}}]}
        self.wfile.write(b"data: %s\n\n" % json.dumps(part).encode())
        self.wfile.flush()
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        asked = json.loads(body)
        question = json.dumps(asked["messages"][-1])
        if asked.get("stream"):
            with open("/run/stand-in/asked.json", "wb") as kept:
                kept.write(body)
        if not asked.get("stream"):
            answer = {"role": "assistant", "content": "A title"}
            body = json.dumps({"choices": [{"index": 0, "message": answer}]}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        self.piece("The stand-in begins ")
        while "slowly" in question and not os.path.exists("/run/go"):
            time.sleep(0.05)
        self.piece("and it ends.")
        self.wfile.write(b"data: [DONE]\n\n")
http.server.ThreadingHTTPServer(("127.0.0.1", 8001), Handler).serve_forever()
"""
# A picture that waits beside the question.
ATTACHED = "#message-input-container img"
BEGINS, ENDS = "The stand-in begins", "The stand-in begins and it ends."


@pytest.fixture(scope="module")
def web_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("page")
    secret = folder / "admin"
    secret.write_text(":".join(ADMIN) + "\n")
    made = make_lab(
        folder / "inv",
        NETWORK,
        nodes=["page", "other"],
        kimi_web_ui=True,
        kimi_web_admin_file=str(secret),
    )
    made.up()
    yield made
    made.down()


def install(host: Host) -> None:
    """The page, and a stand-in where the engine would be."""
    done = host.apply(*TAGS)
    assert done.returncode == 0, done.stdout + done.stderr
    # The role `serve` writes it, and was left out with the engine.
    planned = kimi_prov("plan", host.inventory, "--limit", host.name, "--format", "json")
    web = json.loads(planned.stdout)["hosts"][host.name]["web"]
    host.ssh(f"cat > /etc/kimi/plan.json <<'EOF'\n{json.dumps({'web': web})}\nEOF")
    host.ssh(f"cat > /usr/local/lib/engine.py <<'EOF'\n{ENGINE}\nEOF")
    start_engine(host)


def answers(host: Host, port: int, path: str) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    url = f"https://{host.address}:{port}{path}"
    try:
        with urllib.request.urlopen(url, timeout=HANGS_S, context=context) as answer:
            return answer.status == 200
    except OSError:
        return False


def start_engine(host: Host) -> None:
    own = "-p User=kimi -p RuntimeDirectory=stand-in"
    host.ssh(f"systemd-run --unit=engine {own} python3 /usr/local/lib/engine.py")
    # What the proxy has seen of it is what the page gets.
    assert until(lambda: answers(host, 8000, "/health"))


@pytest.fixture(scope="module")
def host(web_lab: Lab) -> Host:
    install(web_lab.hosts["page"])
    return web_lab.hosts["page"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsers.chromium("--disable-gpu", "--disable-dev-shm-usage") as started:
        yield started


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    named = os.environ.get("KIMI_PROV_SCREENSHOTS")
    folder = Path(named) if named else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    sys.stdout.write(f"\nscreenshots: {folder}\n")
    return folder


@pytest.fixture(scope="module")
def admin(browser: Browser, host: Host) -> Visitor:
    return Visitor(browser, host).log_in(ADMIN)


@pytest.fixture(scope="module")
def first_chat(admin: Visitor) -> str:
    return admin.chat("Say something", ENDS)


def reachable(host: Host) -> bool:
    """Whether the page answers, its database included."""
    return until(lambda: answers(host, PORT, "/ready"), hangs_s=5 * HANGS_S)


def whole(host: Host) -> bool:
    """Whether SQLite finds nothing wrong with what the page keeps."""
    look = (
        "import sqlite3; database = sqlite3.connect('/srv/kimi/web/webui.db'); "
        "print(database.execute('pragma integrity_check').fetchone()[0])"
    )
    return host.ssh(f'runuser -u kimi-web -- python3 -c "{look}"').strip() == "ok"


def test_an_answer_streams_and_is_found_again_after_a_reload(
    host: Host, admin: Visitor, pictures: Path
) -> None:
    admin.ask("Tell me slowly")
    admin.sees(BEGINS)
    admin.sees_no(ENDS)
    admin.page.screenshot(path=pictures / "streaming-wide.png")
    host.ssh("touch /run/go")
    admin.sees(ENDS)
    admin.page.wait_for_url(re.compile("/c/"))
    path = admin.page.url.removeprefix(admin.address)
    assert until(lambda: ENDS in admin.kept(path))
    admin.page.reload()
    admin.sees(ENDS)
    admin.page.screenshot(path=pictures / "history-wide.png")
    admin.page.set_viewport_size(NARROW)
    admin.sees(ENDS)
    admin.page.screenshot(path=pictures / "history-narrow.png")
    # Nothing hangs over the edge of a narrow screen.
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert admin.page.evaluate(wide) == 0
    admin.page.set_viewport_size(WIDE)
    assert (admin.elsewhere, admin.refused) == ([], [])


def test_a_second_account_sees_nothing_of_it(
    host: Host, browser: Browser, admin: Visitor, first_chat: str, pictures: Path
) -> None:
    made = admin.context.request.post(
        "/api/v1/auths/add",
        headers=admin.token(),
        data={"name": "Second", "email": SECOND[0], "password": SECOND[1], "role": "user"},
    )
    assert made.ok, made.text()
    second = Visitor(browser, host).log_in(SECOND)
    listed = second.context.request.get("/api/v1/chats/?page=1", headers=second.token())
    assert listed.json() == []
    assert second.kept(first_chat) in {"status 401", "status 403", "status 404"}
    second.page.goto(first_chat)
    second.ready()
    second.sees_no(ENDS)
    second.page.screenshot(path=pictures / "second-account.png")
    own = second.chat("Mine alone", ENDS)
    # The administrator sees nothing of others' either.
    assert admin.kept(own) in {"status 401", "status 403", "status 404"}
    second.context.close()


def test_the_page_says_that_the_engine_is_down_and_goes_on_when_it_is_back(
    host: Host, admin: Visitor, pictures: Path
) -> None:
    admin.page.goto("/")
    admin.ready()
    host.ssh("systemctl stop engine")
    admin.ask("Are you there?")
    admin.sees(DOWN)
    admin.page.screenshot(path=pictures / "engine-down.png")
    start_engine(host)
    # In the same chat, with no reload.
    admin.ask("And now?")
    admin.sees(ENDS)


def test_a_page_that_is_down_says_so_and_comes_back_by_itself(
    host: Host, admin: Visitor, pictures: Path
) -> None:
    host.ssh("systemctl stop kimi-web")
    admin.page.goto("/")
    admin.sees("The page is starting or stopped.")
    admin.page.screenshot(path=pictures / "page-down.png")
    host.ssh("systemctl start kimi-web")
    # Nobody touches the browser.
    admin.ready()


def test_a_kill_in_the_middle_of_an_answer_harms_no_chat_that_was_answered(
    host: Host, admin: Visitor, first_chat: str
) -> None:
    host.ssh("rm -f /run/go")
    admin.page.goto("/")
    admin.ready()
    admin.ask("Tell me slowly")
    admin.sees(BEGINS)
    host.ssh("systemctl kill --signal=KILL kimi-web; touch /run/go")
    assert reachable(host)
    assert whole(host)
    admin.page.goto(first_chat)
    admin.sees(ENDS)
    admin.chat("Still there?", ENDS)


def web(*words: str | Path) -> dict[str, Any]:
    """One of the commands, and its document."""
    done = kimi_prov("web", *words, "--format", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_a_backup_is_made_while_the_page_runs_and_put_back(
    host: Host, admin: Visitor, first_chat: str, tmp_path: Path
) -> None:
    archive = tmp_path / "page.tar.gz"
    picture = os.urandom(300_000)
    brought = admin.context.request.post(
        "/api/v1/files/?process=false",
        headers=admin.token(),
        multipart={"file": {"name": "cat.png", "mimeType": "image/png", "buffer": picture}},
    )
    assert brought.ok, brought.text()
    content = f"/api/v1/files/{brought.json()['id']}/content"
    started = host.ssh("systemctl show -P MainPID kimi-web")
    told = web("backup", host.inventory, "--limit", host.name, "--to", archive)
    assert host.ssh("systemctl show -P MainPID kimi-web") == started
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    assert told["hosts"][host.name]["accounts"] >= 1
    again = kimi_prov("web", "backup", host.inventory, "--limit", host.name, "--to", archive)
    assert (again.returncode, "there is a file already" in again.stderr) == (2, True)
    assert told["hosts"][host.name]["uploads"] == 1
    later = admin.chat("Later than the backup", ENDS)
    host.ssh("rm /srv/kimi/web/uploads/*")
    unasked = kimi_prov("web", "restore", host.inventory, archive, "--limit", host.name)
    assert (unasked.returncode, "--yes" in unasked.stderr) == (2, True)
    back = web("restore", host.inventory, archive, "--limit", host.name, "--yes")
    assert back["hosts"][host.name]["chats"] == told["hosts"][host.name]["chats"]
    # The session goes on: its key is the machine's and not the archive's.
    admin.page.goto(first_chat)
    admin.sees(ENDS)
    assert admin.kept(later).startswith("status 4")
    assert admin.context.request.get(content, headers=admin.token()).body() == picture
    assert ".kimi" not in host.ssh("ls -A /srv/kimi/web")
    assert host.ssh("ls -d /srv/kimi/transfer", check=False) == ""


def test_a_bad_archive_changes_nothing(
    host: Host, admin: Visitor, first_chat: str, tmp_path: Path
) -> None:
    archive = tmp_path / "half.tar.gz"
    web("backup", host.inventory, "--limit", host.name, "--to", archive)
    archive.write_bytes(archive.read_bytes()[:-200])
    started = host.ssh("systemctl show -P MainPID kimi-web")
    done = kimi_prov("web", "restore", host.inventory, archive, "--limit", host.name, "--yes")
    assert done.returncode == 1
    assert "damaged" in done.stderr or "incomplete" in done.stderr
    assert "take another backup" in done.stderr
    assert host.ssh("systemctl show -P MainPID kimi-web") == started
    admin.page.goto(first_chat)
    admin.sees(ENDS)


def test_a_backup_is_restored_on_another_machine(
    web_lab: Lab, host: Host, browser: Browser, first_chat: str, tmp_path: Path, pictures: Path
) -> None:
    other = web_lab.hosts["other"]
    archive = tmp_path / "page.tar.gz"
    told = web("backup", host.inventory, "--limit", host.name, "--to", archive)
    install(other)
    back = web("restore", other.inventory, archive, "--limit", other.name, "--yes")
    names = ("accounts", "chats", "uploads", "version", "sha256")
    found = back["hosts"][other.name]
    assert {name: found[name] for name in names} == {
        name: told["hosts"][host.name][name] for name in names
    }
    visitor = Visitor(browser, other).log_in(ADMIN)
    assert ENDS in visitor.kept(first_chat)
    visitor.page.goto(first_chat)
    visitor.sees(ENDS)
    visitor.page.screenshot(path=pictures / "restored.png")
    visitor.chat("New here", ENDS)
    visitor.context.close()


def attach(visitor: Visitor) -> None:
    """Give the picture to a new chat, as one who picks a file."""
    visitor.page.goto("/")
    visitor.ready()
    picked = {"name": "red.png", "mimeType": "image/png", "buffer": RED}
    visitor.page.locator("input[type=file]").first.set_input_files(picked)  # type: ignore[arg-type]


def asked_with(host: Host, question: str) -> list[dict[str, Any]]:
    """The parts of the last question that came to the stand-in of the engine."""
    asked = json.loads(host.ssh("cat /run/stand-in/asked.json"))
    content = asked["messages"][-1]["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    assert question in json.dumps(parts)
    return list(parts)


def page_applied(host: Host, *more: str) -> None:
    """Apply the page alone. The plan that stands there is this module's own: it is no history."""
    host.ssh("mv /etc/kimi/plan.json /root/plan.json")
    try:
        done = host.playbook(*TAGS, *more)
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        host.ssh("mv /root/plan.json /etc/kimi/plan.json")


def test_no_picture_is_taken_for_a_model_that_does_not_see(host: Host, admin: Visitor) -> None:
    attach(admin)
    admin.sees("do not support image inputs")
    expect(admin.page.locator(ATTACHED)).to_have_count(0, timeout=HANGS_MS)
    admin.ask("Which colour is it not?")
    admin.sees(ENDS)
    parts = asked_with(host, "Which colour is it not?")
    assert [part["type"] for part in parts] == ["text"]


def test_a_picture_goes_to_a_model_that_sees_byte_for_byte(
    host: Host, admin: Visitor, pictures: Path
) -> None:
    page_applied(host, "-e", json.dumps({"kimi_model": "kimi-k2.5"}))
    try:
        assert reachable(host)
        attach(admin)
        expect(admin.page.locator(ATTACHED)).to_have_count(1, timeout=HANGS_MS)
        admin.page.screenshot(path=pictures / "picture.png")
        admin.ask("Which colour is it?")
        admin.sees(ENDS)
        parts = asked_with(host, "Which colour is it?")
        [sent] = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
        kind, _, data = sent.partition(",")
        assert kind == "data:image/png;base64"
        assert base64.b64decode(data) == RED
    finally:
        page_applied(host)
        assert reachable(host)


def test_a_full_disk_and_a_cut_of_power_harm_no_chat_that_was_answered(
    host: Host, admin: Visitor, first_chat: str
) -> None:
    """The page's data on a disk of their own, which is filled while the page runs."""
    host.ssh(
        "systemctl stop kimi-web; mkdir /srv/kimi/kept; cp -a /srv/kimi/web/. /srv/kimi/kept/; "
        "mount -t tmpfs -o size=$(($(du -sk /srv/kimi/kept | cut -f1) + 2048))k none "
        "/srv/kimi/web; cp -a /srv/kimi/kept/. /srv/kimi/web/; "
        "chown kimi-web:kimi-web /srv/kimi/web; chmod 700 /srv/kimi/web; systemctl start kimi-web"
    )
    assert reachable(host)
    host.ssh("cat /dev/zero > /srv/kimi/web/full", check=False)
    admin.page.goto(first_chat)
    admin.sees(ENDS)
    admin.page.goto("/")
    admin.ready()
    admin.ask("With no room left")
    # As after a cut: what was not forced to the disk by then is gone.
    host.ssh("systemctl kill --signal=KILL kimi-web; rm /srv/kimi/web/full")
    assert reachable(host)
    assert whole(host)
    admin.page.goto(first_chat)
    admin.sees(ENDS)
    admin.chat("Room again", ENDS)
    host.ssh(
        "systemctl stop kimi-web; umount -l /srv/kimi/web; rm -r /srv/kimi/kept; "
        "systemctl start kimi-web"
    )
    assert reachable(host)
