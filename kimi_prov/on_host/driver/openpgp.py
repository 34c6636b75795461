"""Fingerprints of OpenPGP keys, read from the file itself: a bare machine has no gpg."""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Iterator, List, Tuple

_PUBLIC_KEY = 6
_ARMOUR = b"-----BEGIN PGP PUBLIC KEY BLOCK-----"
_ARMOUR_END = b"-----END PGP PUBLIC KEY BLOCK-----"


def fingerprints(content: bytes) -> List[str]:
    """Fingerprints of all primary keys in a key file, armoured or not (RFC 4880, version 4 keys).

    Raises ValueError where the content is no such file, or holds a key of another version.
    """
    found = []
    for tag, body in _packets(_binary(content)):
        if tag != _PUBLIC_KEY:
            continue
        if body[:1] != b"\x04":
            raise ValueError("a key of an unknown version")
        framed = b"\x99" + len(body).to_bytes(2, "big") + body
        # The form of fingerprints is fixed; no trust rests on SHA-1 beyond comparing with a pin.
        found.append(hashlib.sha1(framed).hexdigest().upper())  # noqa: S324
    if not found:
        raise ValueError("no public key")
    return found


def _binary(content: bytes) -> bytes:
    """Take the armour off: blocks of base64 after an empty line, each with a checksum line."""
    if _ARMOUR not in content:
        return content
    joined = b""
    for block in content.replace(b"\r\n", b"\n").split(_ARMOUR)[1:]:
        _, _, text = block.partition(_ARMOUR_END)[0].partition(b"\n\n")
        lines = [line for line in text.split(b"\n") if line and not line.startswith(b"=")]
        try:
            joined += base64.b64decode(b"".join(lines), validate=True)
        except binascii.Error as error:
            raise ValueError(f"not base64: {error}") from None
    return joined


def _packets(data: bytes) -> Iterator[Tuple[int, bytes]]:
    """Tag and body of each packet."""
    place = 0
    while place < len(data):
        head = data[place]
        if not head & 0x80:
            raise ValueError("not a file of OpenPGP packets")
        if head & 0x40:
            tag, place, size = head & 0x3F, *_new_length(data, place + 1)
        else:
            tag, width = (head >> 2) & 0xF, 1 << (head & 3)
            if width == 8:
                raise ValueError("a packet without a length")
            size = int.from_bytes(data[place + 1 : place + 1 + width], "big")
            place += 1 + width
        body = data[place : place + size]
        if len(body) != size:
            raise ValueError("cut short")
        yield tag, body
        place += size


def _new_length(data: bytes, place: int) -> Tuple[int, int]:
    """Where the body starts and how long it is, in the newer form of a packet's head."""
    first = data[place] if place < len(data) else 255
    if first < 192:
        return place + 1, first
    if first < 224:
        second = int.from_bytes(data[place + 1 : place + 2], "big")
        return place + 2, ((first - 192) << 8) + second + 192
    if first == 255:
        return place + 5, int.from_bytes(data[place + 1 : place + 5], "big")
    raise ValueError("a packet in parts")
