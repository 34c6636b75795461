"""Weights from a neighbour: a host of the inventory that has or fetches them, and shares them.

A neighbour is asked only for the bytes of files. Which files there are, and their hashes, always
comes from the source or the pinned manifest; a file without a known SHA-256 is never asked of a
neighbour. A neighbour that is gone, slow, or sends wrong bytes is not asked again: the source is.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
import urllib.parse
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Callable

from kimi_prov.contract.errors import describe_error
from kimi_prov.contract.sizes import format_bytes
from kimi_prov.on_host.endpoint import api_client
from kimi_prov.on_host.system.files import read_json
from kimi_prov.on_host.weights.sources import USER_AGENT, LaterError, Source, Stream

if TYPE_CHECKING:
    from kimi_prov.on_host.weights.manifest import Entry, Manifest

_OK, _PARTIAL, _UNKNOWN, _BUSY = 200, 206, 404, 503
_REFUSED = (401, 403)
# Connections for one file that ended without a byte of it.
_EMPTY = 3
_GETTING = 16
# Bytes of an answer that names files.
_MAX_BYTES = 16 << 20


@dataclass(frozen=True)
class Limits:
    """How long a neighbour is waited for, in seconds.

    `gone_s`: without an answer. `grace_s`: while it has begun no download of its own. `window_s`:
    the time over which rates are measured. It must send each file at `slowest` bytes a second at
    least, and fetch a file that it does not have yet at a sixteenth of that: a source that is slow
    for the neighbour is no faster for us.
    """

    gone_s: float = 20.0
    grace_s: float = 60.0
    window_s: float = 60.0
    slowest: float = 1 << 20
    again_s: float = 1.0


@dataclass(frozen=True)
class Neighbour:
    """A neighbour's address, its pinned certificate, and the key by which it knows us."""

    name: str
    address: str
    port: int
    certificate_sha256: str
    key: str = field(repr=False)
    limits: Limits = Limits()

    @classmethod
    def load(cls, path: str) -> Neighbour | None:
        """Read the file; None where there is none, or where no neighbour shares yet."""
        document = read_json(path)
        try:
            found = cls(
                str(document["name"]),
                str(document["address"]),
                int(document["port"]),
                str(document["certificate_sha256"]),
                str(document["key"]),
            )
            return replace(found, limits=Limits(**(document.get("limits") or {})))
        except (KeyError, TypeError, ValueError):
            return None


def name_folder(directory: str) -> str:
    """Return the name of a weights directory that both hosts know: its model and its revision."""
    return "/".join(directory.rstrip("/").split("/")[-2:])


class _Pace:
    """Measures whether a count that only grows does so too slowly, over a window."""

    def __init__(self, window_s: float, slowest: float, count: int) -> None:
        self._window_s = window_s
        self._slowest = slowest
        self._since = time.monotonic()
        self._count = count

    def slow(self, count: int) -> float | None:
        """Return the rate where a window is over and the rate was too low."""
        passed = time.monotonic() - self._since
        if passed < self._window_s:
            return None
        rate = (count - self._count) / passed
        self._since, self._count = time.monotonic(), count
        return rate if rate < self._slowest else None


@dataclass(frozen=True)
class _Has:
    """A neighbour's answer about itself: its verified files, and its progress with others."""

    files: dict[str, str]
    fetching: bool
    moved: int

    @classmethod
    def read(cls, content: bytes) -> _Has:
        document = json.loads(content)
        files = {str(path): str(digest) for path, digest in document["files"].items()}
        return cls(files, bool(document["fetching"]), int(document["moved"]))


