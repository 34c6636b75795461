"""The forms of addresses of weights, and what they say about the transfer."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

# scheme://LOGIN@rest, where LOGIN has only unescaped characters (RFC 3986).
_WITH_LOGIN = re.compile(
    r"([a-z]+://)([A-Za-z0-9._~!$&'()*+,;=%-]*(?::[A-Za-z0-9._~!$&'()*+,;=:%-]*)?@)(.*)"
)
# Never a path out of a folder, an option or a hidden file.
PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}")
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
HUB_REPOSITORY = re.compile(f"{_NAME}/{_NAME}")
HUB_REVISION = re.compile(f"{_NAME}(?:/{_NAME})*")
HUB_ADDRESS = re.compile(f"hf://({HUB_REPOSITORY.pattern})(?:@({HUB_REVISION.pattern}))?")
# A bucket's name as both providers take it, and a folder in it of plain names.
BUCKET_ADDRESS = re.compile(
    rf"(s3|gs)://([a-z0-9][a-z0-9._-]{{1,220}}[a-z0-9])((?:/{_NAME})*)/?", re.ASCII
)

# Beside the weights, whatever their folder: the cost of the machines' sessions.
_SESSIONS = "kimi-sessions"

# USER@HOST or HOST as ssh takes it: nothing that it would read as an option, a URL or two words.
LOGIN = re.compile(
    r"(?:[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}@)?[A-Za-z0-9_\[:][A-Za-z0-9_.:%\[\]-]{0,254}"
)
NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,254}")


def is_sent_in_clear(url: str) -> bool:
    """Return whether the network can read what is sent there: http to another machine."""
    parts = urlsplit(url)
    return parts.scheme == "http" and not _is_loopback(parts.hostname or "")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def strip_login(url: str) -> tuple[str, str]:
    """Return the URL without `user:password@`, and that part; empty where there is none."""
    found = _WITH_LOGIN.fullmatch(url)
    return (f"{found[1]}{found[3]}", found[2]) if found else (url, "")


def find_sessions_folder(source: str | None) -> str | None:
    """Return where machines store the cost of sessions, in the bucket of a source of weights.

    None for a source that is not a bucket.
    """
    named = BUCKET_ADDRESS.fullmatch(source or "")
    return f"{named[1]}://{named[2]}/{_SESSIONS}" if named else None
