"""Where a server of weights may send us on."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import threading
from typing import TYPE_CHECKING

import made_certificates
import pytest
from weights_server import Server

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.weights.sources import Web, WebSource, read_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Start = Callable[..., Server]

FILES = {"kimi-manifest.json": json.dumps({"files": []}).encode(), "key.asc": b"a key"}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of 127.0.0.1 with its key, in one file."""
    folder = tmp_path_factory.mktemp("tls")
    pem, key = folder / "both.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", "/CN=127.0.0.1", "-keyout", str(key)]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-out", str(pem)]
    subprocess.run(command, check=True, capture_output=True)
    pem.write_text(pem.read_text() + key.read_text())
    return pem


@pytest.fixture
def serve(certificate: Path) -> Iterator[Start]:
    """Start a server; `tls` makes it speak https."""
    servers = []

    def start(*, tls: bool, pem: Path = certificate) -> Server:
        server = Server(dict(FILES))
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(str(pem))
            server.socket = context.wrap_socket(server.socket, server_side=True)
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.stop()


def secure(server: Server) -> str:
    return server.url.replace("http://", "https://")


def read(url: str, certificate: Path) -> bytes:
    return read_all(Web(str(certificate), 5.0).open(url, {}, 0))


def test_a_redirect_from_https_to_http_is_refused(serve: Start, certificate: Path) -> None:
    plain, tls = serve(tls=False), serve(tls=True)
    tls.behaviour.redirect_to = plain.url
    with pytest.raises(HostError, match="leaves https") as raised:
        read(f"{secure(tls)}/key.asc", certificate)
    assert not raised.value.retryable
    assert plain.url in raised.value.message
    assert plain.behaviour.requests == []


def test_weights_over_https_do_not_come_over_http(serve: Start, certificate: Path) -> None:
    plain, tls = serve(tls=False), serve(tls=True)
    tls.behaviour.redirect_to = plain.url
    with pytest.raises(HostError, match="leaves https"):
        WebSource(secure(tls), str(certificate), 5.0).listing(None)
    assert plain.behaviour.requests == []


def test_a_redirect_to_https_is_followed(serve: Start, certificate: Path) -> None:
    first, second, third = serve(tls=False), serve(tls=True), serve(tls=True)
    first.behaviour.redirect_to = secure(second)
    second.behaviour.redirect_to = secure(third)
    assert read(f"{first.url}/key.asc", certificate) == b"a key"


@pytest.mark.parametrize("tls", [False, True])
def test_a_redirect_to_ftp_is_refused(serve: Start, certificate: Path, *, tls: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        answered = threading.Event()

        def note() -> None:
            with listener.accept()[0] as connection:
                answered.set()
                connection.sendall(b"421 closing\r\n")

        threading.Thread(target=note, daemon=True).start()
        server = serve(tls=tls)
        server.behaviour.redirect_to = f"ftp://127.0.0.1:{listener.getsockname()[1]}"
        url = secure(server) if tls else server.url
        with pytest.raises(HostError) as raised:
            read(f"{url}/key.asc", certificate)
        assert not raised.value.retryable
        assert not answered.is_set()
        socket.create_connection(listener.getsockname()).close()


@pytest.mark.parametrize(
    "url", ["file:///etc/hostname", "data:text/plain,x", "ftp://127.0.0.1:9/x"]
)
def test_an_address_that_is_not_of_the_web_is_not_opened(url: str, certificate: Path) -> None:
    with pytest.raises(HostError, match="http") as raised:
        read(url, certificate)
    assert not raised.value.retryable


@pytest.mark.parametrize(
    ("days_ago", "days_left", "fix"),
    [(-1, 9, "correct the clock"), (9, -1, "renewed")],
)
def test_a_certificate_of_another_time_is_told_as_one(
    serve: Start, tmp_path: Path, days_ago: float, days_left: float, fix: str
) -> None:
    """No bundle of authorities helps there."""
    pem = tmp_path / "both.pem"
    made = made_certificates.certificate(["x"], days_ago, days_left, ("127.0.0.1",))
    pem.write_text(made)
    with pytest.raises(HostError) as caught:
        read(f"{secure(serve(tls=True, pem=pem))}/key.asc", pem)
    assert fix in str(caught.value.fix)
    assert "kimi_ca_bundle" not in str(caught.value.fix)