class NeighbourSource(Source):
    """A source, and the neighbour that is asked for its files first."""

    def __init__(
        self,
        inner: Source,
        neighbour: Neighbour,
        directory: str,
        *,
        stall_s: float,
        left: Callable[[str, bool], None],
    ) -> None:
        """When it is given up, call `left` with the reason and whether it sent wrong bytes."""
        self._inner = inner
        self._neighbour = neighbour
        self._folder = name_folder(directory)
        self._endpoint = api_client.Endpoint(
            neighbour.address, neighbour.port, neighbour.certificate_sha256, stall_s
        )
        self._left = left
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        self._has: _Has | None = None
        self._has_at = 0.0
        self._failing_since: float | None = None
        self._idle_since: float | None = None
        self._waiting: _Pace | None = None
        self._touched: set[str] = set()
        self._paces: dict[str, _Pace] = {}
        self._came: dict[str, int] = {}
        self._empty: dict[str, int] = {}
        self._lost: str | None = None
        self.lied = False
        self.taken_bytes = 0
        #: Bytes of all files: it cannot have fetched more.
        self.total_bytes = 0
        self.name = inner.name
        self.neighbour = neighbour.name
        self.needs_listing = inner.needs_listing

    def listing(self, _revision: str | None) -> Manifest:
        """List the files at the source: a neighbour has no say in what the files are."""
        return self._inner.listing(_revision)

    def open(self, entry: Entry, offset: int) -> Stream:
        """Open a file at the neighbour, else at the source.

        Raises LaterError while the neighbour does not have it yet.
        """
        if entry.sha256 is not None and self._lost is None:
            found = self._at_neighbour(entry, offset)
            if found is not None:
                return found
        if self.lied and entry.path in self._touched:
            # The partial file may have wrong bytes from the neighbour.
            self._touched.discard(entry.path)
            offset = 0
        return self._inner.open(entry, offset)

    def wrong(self, entry: Entry) -> bool:
        """Distrust the neighbour if bytes of this file came from it; return whether they did."""
        with self._lock:
            if entry.path not in self._touched:
                return False
            self._touched.discard(entry.path)
        self._leave(f"sent wrong bytes of {entry.path}", lied=True)
        return True

    def _at_neighbour(self, entry: Entry, offset: int) -> Stream | None:
        """Return the neighbour's stream of a file; None where the source has to be asked."""
        try:
            has = self._what_it_has()
            digest = has.files.get(entry.path) if has else None
            if has is not None and digest is None:
                self._not_yet(entry, has)
            # Another digest means another revision, which is no error of the neighbour.
            elif digest == entry.sha256:
                return self._request(entry, offset)
        except api_client.OtherCertificateError:
            self._leave("shows another certificate than its own", lied=True)
        except (api_client.ApiError, OSError, http.client.HTTPException) as error:
            self._failed(describe_error(error))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self._leave("answered what is not its protocol", lied=True)
        return None

    def _what_it_has(self) -> _Has | None:
        """Ask what it has, once in a while for all files together."""
        with self._asking:
            now = time.monotonic()
            if self._has is not None and now - self._has_at < self._neighbour.limits.again_s:
                return self._has
            response = self._get("/have", {"folder": self._folder}, {})
            if response is None:
                self._leave(f"has nothing of {self._folder}", lied=False)
                return None
            found = _Has.read(response.all(now + self._neighbour.limits.gone_s))
            self._has, self._has_at = found, time.monotonic()
            return found

    def _request(self, entry: Entry, offset: int) -> Stream | None:
        asked = {"folder": self._folder, "path": entry.path, "sha256": entry.sha256 or ""}
        response = self._get("/file", asked, {"Range": f"bytes={offset}-"} if offset else {})
        if response is None:
            return None
        if response.length != entry.size - offset:
            response.close()
            raise ValueError(entry.path)
        with self._lock:
            self._touched.add(entry.path)
            self._waiting = None
            self._empty[entry.path] = self._empty.get(entry.path, 0) + 1
            often = self._empty[entry.path] > _EMPTY
        if often:
            response.close()
            self._leave(f"does not send {entry.path}", lied=False)
            return None
        return Stream(_Taken(self, entry.path, response), offset)

    def _get(self, path: str, query: dict[str, str], headers: dict[str, str]) -> _Response | None:
        """Ask the neighbour; None where the source has to be asked. Raises LaterError."""
        given = {
            "User-Agent": USER_AGENT,
            "Authorization": f"Bearer {self._neighbour.key}",
            **headers,
        }
        asked = f"{path}?{urllib.parse.urlencode(query)}"
        response = _Asked(self._endpoint, asked, given).answer(self._neighbour.limits.gone_s)
        if response.status in (_OK, _PARTIAL):
            return response
        response.close()
        if response.status == _BUSY:
            raise self._later(f"{self._neighbour.name} serves others")
        if response.status in _REFUSED:
            self._leave("does not know this host's key", lied=False)
        elif response.status != _UNKNOWN:
            raise OSError(f"it answered {response.status}")
        return None

    def _not_yet(self, entry: Entry, has: _Has) -> None:
        """Wait for a file that the neighbour fetches. Raises LaterError, or gives it up."""
        name = self._neighbour.name
        if has.fetching:
            with self._lock:
                self._idle_since = self._failing_since = None
            raise self._later(f"{entry.path}: waiting for {name}, which fetches it")
        with self._lock:
            now = time.monotonic()
            self._idle_since = self._idle_since or now
            patient = now - self._idle_since < self._neighbour.limits.grace_s
        if patient:
            raise LaterError(
                f"{entry.path}: waiting for {name} to begin", self._neighbour.limits.again_s
            )
        self._leave(f"has no {entry.path} and fetches nothing", lied=False)

    def _later(self, message: str) -> LaterError:
        """Return the error that asks to come again, unless the neighbour's progress is too slow."""
        limits = self._neighbour.limits
        with self._lock:
            moved = min(self._has.moved, self.total_bytes) if self._has else 0
            count = self.taken_bytes + moved
            slowest = limits.slowest / _GETTING
            self._waiting = self._waiting or _Pace(limits.window_s, slowest, count)
            rate = self._waiting.slow(count)
        if rate is not None:
            self._leave(f"got {format_bytes(max(0, rate))}/s, which is too slow", lied=False)
        return LaterError(message, limits.again_s)

    def _failed(self, reason: str) -> None:
        """Ask again a little later, or give up a neighbour that is gone for good."""
        with self._lock:
            now = time.monotonic()
            self._failing_since = self._failing_since or now
            patient = now - self._failing_since < self._neighbour.limits.gone_s
        if patient:
            raise LaterError(
                f"{self._neighbour.name}: {reason}; asking again", self._neighbour.limits.again_s
            )
        self._leave(f"is gone ({reason})", lied=False)

    def _leave(self, reason: str, *, lied: bool) -> None:
        with self._lock:
            first = self._lost is None
            self._lost = self._lost or reason
            self.lied = self.lied or lied
        if first or lied:
            self._left(f"{self._neighbour.name} {reason}", lied)

    def came(self, path: str, data: bytes) -> bytes:
        """Count bytes from the neighbour. Raises OSError where it is no longer accepted."""
        name = self._neighbour.name
        with self._lock:
            if self.lied:
                raise OSError(f"{name} is no longer trusted")
            if data:
                self._failing_since = None
                self._empty.pop(path, None)
            self.taken_bytes += len(data)
            count = self._came[path] = self._came.get(path, 0) + len(data)
            # One measure for all connections of a file: a byte on each of many is slow as well.
            limits = self._neighbour.limits
            pace = self._paces.setdefault(path, _Pace(limits.window_s, limits.slowest, 0))
            rate = pace.slow(count)
        if rate is not None:
            self._leave(f"sent {format_bytes(rate)}/s, which is too slow", lied=False)
            raise OSError(f"{name} is too slow")
        return data


