"""The audit of pins by the real pip-audit, against answers in the form of PyPI's own."""

from __future__ import annotations

import datetime
import json
import os
import socketserver
import ssl
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pip_audit._dependency_source.interface import PYPI_URL

ROOT = Path(__file__).resolve().parents[3]
RUN = ROOT / "tests" / "audit" / "run.py"
DIGEST = "--hash=sha256:" + "0" * 64
# What the index answers for each release, cut to what is read; all else it does not know.
RECORDED = json.loads((ROOT / "tests" / "data" / "advisories.json").read_text())
# Where the real program asks: the stand-in answers under that name.
SITE = str(urlsplit(PYPI_URL).hostname)


class Index(socketserver.ThreadingTCPServer):
    """A proxy that answers for the index itself."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(("127.0.0.1", 0), Connection)
        self.context = context
        self.asked: list[str] = []


class Connection(socketserver.StreamRequestHandler):
    server: Index

    def handle(self) -> None:
        self._head(self.rfile)
        self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        with self.server.context.wrap_socket(self.request, server_side=True) as inside:
            stream = inside.makefile("rwb")
            while path := self._head(stream):
                self.server.asked.append(path)
                found = RECORDED.get(path)
                body = json.dumps(found or {"message": "Not Found"}).encode()
                status = b"200 OK" if found else b"404 Not Found"
                stream.write(b"HTTP/1.1 %s\r\nContent-Type: application/json\r\n" % status)
                stream.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
                stream.flush()

    def _head(self, stream: Any) -> str:
        first, *_ = lines = [stream.readline()]
        while lines[-1].strip():
            lines.append(stream.readline())
        return first.split()[1].decode() if first else ""


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("index")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, SITE)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(SITE)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "ca.pem").write_bytes(made.public_bytes(pem))
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "both.pem").write_bytes(private + made.public_bytes(pem))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "both.pem")
    server = Index(context)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server, folder / "ca.pem"
    server.shutdown()
    server.server_close()


@pytest.fixture
def audit(index, tmp_path: Path):
    server, certificate = index
    server.asked.clear()

    def run(pins: str, exceptions: str = "[]") -> subprocess.CompletedProcess[str]:
        (tmp_path / "lock.txt").write_text(pins)
        (tmp_path / "exceptions.yml").write_text(exceptions)
        clean = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
        proxy = f"http://127.0.0.1:{server.server_address[1]}"
        own = {"HTTPS_PROXY": proxy, "REQUESTS_CA_BUNDLE": str(certificate), "HOME": str(tmp_path)}
        return subprocess.run(
            [
                *(sys.executable, RUN, tmp_path / "lock.txt"),
                *("--exceptions", tmp_path / "exceptions.yml", f"--cache-dir={tmp_path / 'cache'}"),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env=clean | own,
        )

    return run


def test_pins_without_an_advisory_pass(audit) -> None:
    done = audit(f"jinja2==3.1.6 \\\n    {DIGEST}\n    # via ansible\nclick==8.1.8 {DIGEST}\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 looked up, 0 exempt, nothing found" in done.stdout


def test_a_pin_with_an_advisory_fails_and_is_named(audit) -> None:
    done = audit(f"click==8.1.8 {DIGEST}\njinja2==3.1.2 {DIGEST}\n")
    assert done.returncode == 1
    for words in ("jinja2", "3.1.2", "CVE-2024-22195", "3.1.3"):
        assert words in done.stderr


@pytest.mark.parametrize(
    "line",
    [
        "nowhere==1.0",
        "torch==2.13.0+cpu",
        "plugin @ https://wheels.example/plugin-1.0-py3-none-any.whl",
        "nowhere==1.0 ; python_version < '3'",
    ],
)
def test_what_cannot_be_looked_up_fails_and_is_named(audit, line: str) -> None:
    done = audit(f"click==8.1.8 \\\n    {DIGEST}\n{line} \\\n    {DIGEST}\n")
    assert done.returncode == 1
    assert line.split("=", maxsplit=1)[0].split(maxsplit=1)[0] in done.stderr


def test_an_index_that_does_not_answer_fails(audit, index) -> None:
    server, _ = index
    server.context, kept = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), server.context
    done = audit(f"click==8.1.8 {DIGEST}\n")
    server.context = kept
    assert done.returncode == 1
    assert "FAILED" in done.stderr


def test_a_written_exception_passes_and_is_counted(audit, index) -> None:
    row = "{{pin: {}, reason: ours, date: 2026-11-22{}}}".format
    rows = [
        row("nowhere==1.0", ""),
        row("click==8.1.8+cpu", ", audited_as: click==8.1.8"),
        row("jinja2==3.1.2", ", advisory: GHSA-h5c8-rqwp-cp95"),
    ]
    pins = ("nowhere==1.0", "click==8.1.8+cpu", "jinja2==3.1.2")
    done = audit("".join(f"{pin} {DIGEST}\n" for pin in pins), f"[{', '.join(rows)}]")
    assert done.returncode == 0, done.stderr
    assert "2 looked up, 1 exempt" in done.stdout
    assert "/pypi/click/8.1.8/json" in index[0].asked


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("{pin: nowhere==1.0, reason: ours}", "date"),
        ("{pin: nowhere==1.0, date: 2026-11-22}", "reason"),
        ("{pin: gone==9, reason: ours, date: 2026-11-22}", "gone==9"),
    ],
)
def test_an_exception_needs_a_reason_a_date_and_a_pin(audit, row: str, words: str) -> None:
    done = audit(f"click==8.1.8 {DIGEST}\n", f"[{row}]")
    assert done.returncode == 1
    assert words in done.stderr


def test_every_file_that_pins_something_is_audited() -> None:
    done = subprocess.run(
        ["git", "grep", "-l", "--", "^    --hash=sha256:", "*.txt", "*.in", "*.lock", "*.toml"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    listed = subprocess.run(
        [sys.executable, "-c", "import run; print(*run.files(), sep='\\n')"],
        capture_output=True,
        text=True,
        check=True,
        cwd=RUN.parent,
    )
    held = {Path(line).relative_to(ROOT).as_posix() for line in listed.stdout.split()}
    assert held == set(done.stdout.split())
