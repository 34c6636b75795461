"""A small client of the served API; runs on the control machine and on the managed machine.

The server's certificate is pinned: a self-signed certificate needs no authority, and an operator's
own certificate must be exactly the one that was installed.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import socket
import ssl
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


class ApiError(Exception):
    """The service could not be reached, or another server answered; the message says which."""


class OtherCertificateError(ApiError):
    """Another certificate is shown than the pinned one: nothing was sent to that server."""


@dataclass(frozen=True)
class Endpoint:
    """The service's address and the fingerprint of its certificate; None where it speaks no TLS."""

    host: str
    port: int
    fingerprint: str | None
    # Seconds: a model on CPUs may take minutes for one whole answer.
    timeout_s: float = 600.0

    @property
    def url(self) -> str:
        """The base URL that an OpenAI client takes."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        scheme = "http" if self.fingerprint is None else "https"
        return f"{scheme}://{host}:{self.port}/v1"


@dataclass(frozen=True)
class Reply:
    """A complete answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        """Return the body as a JSON object; empty where it is none."""
        try:
            value = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}


def connect(endpoint: Endpoint) -> http.client.HTTPConnection:
    """Return an open connection whose certificate is the pinned one.

    Raises ApiError when nothing answers or another certificate is shown.
    """
    if endpoint.fingerprint is None:
        plain = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=endpoint.timeout_s)
        _open(plain, endpoint)
        return plain
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # The pin below is stricter than a chain of trust.
    connection = http.client.HTTPSConnection(
        endpoint.host, endpoint.port, timeout=endpoint.timeout_s, context=context
    )
    _open(connection, endpoint)
    shown = hashlib.sha256(_read_peer_certificate(connection)).hexdigest()
    if shown != endpoint.fingerprint:
        connection.close()
        raise OtherCertificateError(
            f"another certificate was shown at {endpoint.url} ({shown[:16]}…) "
            f"than the one installed ({endpoint.fingerprint[:16]}…)"
        )
    return connection


def _open(connection: http.client.HTTPConnection, endpoint: Endpoint) -> None:
    try:
        connection.connect()
    except OSError as error:
        raise ApiError(f"no answer at {endpoint.url}: {describe_error(error)}") from None


def _read_peer_certificate(connection: http.client.HTTPSConnection) -> bytes:
    sock = connection.sock
    return sock.getpeercert(binary_form=True) or b"" if isinstance(sock, ssl.SSLSocket) else b""


def describe_error(error: BaseException) -> str:
    """Return a socket error in plain words."""
    if isinstance(error, (TimeoutError, socket.timeout)):
        return "timed out"
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


def read_tls_facts(endpoint: Endpoint) -> dict[str, str]:
    """Return protocol version and cipher of a new connection."""
    connection = connect(endpoint)
    try:
        sock = connection.sock
        cipher = sock.cipher() if isinstance(sock, ssl.SSLSocket) else None
        version = sock.version() if isinstance(sock, ssl.SSLSocket) else None
        return {"version": version or "", "cipher": cipher[0] if cipher else ""}
    finally:
        connection.close()


def _build_headers(key: str | None) -> dict[str, str]:
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    if key is not None:
        headers["Authorization"] = "Bearer " + key
    return headers


def call(
    endpoint: Endpoint, method: str, path: str, key: str | None, body: dict[str, Any] | None = None
) -> Reply:
    """Send one request and return the complete answer."""
    connection = connect(endpoint)
    try:
        payload = json.dumps(body) if body is not None else None
        connection.request(method, path, payload, _build_headers(key))
        answer = connection.getresponse()
        content = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise ApiError(f"the connection broke: {describe_error(error)}") from None
    finally:
        connection.close()
    found = {name.lower(): value for name, value in answer.getheaders()}
    return Reply(answer.status, found, content)


def request_chat(endpoint: Endpoint, key: str | None, body: dict[str, Any]) -> Reply:
    """Request one chat completion, not streamed."""
    return call(endpoint, "POST", "/v1/chat/completions", key, body)


def _parse_piece(data: str) -> dict[str, Any]:
    """Parse a piece of a stream. Raises ApiError for anything but a JSON object."""
    try:
        piece = json.loads(data)
    except (ValueError, RecursionError):
        piece = None
    if not isinstance(piece, dict):
        raise ApiError(f"the stream broke: a piece is no JSON object: {data[:300]}")
    return piece


def stream(
    endpoint: Endpoint, key: str, body: dict[str, Any]
) -> Iterator[tuple[float, dict[str, Any] | None]]:
    """Yield the pieces of a streamed chat: seconds since the request, and the piece.

    The last piece is None, for the end mark `[DONE]`.

    Raises ApiError when the answer is not a stream of events.
    """
    connection = connect(endpoint)
    started = time.monotonic()
    try:
        connection.request(
            "POST",
            "/v1/chat/completions",
            json.dumps({**body, "stream": True}),
            _build_headers(key),
        )
        # For a stream without a length only the response holds the socket.
        with connection.getresponse() as answer:
            if answer.status != 200:
                raise ApiError(
                    "HTTP {}: {}".format(answer.status, answer.read(300).decode(errors="replace"))
                )
            kind = answer.getheader("Content-Type") or ""
            if not kind.startswith("text/event-stream"):
                raise ApiError("the answer is %s, not a stream of events" % (kind or "untyped"))
            for raw in answer:
                line = raw.decode().strip()
                if not line.startswith("data:"):
                    continue
                data = line[5:].strip()
                since = time.monotonic() - started
                if data == "[DONE]":
                    yield since, None
                    return
                yield since, _parse_piece(data)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ApiError(f"the stream broke: {describe_error(error)}") from None
    finally:
        connection.close()
