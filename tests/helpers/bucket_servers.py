"""Servers of S3's and Google's protocol on this machine, behind a door that tests misbehave at.

moto and gcp-storage-emulator are real servers of the protocols, pinned in tests/cloud/buckets.txt;
the door in front of them cuts, refuses, throttles and changes bytes, and asks for the token that
the emulator does not ask for.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import shutil
import subprocess
import sys
import threading
import urllib.parse
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ports import free_port
from waiting import until

from kimi_prov.on_host.weights.rclone import Access, Bucket

if TYPE_CHECKING:
    from collections.abc import Iterator

PINS = Path(__file__).resolve().parents[1] / "cloud" / "buckets.txt"
BUCKET = "weights"
TOKEN = "token-of-the-stand-in"
ROLE = "kimi-role"
_HOP = {"connection", "transfer-encoding", "content-length", "keep-alive", "server", "date"}


def missing() -> str | None:
    """What these servers need and is not here; None where all is."""
    return None if shutil.which("rclone") else "no rclone here: make deps installs it"


def environment() -> Path:
    """The environment of the servers, beside the one that runs the tests; made where missing."""
    digest = hashlib.sha256(PINS.read_bytes()).hexdigest()[:12]
    folder = Path(sys.prefix) / f"buckets-{digest}"
    if not (folder / "complete").exists():
        uv = Path(sys.executable).with_name("uv")
        subprocess.run(
            [uv, "venv", "-q", "--clear", "--python", sys.executable, folder], check=True
        )
        line = [uv, "pip", "install", "-q", "--require-hashes", "-r", PINS]
        subprocess.run([*line, "--python", folder / "bin" / "python"], check=True, timeout=1800)
        (folder / "complete").touch()
    return folder / "bin"


@dataclass
class Behaviour:
    """What a test sets, and what the door has seen."""

    cut_after: int | None = None  # bytes of a body, then the connection is closed
    cuts_left: int = 0
    statuses: list[int] = field(default_factory=list)  # answered first, one a request
    spoil: str | None = None  # part of a path whose bytes come changed
    paths: list[str] = field(default_factory=list)
    sent: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def reset(self) -> None:
        self.cut_after, self.cuts_left, self.spoil, self.sent = None, 0, None, 0
        self.statuses.clear()
        self.paths.clear()


class Door(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, upstream: int, *, google: bool, host: str = "127.0.0.1") -> None:
        super().__init__((host, 0), _Handler)
        self.upstream, self.google = upstream, google
        self.behaviour = Behaviour()
        self.url = f"http://{host}:{self.server_address[1]}"
        #: what the metadata server tells of the machine's end, as AWS does
        self.notice: str | None = None
        self.role: dict[str, str] | None = None
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Quiet: clients are ended in the middle."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Door

    def log_message(self, *args: Any) -> None:
        """Quiet."""

    def _any(self) -> None:
        b = self.server.behaviour
        body = self._body()
        if self._of_cloud():
            return
        with b.lock:
            b.paths.append(f"{self.command} {self.path}")
            status = b.statuses.pop(0) if b.statuses else None
        if status is not None:
            self._refuse(status)
        elif self.server.google and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._refuse(401)
        else:
            self._pass_on(body)

    def do_GET(self) -> None:
        self._any()

    def do_HEAD(self) -> None:
        self._any()

    def do_PUT(self) -> None:
        self._any()

    def do_POST(self) -> None:
        self._any()

    def do_DELETE(self) -> None:
        self._any()

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _of_cloud(self) -> bool:
        """Answer what the clouds' own servers do: tokens, and what a machine's role is."""
        role = self.server.role
        token = {"access_token": TOKEN, "token_type": "Bearer", "expires_in": 3600}
        if self.path == "/token":
            self._json(token)
        elif self.path == "/refused":
            said = {"error": "invalid_grant", "error_description": "Invalid JWT Signature."}
            self._answer(400, json.dumps(said).encode(), {"Content-Type": "application/json"})
        elif self.path.startswith("/computeMetadata/") and role is not None:
            self._json(token, {"Metadata-Flavor": "Google"})
        elif self.path == "/latest/api/token":
            self._text("a-session")
        elif self.path.startswith("/latest/meta-data/iam/security-credentials") and role:
            named = self.path.rpartition("/")[2] == ROLE
            if named:
                self._json({"Code": "Success", "Type": "AWS-HMAC", **role})
            else:
                self._text(ROLE)
        elif self.path == "/latest/meta-data/spot/instance-action" and self.server.notice:
            self._text(self.server.notice)
        elif self.path.startswith(("/latest/", "/computeMetadata/")):
            self._refuse(404)
        else:
            return False
        return True

    def _json(self, document: Any, headers: dict[str, str] | None = None) -> None:
        self._answer(
            200,
            json.dumps(document).encode(),
            {"Content-Type": "application/json"} | (headers or {}),
        )

    def _text(self, text: str) -> None:
        self._answer(200, text.encode(), {"X-Aws-Ec2-Metadata-Token-Ttl-Seconds": "21600"})

    def _refuse(self, status: int) -> None:
        names = {401: "InvalidToken", 403: "AccessDenied", 429: "TooManyRequests", 503: "SlowDown"}
        name = names.get(status, "InternalError")
        if self.server.google:
            error = {"code": status, "message": name, "errors": [{"reason": name}]}
            self._answer(status, json.dumps({"error": error}).encode(), {})
        else:
            text = f"<Error><Code>{name}</Code><Message>{name}</Message></Error>"
            self._answer(status, text.encode(), {"Content-Type": "application/xml"})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _pass_on(self, body: bytes) -> None:
        link = http.client.HTTPConnection("127.0.0.1", self.server.upstream, timeout=60)
        try:
            headers = {
                k: v
                for k, v in self.headers.items()
                if k.lower() not in ("connection", "transfer-encoding", "content-length")
            }
            headers["Content-Length"] = str(len(body))
            link.request(self.command, self.path, body, headers)
            answer = link.getresponse()
            content = answer.read()
        finally:
            link.close()
        status = answer.status
        kept = {k: v for k, v in answer.headers.items() if k.lower() not in _HOP}
        if kept.get("x-amz-version-id") == "null":
            # Of a bucket without versions AWS names none; moto does, and does not know it then.
            del kept["x-amz-version-id"]
        if status == 308:
            # As Google answers who asks for it; the emulator does not know the question.
            status, kept["X-Http-Status-Code-Override"] = 200, "308"
        self.send_response(status)
        for name, value in kept.items():
            self.send_header(name, value)
        length = answer.headers.get("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self._send(content)

    def _send(self, content: bytes) -> None:
        b = self.server.behaviour
        with b.lock:
            spoilt = b.spoil is not None and b.spoil in urllib.parse.unquote(self.path)
            cut = b.cuts_left > 0 and b.cut_after is not None and len(content) > b.cut_after
            b.cuts_left -= cut
        if spoilt and content and self.command == "GET" and "alt=json" not in self.path:
            content = bytes([content[0] ^ 1]) + content[1:]
        if cut:
            content = content[: b.cut_after]
            self.close_connection = True
        with contextlib.suppress(OSError):
            self.wfile.write(content)
        with b.lock:
            b.sent += len(content)


@dataclass
class Cloud:
    """One provider: its door, credentials that it takes and ones that it does not."""

    scheme: str
    door: Door
    good: Path
    bad: Path
    role_variable: str

    @property
    def behaviour(self) -> Behaviour:
        return self.door.behaviour

    def settings(self, *, credentials: Path | None = None) -> dict[str, Any]:
        """As the plan's `weights.bucket` has them."""
        return {
            "endpoint": self.door.url,
            "region": None,
            "credentials_file": str(credentials or self.good),
        }

    def url(self, folder: str) -> str:
        return f"{self.scheme}://{BUCKET}/{folder}"

    def bucket(self, folder: str, **settings: Any) -> Bucket:
        return Bucket(self.url(folder), Access(**{**self.settings(), **settings}))

    def put(self, folder: str, files: dict[str, bytes]) -> None:
        """Put files there, unseen by the door's record."""
        bucket = self.bucket(folder)
        for name, content in files.items():
            done = subprocess.run(
                bucket.command("rcat", bucket.locate(name)),
                input=content,
                env=bucket.environment(),
                capture_output=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr.decode()
        self.behaviour.reset()

    @contextlib.contextmanager
    def as_role(self) -> Iterator[dict[str, str]]:
        """Have the machine a role, which its metadata server tells; gives the variables for it."""
        host = self.door.url if self.scheme == "s3" else self.door.url.removeprefix("http://")
        os.environ[self.role_variable] = host
        self.door.role = keys(self.good) if self.scheme == "s3" else {}
        try:
            yield {self.role_variable: host}
        finally:
            del os.environ[self.role_variable]
            self.door.role = None


def keys(credentials: Path) -> dict[str, str]:
    rows = dict(line.split(" = ") for line in credentials.read_text().splitlines() if " = " in line)
    return {
        "AccessKeyId": rows["aws_access_key_id"],
        "SecretAccessKey": rows["aws_secret_access_key"],
        "Token": "",
        "Expiration": "2099-01-01T00:00:00Z",
    }


def _aws_file(path: Path, key: str, secret: str) -> Path:
    path.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n")
    path.chmod(0o600)
    return path


def _google_file(path: Path, token_uri: str) -> Path:
    key = subprocess.run(["openssl", "genrsa", "2048"], check=True, capture_output=True, text=True)
    document = {
        "type": "service_account",
        "project_id": "site",
        "private_key_id": "id-of-the-key",
        "private_key": key.stdout,
        "client_email": "kimi@site.iam.gserviceaccount.com",
        "client_id": "1",
        "token_uri": token_uri,
    }
    path.write_text(json.dumps(document))
    path.chmod(0o600)
    return path


@contextlib.contextmanager
def _program(line: list[str], port: int, log: Path) -> Iterator[None]:
    # The interpreter of that environment, and none of this one's settings.
    clean = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    with log.open("wb") as said:
        process = subprocess.Popen(line, stdout=said, stderr=said, env=clean)
    try:
        until(lambda: _listens(port) or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        yield
    finally:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        link.request("GET", "/")
        link.getresponse().read()
    except OSError:
        return False
    finally:
        link.close()
    return True


def _ask(port: int, method: str, path: str, body: str, headers: dict[str, str]) -> str:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        link.request(method, path, body, headers)
        answer = link.getresponse()
        text = answer.read().decode()
    finally:
        link.close()
    assert answer.status < 300, text
    return text


def _iam(port: int, **question: str) -> str:
    scope = "Credential=x/20260101/us-east-1/iam/aws4_request"
    headers = {
        "Authorization": f"AWS4-HMAC-SHA256 {scope}, SignedHeaders=host, Signature=x",
        "Content-Type": "application/x-www-form-urlencoded",
    }
    return _ask(
        port, "POST", "/", urllib.parse.urlencode({**question, "Version": "2010-05-08"}), headers
    )


@contextlib.contextmanager
def s3(folder: Path, host: str = "127.0.0.1") -> Iterator[Cloud]:
    """Run moto, which asks for the keys of a user that may read and write the bucket.

    `host`: the address of its door.
    """
    port = free_port()
    with _program(
        [str(environment() / "moto_server"), "-H127.0.0.1", f"-p{port}"], port, folder / "moto.log"
    ):
        _ask(port, "PUT", f"/{BUCKET}", "", {})
        _iam(port, Action="CreateUser", UserName="kimi")
        allowed = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
        _iam(port, Action="PutUserPolicy", UserName="kimi", PolicyName="s3", PolicyDocument=policy)
        made = _iam(port, Action="CreateAccessKey", UserName="kimi")
        key, secret = (
            made.partition(f"<{name}>")[2].partition("<")[0]
            for name in ("AccessKeyId", "SecretAccessKey")
        )
        _ask(port, "POST", "/moto-api/reset-auth", "0", {"Content-Type": "text/plain"})
        door = Door(port, google=False, host=host)
        good = _aws_file(folder / "aws", key, secret)
        bad = _aws_file(
            folder / "aws-bad", "AKIAWRONGWRONGWRONG1", "canary/of/the/wrong/secret/key"
        )
        try:
            yield Cloud("s3", door, good, bad, "AWS_EC2_METADATA_SERVICE_ENDPOINT")
        finally:
            door.shutdown()
            door.server_close()


@contextlib.contextmanager
def gs(folder: Path) -> Iterator[Cloud]:
    """Run the emulator of Google's storage behind a door that asks for a token."""
    port = free_port()
    line = [str(environment() / "gcp-storage-emulator"), "start", "--host=127.0.0.1"]
    with _program([*line, f"--port={port}", "--in-memory"], port, folder / "gcs.log"):
        made = json.dumps({"name": BUCKET})
        _ask(port, "POST", "/storage/v1/b?project=site", made, {"Content-Type": "application/json"})
        door = Door(port, google=True)
        good = _google_file(folder / "google.json", f"{door.url}/token")
        bad = _google_file(folder / "google-bad.json", f"{door.url}/refused")
        try:
            yield Cloud("gs", door, good, bad, "GCE_METADATA_HOST")
        finally:
            door.shutdown()
            door.server_close()
