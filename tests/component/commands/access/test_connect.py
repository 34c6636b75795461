"""`connect` and `chat` as their user has them: a server with TLS, stand-ins of SLURM and of ssh."""

from __future__ import annotations

import http.server
import json
import re
import signal
import socket
import ssl
import subprocess
import threading
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chat_stand_in
import closed_form
import psutil
import pytest
from chat_stand_in import Engine
from made_certificates import signed
from on_terminal import CTRL_C, CTRL_D, PROMPT, OnTerminal
from slurm_stand_in import Site, endpoint, job
from waiting import until

from kimi_prov.on_host.endpoint import tls

if TYPE_CHECKING:
    from collections.abc import Iterator

    import command_line

LOGIN = "me@login.example.com"
KEY = "sk-kimi-canary"
HELLO = "Hello from the stand-in."


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        allowed = self.headers["Authorization"] == f"Bearer {KEY}"
        self.send_response(200 if allowed and self.path == "/v1/models" else 401)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(folder: Path, name: str) -> Iterator[tuple[int, str]]:
    """A server that speaks TLS: its port, and its certificate."""
    pem = tls.make_self_signed([name])
    file = folder / f"{name}.pem"
    file.write_text(pem)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1], tls.extract_certificates(pem)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def site(rendered: Path, tmp_path: Path) -> Site:
    """The folder as it was submitted through ssh, and the key of its first server."""
    found = Site.of(rendered, tmp_path)
    (found.root / "renders").mkdir(parents=True)
    found.folder.rename(there(found))
    found.folder.symlink_to(there(found))
    (found.root / "keys").mkdir()
    (found.root / "keys" / "api.key").write_text(f"{KEY}\n")
    return found


def there(site: Site) -> Path:
    return site.root / "renders" / "kimi-jobs"


def publish(site: Site, number: int, server: tuple[int, str], **fields: Any) -> None:
    port, certificate = server
    endpoint(
        site.root,
        number,
        there(site),
        **{"url": f"https://c1:{port}/v1", "certificate": certificate, **fields},
    )


