"""Sends verified files of the weights to neighbours: few connections, TLS, a key for each.

Runs as kimi-share.service, as a user of its own who reads only files that all may read. It ends by
itself when it got no request for a while.

    GET /have?folder=MODEL/REVISION               {"files": {PATH: SHA256}, "fetching", "moved"}
    GET /file?folder=...&path=PATH&sha256=DIGEST  the bytes, from the Range's first on
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress
import json
import os
import re
import socket
import ssl
import threading
import time
import urllib.parse
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from kimi_prov.contract.errors import HostError, describe_error
from kimi_prov.on_host.system.files import find_size, read_json
from kimi_prov.on_host.system.foreign_files import open_regular
from kimi_prov.on_host.weights import manifest as manifests
from kimi_prov.on_host.weights.fetch import build_journal_path
from kimi_prov.on_host.weights.neighbour import name_folder

if TYPE_CHECKING:
    from kimi_prov.on_host.weights.manifest import Record

_CHUNK = 1 << 18
# Seconds for a client that sends nothing, or takes nothing.
_SILENT_S = 30.0
# Connections beside those that carry files: handshakes, and questions for the list of files.
_MORE = 16
# A progress file this old is not written any more; systemd restarts a failed download sooner.
_STALE_S = 60.0
_RANGE = re.compile(r"bytes=(\d{1,18})-")


@dataclass(frozen=True)
class Taker:
    """A neighbour that may ask: its addresses, and the hash of its key."""

    name: str
    key_sha256: str
    addresses: frozenset[str]


@dataclass(frozen=True)
class Sharing:
    """What is shared, and with whom."""

    port: int
    folders: dict[str, str]
    takers: tuple[Taker, ...]
    progress: str
    address: str = "::"
    connections: int = 16
    rate: int = 0
    idle_s: float = 1800.0

    @classmethod
    def load(cls, path: str) -> Sharing:
        """Read the file. Raises HostError for another form."""
        document = read_json(path)
        try:
            return cls(
                port=int(document["port"]),
                folders={name_folder(name): name for name in document["directories"]},
                takers=tuple(
                    Taker(
                        name, str(row["key_sha256"]), frozenset(map(normalize_address, row["from"]))
                    )
                    for name, row in document["takers"].items()
                ),
                progress=str(document["progress"]),
                address=str(document.get("address", cls.address)),
                connections=int(document.get("connections", cls.connections)),
                rate=int(document.get("rate", cls.rate)),
                idle_s=float(document.get("idle_s", cls.idle_s)),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise HostError(
                f"{path}: {describe_error(error)}", "run `kimi-prov apply` again"
            ) from None

    def taker(self, key: str, address: str) -> Taker | None:
        """Return the neighbour that a key belongs to, if it asks from one of its addresses."""
        digest = hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()
        found = None
        for taker in self.takers:
            if hmac.compare_digest(digest, taker.key_sha256) and address in taker.addresses:
                found = taker
        return found


def normalize_address(text: str) -> str:
    """Return an address in one form on both sides: IPv4 is never written as IPv6."""
    address = ipaddress.ip_address(text.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def read_verified(directory: str) -> dict[str, Record]:
    """Return the verified files of a directory, while a fetch runs as well."""
    under_way = read_json(build_journal_path(directory))
    return manifests.parse_records(
        under_way or read_json(os.path.join(directory, manifests.MARK), links=False)
    )


def _count_present_bytes(directory: str, found: dict[str, Record]) -> int:
    """Count the bytes on the disk, including those of unfinished files."""
    got = sum(record.size for record in found.values())
    parts = os.path.join(directory, manifests.PARTIAL)
    with contextlib.suppress(OSError):
        got += sum(find_size(os.path.join(parts, name)) or 0 for name in os.listdir(parts))
    return got


@dataclass
class _Rate:
    """Bytes a second for all connections together; 0 for no limit."""

    limit: int
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _free_at: float = 0.0

    @property
    def chunk(self) -> int:
        """Return the bytes of a piece: small pieces hold a limit without a silent connection."""
        return min(_CHUNK, max(self.limit // _MORE, 4096)) if self.limit else _CHUNK

    def wait_for(self, count: int) -> None:
        """Wait until so many more bytes may be sent."""
        if not self.limit:
            return
        with self._lock:
            now = time.monotonic()
            begins = max(now, self._free_at)
            self._free_at = begins + count / self.limit
        time.sleep(begins - now)


class Server(ThreadingHTTPServer):
    """Answers neighbours; any other connection is closed before TLS begins."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, config: str, certificate: str) -> None:
        self._config = config
        self._seen = (0, 0)
        self._sharing = sharing = Sharing.load(config)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._context.load_cert_chain(certificate)
        self.rate = _Rate(sharing.rate)
        self.files = threading.BoundedSemaphore(sharing.connections)
        self._all = threading.BoundedSemaphore(sharing.connections + _MORE)
        self._used = time.monotonic()
        self._at_work = 0
        self._lock = threading.Lock()
        address = sharing.address
        if address == Sharing.address and not socket.has_dualstack_ipv6():
            address = "0.0.0.0"  # noqa: S104 - neighbours alone are answered
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        super().__init__((address, sharing.port), Handler)

    def server_bind(self) -> None:
        """Listen for IPv4 as well, where the kernel has both."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # The base class would look up the host's name here.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    @property
    def sharing(self) -> Sharing:
        """Return what is shared and with whom, as the file says now."""
        with self._lock:
            state = os.stat(self._config)
            stamp = (state.st_mtime_ns, state.st_ino)
            if stamp != self._seen:
                self._sharing, self._seen = Sharing.load(self._config), stamp
            return self._sharing

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ANN401
        """Return whether a connection comes from a neighbour."""
        del request
        address = normalize_address(client_address[0])
        try:
            return any(address in taker.addresses for taker in self.sharing.takers)
        except (OSError, HostError):
            return False  # The file is removed: this server is about to be ended.

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Answer in a thread, unless there are too many already."""
        if self._all.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Answer one connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._all.release()

    def finish_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Do the TLS handshake in the thread, where a slow client delays no other, and answer."""
        request.settimeout(_SILENT_S)
        with self._context.wrap_socket(request, server_side=True) as secure:
            Handler(secure, client_address, self)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Log nothing about a neighbour that goes away."""

    def begin(self) -> None:
        """Record that a neighbour is being served."""
        with self._lock:
            self._at_work += 1

    def end(self) -> None:
        """Record that the neighbour was served."""
        with self._lock:
            self._at_work -= 1
            self._used = time.monotonic()

    def service_actions(self) -> None:
        """End after a while without a request, or without the file; called twice a second."""
        try:
            idle_s = self.sharing.idle_s
        except (OSError, HostError):
            idle_s = 0.0
        with self._lock:
            idle = not self._at_work and time.monotonic() - self._used > idle_s
        if idle:
            threading.Thread(target=self.shutdown, daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    """One request; the connection ends with its answer."""

    protocol_version = "HTTP/1.1"
    server_version = "kimi-share"
    sys_version = ""
    timeout = _SILENT_S
    server: Server

    def log_message(self, *args: Any) -> None:  # noqa: ANN401
        """Log nothing about a single request."""

    def do_GET(self) -> None:
        """Answer a neighbour."""
        self.close_connection = True
        kind, _, key = (self.headers.get("Authorization") or "").partition(" ")
        sharing = self.server.sharing
        taker = sharing.taker(key, normalize_address(self.client_address[0]))
        if kind != "Bearer" or taker is None:
            print(f"refused {self.client_address[0]}: no key of a neighbour", flush=True)
            return self._refuse(401)
        self.server.begin()
        try:
            parts = urllib.parse.urlsplit(self.path)
            query = dict(urllib.parse.parse_qsl(parts.query))
            directory = sharing.folders.get(query.get("folder", ""))
            if directory is not None and parts.path == "/have":
                return self._have(sharing, directory)
            if directory is not None and parts.path == "/file":
                return self._file(directory, query)
            return self._refuse(404)
        finally:
            self.server.end()

    def _refuse(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.send_header("Connection", "close")
        self.end_headers()

    def _have(self, sharing: Sharing, directory: str) -> None:
        found = read_verified(directory)
        progress = read_json(sharing.progress)
        age = time.time() - float(progress.get("updated_at") or 0)
        at_work = progress.get("state") == "running" or bool(progress.get("will_retry"))
        body = json.dumps(
            {
                "files": {path: record.sha256 for path, record in found.items()},
                "fetching": at_work and age < _STALE_S,
                "moved": _count_present_bytes(directory, found),
            }
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def _file(self, directory: str, query: dict[str, str]) -> None:
        """Send one verified file: its path is used only if the record has it."""
        path = query.get("path", "")
        record = read_verified(directory).get(path)
        if record is None or not manifests.is_safe_path(path):
            return self._refuse(404)
        if query.get("sha256") != record.sha256:
            return self._refuse(404)
        if not self.server.files.acquire(blocking=False):
            return self._refuse(503)
        try:
            self._send(os.path.join(directory, path), record)
        finally:
            self.server.files.release()
        return None

    def _send(self, place: str, record: Record) -> None:
        try:
            stream = os.fdopen(open_regular(place), "rb", buffering=0)
        except (OSError, HostError):
            return self._refuse(404)
        with stream:
            state = os.fstat(stream.fileno())
            asked = _RANGE.fullmatch(self.headers.get("Range") or "bytes=0-")
            offset = int(asked[1]) if asked else 0
            touched = (state.st_size, state.st_mtime_ns) != (record.size, record.mtime_ns)
            if touched or offset > record.size:
                return self._refuse(404)
            self.send_response(206 if offset else 200)
            if offset:
                span = f"bytes {offset}-{record.size - 1}/{record.size}"
                self.send_header("Content-Range", span)
            self.send_header("Content-Length", str(record.size - offset))
            self.send_header("Connection", "close")
            self.end_headers()
            stream.seek(offset)
            left = record.size - offset
            while left:
                data = stream.read(min(self.server.rate.chunk, left))
                if not data:
                    return None
                self.server.rate.wait_for(len(data))
                self.wfile.write(data)
                left -= len(data)
        return None


def main(argv: list[str]) -> int:
    """`share serve CONFIG [CERTIFICATE]`; the default is the one that systemd gave the unit."""
    given = os.path.join(os.environ.get("CREDENTIALS_DIRECTORY", ""), "tls")
    if len(argv) not in (1, 2):
        raise HostError("usage: share serve CONFIG [CERTIFICATE]")
    with Server(argv[0], argv[1] if argv[1:] else given) as server:
        print(f"sharing with {', '.join(t.name for t in server.sharing.takers)}", flush=True)
        server.serve_forever()
    print("no request for a while", flush=True)
    return 0
