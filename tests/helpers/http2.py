"""A client of HTTP/2 that keeps its connection whatever the server says, for tests.

Frames and headers by RFC 9113 and RFC 7541, as little as it takes: fields go as literals, and of an
answer the status alone is read, where it is one that the standard's table has.
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
from typing import Any

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
# The first byte of an answer's headers: the status by its place in the table, or a literal.
_STATUS = {0x88: 200, 0x8C: 400, 0x8D: 404, 0x8E: 500}
OTHER = 0


class Connection:
    """One connection; streams have odd numbers, each larger than the one before."""

    def __init__(self, port: int, timeout_s: float = 30) -> None:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        plain = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        self._socket = context.wrap_socket(plain)
        assert self._socket.selected_alpn_protocol() == "h2"
        self._socket.sendall(_PREFACE)
        self._send(_SETTINGS, 0, 0, b"")
        self._stream = -1

    def ask(self, key: str, question: dict[str, Any] | None = None) -> int:
        """Ask for the models, or a question, and return the stream's number."""
        self._stream += 2
        body = json.dumps(question).encode() if question else b""
        fields = {
            ":method": "POST" if body else "GET",
            ":scheme": "https",
            ":path": "/v1/chat/completions" if body else "/v1/models",
            ":authority": "lab1",
            "authorization": f"Bearer {key}",
            **(
                {"content-type": "application/json", "content-length": str(len(body))}
                if body
                else {}
            ),
        }
        packed = b"".join(b"\0" + _text(name) + _text(value) for name, value in fields.items())
        end = 0 if body else _END_STREAM
        self._send(_HEADERS, _END_HEADERS | end, self._stream, packed)
        if body:
            self._send(_DATA, _END_STREAM, self._stream, body)
        return self._stream

    def status(self, stream: int) -> int:
        """Return the status of an answer, OTHER where the table has it not."""
        while True:
            kind, flags, number, payload = self._receive()
            if kind == _SETTINGS and not flags & _ACK:
                self._send(_SETTINGS, _ACK, 0, b"")
            if (kind, number) == (_HEADERS, stream):
                return _STATUS.get(payload[0], OTHER)

    def close(self) -> None:
        self._socket.close()

    def _send(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        head = struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream)
        self._socket.sendall(head + payload)

    def _receive(self) -> tuple[int, int, int, bytes]:
        head = self._exactly(9)
        kind, flags, stream = struct.unpack(">BBI", head[3:])
        return kind, flags, stream & 0x7FFFFFFF, self._exactly(int.from_bytes(head[:3], "big"))

    def _exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            part = self._socket.recv(size - len(found))
            if not part:
                raise ConnectionResetError("the server closed the connection")
            found += part
        return found


def _text(text: str) -> bytes:
    raw = text.encode()
    if len(raw) < 127:
        return bytes([len(raw)]) + raw
    return bytes([127, len(raw) - 127]) + raw