class Connected:
    """The command while it runs: its document, and what it has said so far."""

    def __init__(self, site: Site, *words: object) -> None:
        line = ("connect", site.folder, "--every", "0.3", "--format", "json", *words)
        self.process = site.slurm.start(*line)
        self._said: list[str] = []
        assert self.process.stderr is not None
        stream = self.process.stderr
        self._thread = threading.Thread(target=lambda: self._said.extend(iter(stream.readline, "")))
        self._thread.start()

    @property
    def said(self) -> str:
        return "".join(self._said)

    def document(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if line == "}\n":
                break
        found: dict[str, Any] = json.loads("".join(lines) or "null")
        assert found, self.said
        closed_form.validate(found, "connect")
        return found

    def end(self, number: int = signal.SIGINT) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(timeout=60)
        self._thread.join()
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stdout.close()
        self.process.stderr.close()
        return code


@contextmanager
def connected(site: Site, *words: object) -> Iterator[Connected]:
    found = Connected(site, *words)
    try:
        yield found
    finally:
        found.end()


def models(document: dict[str, Any]) -> int:
    """What a client gets that has no more than the document's files."""
    key = Path(document["key_file"]).read_text().strip()
    trusted = ssl.create_default_context(cafile=document["certificate_file"])
    headers = {"Authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"{document['base_url']}/models", headers=headers)  # noqa: S310
    with urllib.request.urlopen(request, timeout=30, context=trusted) as answer:  # noqa: S310
        return int(answer.status)


def test_a_client_reaches_the_server_with_what_is_printed(site: Site, tmp_path: Path) -> None:
    site.slurm.queue(job(200, "serve", there(site)))
    with serving(tmp_path, "c1") as server:
        publish(site, 200, server)
        with connected(site, "--login", LOGIN) as found:
            document = found.document()
            assert models(document) == 200
            assert document["base_url"].startswith("https://127.0.0.1:")
            assert (document["job"], document["node"], document["login"]) == ("200", "c1", LOGIN)
            key_file = Path(document["key_file"])
            assert key_file.is_relative_to(site.slurm.base / "state")
            assert key_file.stat().st_mode & 0o777 == 0o600
            assert Path(document["certificate_file"]).stat().st_mode & 0o777 == 0o644
            assert found.end() == 130
            assert KEY not in found.said
        port = int(document["base_url"].rpartition(":")[2].partition("/")[0])
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0
    calls = (site.slurm.there / "ssh").read_text()
    assert f":c1:{server[0]}" in calls
    assert KEY not in calls


def test_it_is_said_in_words_that_fit_and_the_key_is_not(site: Site, tmp_path: Path) -> None:
    site.slurm.queue(job(200, "serve", there(site)))
    with serving(tmp_path, "c1") as server:
        publish(site, 200, server)
        process = site.slurm.start("connect", site.folder, "--login", LOGIN)
        assert process.stdout is not None
        lines: list[str] = []
        while not lines or not lines[-1].startswith("export SSL_CERT_FILE"):
            lines.append(process.stdout.readline())
            assert lines[-1] or process.poll() is None
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
    text = "".join(lines) + rest
    assert KEY not in text
    script = re.search(r"^cert=.*?/models$", text, re.DOTALL | re.MULTILINE)
    assert script
    assert subprocess.run(["bash", "-n", "-c", script[0]], check=False).returncode == 0


def test_the_successor_is_followed_at_the_same_address(site: Site, tmp_path: Path) -> None:
    site.slurm.queue(job(200, "serve", there(site)), job(201, "serve", there(site), T="PENDING"))
    with serving(tmp_path, "c1") as first, serving(tmp_path, "c2") as second:
        publish(site, 200, first)
        with connected(site, "--login", LOGIN, "--job", "200") as found:
            document = found.document()
            publish(site, 200, first, state="draining", successor="201")
            assert until(lambda: "job 201 takes over" in found.said)
            publish(site, 200, first, state="ended", successor="201")
            site.slurm.queue(job(201, "serve", there(site)))
            assert until(lambda: "job 201 is running; waiting" in found.said)
            publish(site, 201, second, node="c2", url=f"https://c2:{second[0]}/v1")
            assert until(lambda: "job 201 on c2 answers now" in found.said)
            assert models(document) == 200
            publish(site, 201, second, state="ended")
            site.slurm.queue()
            assert until(lambda: "job 201 has ended, and no job takes over" in found.said)
            assert found.process.wait(60) == 1


def test_a_tunnel_that_breaks_is_opened_again_and_a_login_node_may_be_away(
    site: Site, tmp_path: Path
) -> None:
    site.slurm.queue(job(200, "serve", there(site)))
    with serving(tmp_path, "c1") as server:
        publish(site, 200, server)
        with connected(site, "--login", LOGIN) as found:
            document = found.document()
            (site.slurm.there / "cut").touch()
            assert until(lambda: "No route to host" in found.said)
            # Nobody is told again and again, and who is connected stays so.
            assert models(document) == 200
            assert found.said.count("No route to host") == 1
            (site.slurm.there / "cut").unlink()
            (ssh,) = [
                p for p in psutil.Process(found.process.pid).children() if "-N" in p.cmdline()
            ]
            ssh.kill()
            assert until(lambda: "job 200 on c1 answers now" in found.said)
            assert models(document) == 200


def test_a_server_that_loads_is_waited_for(site: Site, tmp_path: Path) -> None:
    site.slurm.queue(job(200, "serve", there(site), T="PENDING", r="Priority", N=""))
    with serving(tmp_path, "c1") as server, connected(site, "--login", LOGIN) as found:
        assert until(lambda: "job 200 is pending (Priority); waiting" in found.said)
        publish(site, 200, server)
        site.slurm.queue(job(200, "serve", there(site)))
        assert models(found.document()) == 200


def test_on_the_login_node_there_is_no_tunnel(site: Site, tmp_path: Path) -> None:
    site.slurm.queue(job(200, "serve", there(site)))
    with serving(tmp_path, "localhost") as server:
        publish(site, 200, server, node="localhost", url=f"https://localhost:{server[0]}/v1")
        with connected(site, "--login", "") as found:
            document = found.document()
            assert document["base_url"] == f"https://localhost:{server[0]}/v1"
            assert document["login"] is None
            assert models(document) == 200
    assert not (site.slurm.there / "ssh").exists()


def test_another_certificate_than_the_published_one_is_refused(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.slurm.queue(job(200, "serve", there(site)))
    with serving(tmp_path, "c1") as server:
        publish(site, 200, (server[0], tls.extract_certificates(tls.make_self_signed(["c1"]))))
        told = site.fails("connect", site.folder, "--login", LOGIN, code=1)
    assert "another certificate was shown" in told


def test_what_is_not_there_is_said(site: Site) -> None:
    words = ("connect", site.folder, "--login", LOGIN)
    assert "no server of this folder answers" in site.fails(*words, code=1)
    site.slurm.queue(job(200, "serve", there(site)))
    publish(site, 200, (8101, ""))
    assert "no server of job 300" in site.fails(*words, "--job", "300", code=1)
    assert "expected USER@HOST" in site.fails(*words[:2], "--login=-oProxyCommand=x", code=2)
    (site.slurm.there / "cut").touch()
    assert "No route to host" in site.fails(*words, code=4)
    assert "no file of hosts lies right in it" in site.fails("connect", site.root, code=2)


def test_a_node_that_ssh_would_read_otherwise_is_refused(site: Site, tmp_path: Path) -> None:
    site.slurm.queue(job(200, "serve", there(site)))
    certificate = tls.extract_certificates(tls.make_self_signed(["c1"]))
    for node in ("-oProxyCommand=x", "c1:22:evil", "c1 c2", "\x1b[2J"):
        publish(site, 200, (8101, certificate), node=node)
        told = site.fails("connect", site.folder, "--login", LOGIN, code=1)
        assert "is no host's name" in told
    assert "-L" not in (site.slurm.there / "ssh").read_text()


def test_a_port_that_is_taken_is_exit_3(site: Site, tmp_path: Path) -> None:
    site.slurm.queue(job(200, "serve", there(site)))
    with serving(tmp_path, "c1") as server, socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        publish(site, 200, server)
        port = str(held.getsockname()[1])
        words = ("connect", site.folder, "--login", LOGIN, "--port", port)
        assert f"port {port} of this computer is taken" in site.fails(*words, code=3)


@pytest.fixture
def engine(site: Site, tmp_path: Path) -> Iterator[Engine]:
    """A server of job 200 that answers questions."""
    pem = tls.make_self_signed(["c1"])
    found = Engine(KEY, model="kimi")
    site.slurm.queue(job(200, "serve", there(site)))
    with chat_stand_in.serving(tmp_path, pem, found) as port:
        publish(site, 200, (port, tls.extract_certificates(pem)))
        yield found


def test_a_snippet_asks_the_server_through_the_tunnel(site: Site, engine: Engine) -> None:
    words = ("connect", site.folder, "--login", LOGIN, "--for", "curl")
    process = site.slurm.start(*words)
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        while lines[-1] not in ("EOF\n", ""):
            lines.append(process.stdout.readline())
        done = subprocess.run(
            ["bash", "-c", "".join(lines)], capture_output=True, text=True, check=False
        )
    finally:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["choices"][0]["message"]["content"] == HELLO
    assert KEY not in "".join(lines) + out + err
    assert "the tunnel stays until Ctrl-C" in err
    told = site.fails(*words, "--format", "json", code=2)
    assert "--for: a snippet is text" in told


def test_a_certificate_that_clients_refuse_is_told_with_what_mends_it(
    site: Site, tmp_path: Path
) -> None:
    _, pem = signed(["c1"])
    site.slurm.queue(job(200, "serve", there(site)))
    with chat_stand_in.serving(tmp_path, pem, Engine(KEY, model="kimi")) as port:
        publish(site, 200, (port, tls.extract_certificates(pem)))
        words = ("connect", site.folder, "--login", LOGIN, "--for", "curl")
        told = site.fails(*words, code=1)
    assert f"{site.folder}: clients refuse its certificate as c1" in told
    assert "fix: submit the server's job again" in told
    assert "--ca" not in told


def piped(site: Site, *words: object) -> command_line.Done:
    return site.slurm.run("chat", site.folder, *words, given="Say hello.")


def test_a_chat_asks_the_server_through_the_login_node(site: Site, engine: Engine) -> None:
    done = piped(site, "--login", LOGIN)
    assert (done.returncode, done.stdout) == (0, f"{HELLO}\n"), done.stderr
    assert engine.asked[0]["model"] == "kimi"
    assert KEY not in done.stderr + (site.slurm.there / "ssh").read_text()
    # The key is needed here alone: it is written nowhere.
    assert not list(site.slurm.base.rglob("api.key"))
    done = piped(site, "--login", LOGIN, "--model", "other")
    assert done.returncode == 2
    assert "it serves no model other" in done.stderr


def test_a_chat_waits_for_a_server_that_loads_and_not_for_none(site: Site, engine: Engine) -> None:
    document = json.loads((site.root / "endpoints" / "200.json").read_text())
    publish(site, 200, (1, ""), state="loading")
    chat = OnTerminal(
        ["chat", site.folder, "--login", LOGIN], site.slurm.base, site.slurm.environment
    )
    try:
        assert chat.shows("job 200 is loading; waiting")
        (site.root / "endpoints" / "200.json").write_text(json.dumps(document))
        assert chat.shows("Ctrl-D leaves")
        assert chat.shows(PROMPT)
        chat.type(CTRL_D)
        assert chat.ends() == 0
    finally:
        chat.kill()
    site.slurm.queue()
    told = site.fails("chat", site.folder, "--login", LOGIN, code=1)
    assert "no server of this folder answers" in told
    told = site.fails("chat", site.folder, "--context", "x", code=2)
    assert "--context: belongs to a folder for Kubernetes" in told


def test_a_chat_goes_on_with_the_successor(site: Site, engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    pem = tls.make_self_signed(["c2"])
    # Another key and another model: who removes the key gets another at the next start.
    heir = Engine(f"{KEY}-2", model="kimi-next")
    words = ["chat", site.folder, "--login", LOGIN]
    chat = OnTerminal(words, tmp_path, site.slurm.environment)
    try:
        with chat_stand_in.serving(tmp_path / "second", pem, heir) as port:
            assert chat.shows("Ctrl-D leaves")
            assert chat.shows(PROMPT)
            chat.type("wait\n")
            assert chat.shows("Hello from")
            # Ctrl-C is for the answer, and not for ssh.
            chat.type(CTRL_C)
            assert chat.shows("interrupted")
            assert chat.shows(PROMPT)
            publish(site, 200, (9, ""), state="ended", successor="201")
            site.slurm.queue(job(201, "serve", there(site), N="c2"))
            certificate = tls.extract_certificates(pem)
            url = f"https://c2:{port}/v1"
            publish(site, 201, (port, certificate), node="c2", url=url, model=heir.model)
            (site.root / "keys" / "api.key").write_text(f"{heir.key}\n")
            engine.key = "sk-of-nobody"
            chat.type("next\n")
            assert chat.shows("kimi-next answers now")
            assert chat.shows("tokens")
            assert [body["messages"][-1]["content"] for body in heir.asked] == ["next"]
            chat.type(CTRL_D)
            assert chat.ends() == 0
    finally:
        chat.kill()