class _Response:
    """An answer and its connection, which end together."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection
        self._response = connection.getresponse()
        self.status = self._response.status
        self.length: Any = self._response.length

    def read1(self, limit: int) -> bytes:
        return self._response.read1(limit)

    def all(self, end: float) -> bytes:
        """Read a short answer, and close. Raises OSError or ValueError for any other answer."""
        parts: list[bytes] = []
        try:
            while sum(map(len, parts)) < _MAX_BYTES:
                part = self._response.read1(1 << 16)
                if not part:
                    return b"".join(parts)
                parts.append(part)
                if time.monotonic() > end:
                    raise OSError("its answer did not end")
        finally:
            self.close()
        raise ValueError(_MAX_BYTES)

    def close(self) -> None:
        self._response.close()
        self._connection.close()


class _Asked:
    """A request whose answer must begin in time.

    A socket's own limit is for each byte: a peer that sends a byte now and then would block for
    ever.
    """

    def __init__(self, endpoint: api_client.Endpoint, path: str, headers: dict[str, str]) -> None:
        self._endpoint = endpoint
        self._path = path
        self._headers = headers
        self._lock = threading.Lock()
        self._given_up = False
        self._response: _Response | None = None
        self._error: Exception | None = None

    def answer(self, limit_s: float) -> _Response:
        """Return the answer, its body unread. Raises OSError where it has not begun in time."""
        thread = threading.Thread(target=self._ask, daemon=True)
        thread.start()
        thread.join(limit_s)
        with self._lock:
            self._given_up = True
            if self._error is not None:
                raise self._error
            if self._response is None:
                raise OSError("its answer did not begin")
            return self._response

    def _ask(self) -> None:
        try:
            connection = api_client.connect(self._endpoint)
            try:
                connection.request("GET", self._path, headers=self._headers)
                response = _Response(connection)
            except BaseException:
                connection.close()
                raise
        except Exception as error:  # noqa: BLE001 - whoever waits raises it
            with self._lock:
                self._error = error
            return
        with self._lock:
            if not self._given_up:
                self._response = response
                return
        response.close()


class _Taken:
    """The bytes of a file from the neighbour, counted."""

    def __init__(self, source: NeighbourSource, path: str, response: _Response) -> None:
        self._source = source
        self._path = path
        self._response = response

    def read1(self, limit: int) -> bytes:
        return self._source.came(self._path, self._response.read1(limit))

    def close(self) -> None:
        self._response.close()
