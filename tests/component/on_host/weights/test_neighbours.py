"""Weights from neighbour to neighbour: processes that give, fetch, lie, die and are slow."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import threading
import urllib.parse
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from made_certificates import certificate
from ports import free_port
from waiting import until
from weights_server import Server

from kimi_prov.contract.sizes import format_bytes
from kimi_prov.on_host.endpoint import api_client, tls
from kimi_prov.on_host.weights import fetch

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[4]
KEY = "the key of the one that takes"
NAMES = ("node1", "node2", "node3")


def noise(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)  # noqa: S311


def manifest_of(files: dict[str, bytes]) -> dict[str, Any]:
    rows = [
        {"path": name, "size": len(body), "sha256": hashlib.sha256(body).hexdigest()}
        for name, body in files.items()
    ]
    return {"files": rows}


@pytest.fixture(scope="module")
def pem() -> str:
    return certificate(["node1"], 1, 30)


@pytest.fixture
def files() -> dict[str, bytes]:
    many = {f"model-{n}.safetensors": noise(n, 400_000 + n) for n in range(6)}
    return {**many, "config.json": b"{}\n"}


@pytest.fixture
def source(files: dict[str, bytes]) -> Iterator[Server]:
    server = Server(files)
    yield server
    server.stop()


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def served(source: Server) -> int:
    return sum(source.behaviour.served.values())


class Host:
    """A machine that fetches, and may take from another and give to others."""

    def __init__(self, root: Path, name: str, files: dict[str, bytes], url: str) -> None:
        self.name = name
        self.root = root / name
        self.root.mkdir()
        self.dir = self.root / "models/kimi/rev"
        self.port = free_port()
        self.progress_path = self.root / "fetch.json"
        self.near = self.root / "from.json"
        self.config = self.root / "weights.json"
        self.settings: dict[str, Any] = {
            "source": url,
            "dir": str(self.dir),
            "manifest": manifest_of(files),
            "progress": str(self.progress_path),
            "workers": 2,
            "stall_s": 5,
            "pause_s": 0.1,
        }
        self.processes: list[subprocess.Popen[str]] = []

    def takes_from(self, giver: str, port: int, pem: str, key: str = KEY, **limits: float) -> None:
        self.near.write_text(
            json.dumps(
                {
                    "name": giver,
                    "address": "127.0.0.1",
                    "port": port,
                    "certificate_sha256": tls.compute_fingerprint(pem),
                    "key": key,
                    "limits": {
                        "again_s": 0.05,
                        "grace_s": 300,
                        "gone_s": 300,
                        "slowest": 1,
                        **limits,
                    },
                }
            )
        )

    def _run(self, *argv: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-I", "-m", "kimi_prov.on_host", *argv]
        with (self.root / f"{argv[0]}.log").open("a") as log:
            started = subprocess.Popen(
                command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, text=True
            )
        self.processes.append(started)
        return started

    def fetches(self) -> subprocess.Popen[str]:
        self.config.write_text(json.dumps(self.settings))
        return self._run("fetch", "--config", str(self.config), "--neighbour", str(self.near))

    def gives(self, pem: str, **changes: Any) -> subprocess.Popen[str]:
        (self.root / "tls.pem").write_text(pem)
        digest = hashlib.sha256(KEY.encode()).hexdigest()
        document = {
            "address": "127.0.0.1",
            "port": self.port,
            "directories": [str(self.dir)],
            "progress": str(self.progress_path),
            "takers": {"node2": {"key_sha256": digest, "from": ["127.0.0.1"]}},
            **changes,
        }
        share = self.root / "share.json"
        share.write_text(json.dumps(document))
        started = self._run("share", "serve", str(share), str(self.root / "tls.pem"))
        assert until(lambda: self._listens(pem)), self.log("share")
        return started

    def shares(self, **changes: Any) -> None:
        share = self.root / "share.json"
        (self.root / "new").write_text(json.dumps({**json.loads(share.read_text()), **changes}))
        (self.root / "new").replace(share)

    def forgets(self, names: list[str]) -> None:
        """Have only the other files verified."""
        mark = self.dir / ".kimi-verified"
        document = json.loads(mark.read_text())
        document["verified"] = {n: r for n, r in document["verified"].items() if n not in names}
        mark.write_text(json.dumps(document))

    def _listens(self, pem: str) -> bool:
        try:
            self.asked("/", tls.compute_fingerprint(pem))
        except api_client.ApiError:
            return False
        return True

    def asked(self, path: str, pin: str, key: str = KEY) -> api_client.Reply:
        return api_client.call(
            api_client.Endpoint("127.0.0.1", self.port, pin, 30), "GET", path, key
        )

    def log(self, name: str = "fetch") -> str:
        return (self.root / f"{name}.log").read_text()

    @property
    def progress(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.progress_path.read_text())
        return document

    def has(self, files: dict[str, bytes]) -> bool:
        same = all((self.dir / name).read_bytes() == body for name, body in files.items())
        return same and (self.dir / ".kimi-verified").exists()


@pytest.fixture
def hosts(tmp_path: Path, files: dict[str, bytes], source: Server) -> Iterator[list[Host]]:
    made = [Host(tmp_path, name, files, source.url) for name in NAMES]
    yield made
    for host in made:
        for process in host.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


def arrived(process: subprocess.Popen[str]) -> bool:
    return process.wait(timeout=300) == 0


def test_three_hosts_take_from_the_source_what_one_needs(
    hosts: list[Host], source: Server, files: dict[str, bytes], pem: str
) -> None:
    first, *others = hosts
    source.behaviour.rate = 1_000_000
    giving = first.gives(pem)
    for host in others:
        host.takes_from("node1", first.port, pem)
    under_way = [host.fetches() for host in (*others, first)]
    assert all(map(arrived, under_way)), [host.log() for host in hosts]
    assert all(host.has(files) for host in hosts)
    assert source.behaviour.served == {name: len(body) for name, body in files.items()}
    for host in others:
        assert f"{format_bytes(sum(map(len, files.values())))} from node1" in host.log()
        assert "warnings" not in host.progress
    assert giving.poll() is None


def test_a_host_that_has_them_gives_them_and_ends_when_nobody_asks(
    hosts: list[Host], source: Server, files: dict[str, bytes], pem: str
) -> None:
    first, second, _ = hosts
    assert arrived(first.fetches())
    giving = first.gives(pem)
    second.takes_from("node1", first.port, pem)
    assert arrived(second.fetches()), second.log()
    assert second.has(files)
    assert served(source) == sum(map(len, files.values()))
    assert giving.poll() is None
    first.shares(idle_s=0.1)
    assert giving.wait(timeout=300) == 0
    assert "no request for a while" in first.log("share")


def test_without_a_neighbour_the_source_is_asked_as_ever(
    hosts: list[Host], source: Server, files: dict[str, bytes]
) -> None:
    assert arrived(hosts[1].fetches())
    assert served(source) == sum(map(len, files.values()))


def test_a_killed_neighbour_is_found_and_what_came_of_it_stays(
    hosts: list[Host], source: Server, files: dict[str, bytes], pem: str
) -> None:
    first, second, _ = hosts
    assert arrived(first.fetches())
    source.behaviour.served.clear()
    rest = ["model-0.safetensors", "model-1.safetensors"]
    first.forgets(rest)
    giving = first.gives(pem)
    second.settings["workers"] = 8
    second.takes_from("node1", first.port, pem, gone_s=1)
    under_way = second.fetches()
    journal = Path(fetch.build_journal_path(str(second.dir)))
    here = [name for name in files if name not in rest]
    assert until(lambda: all(name in read(journal) for name in here)), second.log()
    giving.kill()
    assert arrived(under_way), second.log()
    assert second.has(files)
    assert source.behaviour.served == {name: len(files[name]) for name in rest}
    (told,) = second.progress["warnings"]
    assert "node1 is gone" in told
    assert "the source is asked for the rest" in told


def test_half_a_file_goes_on_where_the_neighbour_left_it(
    hosts: list[Host], source: Server, files: dict[str, bytes], pem: str
) -> None:
    second = hosts[1]
    halves = {name: body[: len(body) // 2] for name, body in files.items()}
    with liar(files, pem, bodies=halves) as port:
        second.takes_from("node1", port, pem)
        assert arrived(second.fetches()), second.log()
    assert second.has(files)
    shards = [name for name in files if name.startswith("model")]
    whole = sum(len(files[name]) for name in shards)
    # Of the file at which it was left, and of the other one under way, half is there.
    left = [name for name in shards if source.behaviour.served[name] < len(files[name])]
    assert left
    for name in left:
        assert source.behaviour.served[name] == len(files[name]) - len(halves[name])
    assert whole > served(source)
    assert any("does not send" in told for told in second.progress["warnings"])


def test_a_neighbour_whose_download_failed_is_not_waited_for(
    hosts: list[Host], source: Server, files: dict[str, bytes], pem: str
) -> None:
    first, second, _ = hosts
    first.gives(pem)
    second.takes_from("node1", first.port, pem, grace_s=0)
    assert arrived(second.fetches()), second.log()
    assert second.has(files)
    assert any("fetches nothing" in told for told in second.progress["warnings"])


def test_one_that_has_another_revision_is_not_waited_for(
    hosts: list[Host], files: dict[str, bytes], pem: str
) -> None:
    first, second, _ = hosts
    first.gives(pem)
    second.dir = second.dir.with_name("other")
    second.settings["dir"] = str(second.dir)
    second.takes_from("node1", first.port, pem)
    assert arrived(second.fetches()), second.log()
    assert second.has(files)
    assert any("has nothing of kimi/other" in told for told in second.progress["warnings"])


def test_a_slow_neighbour_is_left_for_the_source(
    hosts: list[Host], source: Server, files: dict[str, bytes], pem: str
) -> None:
    first, second, _ = hosts
    assert arrived(first.fetches())
    source.behaviour.served.clear()
    first.gives(pem, rate=10_000)
    second.takes_from("node1", first.port, pem, window_s=1, slowest=1e9)
    assert arrived(second.fetches()), second.log()
    assert second.has(files)
    assert served(source) > 0
    assert any("too slow" in told for told in second.progress["warnings"])


def test_a_neighbour_that_only_promises_is_left_for_the_source(
    hosts: list[Host], files: dict[str, bytes], pem: str
) -> None:
    second = hosts[1]
    with liar(files, pem, have={"files": {}, "fetching": True, "moved": 5}) as port:
        second.takes_from("node1", port, pem, window_s=1, slowest=1 << 20)
        assert arrived(second.fetches()), second.log()
    assert second.has(files)
    assert any("too slow" in told for told in second.progress["warnings"])


def test_one_with_another_certificate_hears_no_key(
    hosts: list[Host], files: dict[str, bytes], pem: str
) -> None:
    second = hosts[1]
    with liar(files, certificate(["node1"], 1, 30)) as port:
        second.takes_from("node1", port, pem)
        assert arrived(second.fetches()), second.log()
        assert not Liar.heard
    assert second.has(files)
    assert any("another certificate" in told for told in second.progress["warnings"])


def test_one_that_does_not_know_the_key_gives_nothing(
    hosts: list[Host], source: Server, files: dict[str, bytes], pem: str
) -> None:
    first, second, _ = hosts
    assert arrived(first.fetches())
    source.behaviour.served.clear()
    first.gives(pem)
    second.takes_from("node1", first.port, pem, key="another")
    assert arrived(second.fetches()), second.log()
    assert second.has(files)
    assert served(source) == sum(map(len, files.values()))
    assert any("does not know this host's key" in told for told in second.progress["warnings"])
    assert "another" not in first.log("share") + second.log()


def test_a_liar_is_named_and_the_source_gives_all_that_it_touched(
    hosts: list[Host], source: Server, files: dict[str, bytes], pem: str
) -> None:
    second = hosts[1]
    wrong = {name: body[:-1] + bytes([body[-1] ^ 1]) for name, body in files.items()}
    with liar(files, pem, bodies=wrong) as port:
        second.takes_from("node1", port, pem)
        assert arrived(second.fetches()), second.log()
        assert second.has(files)
        assert any("node1 sent wrong bytes of" in told for told in second.progress["warnings"])
    assert source.behaviour.served == {name: len(body) for name, body in files.items()}


def test_a_liar_is_remembered_by_the_next_run(
    hosts: list[Host], source: Server, files: dict[str, bytes], pem: str
) -> None:
    second = hosts[1]
    source.behaviour.stall_after, source.behaviour.stalls_left = 1000, 1_000_000
    wrong = {name: body[::-1] for name, body in files.items()}
    with liar(files, pem, bodies=wrong) as port:
        second.takes_from("node1", port, pem)
        under_way = second.fetches()
        assert until(lambda: "sent wrong bytes of" in second.log())
        assert until(lambda: served(source) > 0)
        os.kill(under_way.pid, signal.SIGKILL)
        under_way.wait()
        Liar.heard.clear()
        source.behaviour.stalls_left = 0
        assert arrived(second.fetches()), second.log()
        assert not Liar.heard
    assert second.has(files)
    assert any("sent wrong bytes before" in told for told in second.progress["warnings"])


@pytest.mark.parametrize(
    "have",
    [
        b"no JSON",
        b"[]",
        b'{"files": [], "fetching": true, "moved": 1}',
        b'{"files": {}, "moved": 1}',
        b'{"files": {}, "fetching": true, "moved": "many"}',
        b"[" * 100_000,
    ],
)
def test_an_answer_of_another_form_is_no_neighbours(
    hosts: list[Host], files: dict[str, bytes], pem: str, have: bytes
) -> None:
    second = hosts[1]
    with liar(files, pem, have=have) as port:
        second.takes_from("node1", port, pem)
        assert arrived(second.fetches()), second.log()
    assert second.has(files)
    assert any("not its protocol" in told for told in second.progress["warnings"])


def test_a_connection_that_ends_without_a_byte_is_not_tried_for_ever(
    hosts: list[Host], files: dict[str, bytes], pem: str
) -> None:
    second = hosts[1]
    with liar(files, pem, bodies=dict.fromkeys(files, b"")) as port:
        second.takes_from("node1", port, pem)
        assert arrived(second.fetches()), second.log()
    assert second.has(files)
    assert any("does not send" in told for told in second.progress["warnings"])


def test_nothing_but_verified_files_of_the_manifest_is_given(
    hosts: list[Host], files: dict[str, bytes], pem: str
) -> None:
    first = hosts[0]
    assert arrived(first.fetches())
    secret = first.root / "models/secret"
    secret.write_text("not theirs")
    name, body = "model-1.safetensors", files["model-1.safetensors"]
    digest = hashlib.sha256(body).hexdigest()
    first.gives(pem)
    pin = tls.compute_fingerprint(pem)

    def status(path: str = name, sha256: str = digest, folder: str = "kimi/rev") -> int:
        query = urllib.parse.urlencode({"folder": folder, "path": path, "sha256": sha256})
        return first.asked(f"/file?{query}", pin).status

    assert status() == 200
    of_secret = hashlib.sha256(secret.read_bytes()).hexdigest()
    for path in ("../../secret", str(secret), ".kimi-verified", "kimi-manifest.json", "", "none"):
        assert status(path, of_secret) == 404
    assert status(folder="..") == status(folder="kimi/../kimi/rev") == status(folder="") == 404
    assert status(sha256="0" * 64) == status(sha256="") == 404
    assert first.asked("/", pin).status == 404
    assert first.asked(f"/file?path={name}", pin, "wrong").status == 401
    # A file that was touched since is no longer the one that was verified.
    (first.dir / name).write_bytes(body)
    assert status() == 404
    link = first.dir / "model-2.safetensors"
    state = link.stat()
    link.unlink()
    link.symlink_to(secret)
    os.utime(link, ns=(state.st_atime_ns, state.st_mtime_ns), follow_symlinks=False)
    assert status("model-2.safetensors", hashlib.sha256(files[link.name]).hexdigest()) == 404


def test_strangers_are_closed_out_before_they_say_a_word(
    hosts: list[Host], files: dict[str, bytes], pem: str
) -> None:
    first = hosts[0]
    assert arrived(first.fetches())
    first.gives(pem)
    takers = json.loads((first.root / "share.json").read_text())["takers"]
    takers["node2"]["from"] = ["127.0.0.2"]
    first.shares(takers=takers)
    with pytest.raises(api_client.ApiError):
        first.asked("/have", tls.compute_fingerprint(pem))


def test_who_says_nothing_holds_up_nobody(
    hosts: list[Host], files: dict[str, bytes], pem: str
) -> None:
    first, second, _ = hosts
    assert arrived(first.fetches())
    first.gives(pem, connections=2)
    second.takes_from("node1", first.port, pem)
    silent = [socket.create_connection(("127.0.0.1", first.port)) for _ in range(8)]
    try:
        assert arrived(second.fetches()), second.log()
    finally:
        for connection in silent:
            connection.close()
    assert second.has(files)
    assert "warnings" not in second.progress


def test_one_connection_at_a_time_is_enough(
    hosts: list[Host], source: Server, files: dict[str, bytes], pem: str
) -> None:
    first, second, _ = hosts
    assert arrived(first.fetches())
    source.behaviour.served.clear()
    first.gives(pem, connections=1)
    second.settings["workers"] = 4
    second.takes_from("node1", first.port, pem, slowest=0)
    assert arrived(second.fetches()), second.log()
    assert second.has(files)
    assert served(source) == 0


def test_an_answer_that_does_not_begin_is_given_up(
    hosts: list[Host], files: dict[str, bytes], pem: str
) -> None:
    """A byte of a greeting now and then is no silence, by a socket's own limit."""
    second = hosts[1]
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            while not over.is_set():
                connection, _ = listener.accept()
                threading.Thread(target=drops, args=(connection,), daemon=True).start()

        def drops(connection: socket.socket) -> None:
            with connection, suppress(OSError):
                connection.sendall(b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc")
                while not over.wait(0.2):
                    connection.sendall(b"\x03")

        threading.Thread(target=drip, daemon=True).start()
        second.takes_from("node1", listener.getsockname()[1], pem, gone_s=2)
        arrives = arrived(second.fetches())
        over.set()
        socket.create_connection(listener.getsockname()).close()
    assert arrives, second.log()
    assert second.has(files)
    assert any("did not begin" in told for told in second.progress["warnings"])


class Liar(BaseHTTPRequestHandler):
    """A neighbour that answers whatever a test gives it."""

    protocol_version = "HTTP/1.1"
    heard: ClassVar[list[str]] = []
    have: bytes = b""
    bodies: ClassVar[dict[str, bytes]] = {}
    files: ClassVar[dict[str, bytes]] = {}

    def log_message(self, *args: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        self.close_connection = True
        self.heard.append(self.headers.get("Authorization") or "")
        parts = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(parts.query))
        if parts.path == "/have":
            self.send_response(200)
            self.send_header("Content-Length", str(len(self.have)))
            self.end_headers()
            self.wfile.write(self.have)
            return
        offset = int((self.headers.get("Range") or "bytes=0-")[6:-1])
        self.send_response(206 if offset else 200)
        size = len(self.files[query["path"]]) - offset
        self.send_header("Content-Length", str(size))
        self.end_headers()
        self.wfile.write(self.bodies[query["path"]][offset:])


@contextmanager
def liar(
    files: dict[str, bytes],
    pem: str,
    *,
    have: dict[str, Any] | bytes | None = None,
    bodies: dict[str, bytes] | None = None,
) -> Iterator[int]:
    """A server that says that it has all files, unless told otherwise."""
    digests = {name: hashlib.sha256(body).hexdigest() for name, body in files.items()}
    said = {"files": digests, "fetching": False, "moved": 0} if have is None else have
    Liar.heard, Liar.files, Liar.bodies = [], files, bodies or files
    Liar.have = said if isinstance(said, bytes) else json.dumps(said).encode()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Liar)
    server.daemon_threads, server.block_on_close = True, False
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    file = Path(os.environ.get("TMPDIR", "/tmp")) / f"liar-{os.getpid()}-{server.server_port}.pem"
    file.write_text(pem)
    context.load_cert_chain(file)
    file.unlink()
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
