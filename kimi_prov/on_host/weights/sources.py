"""Where weights come from: a directory, a web server, the Hugging Face hub, or a bucket.

A source lists its files and opens one of them at an offset. The module `transfer` moves and checks
the bytes, the same for all sources; `bucket` has the buckets.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import urllib.error
import urllib.parse
import urllib.request
from pathlib import PurePath
from typing import IO, TYPE_CHECKING, Any, Protocol

from kimi_prov.contract.addresses import HUB_ADDRESS
from kimi_prov.contract.errors import HostError, describe_error
from kimi_prov.contract.sizes import format_bytes
from kimi_prov.on_host.system import process
from kimi_prov.on_host.system.foreign_files import open_regular
from kimi_prov.on_host.weights import manifest as manifests
from kimi_prov.on_host.weights.manifest import Entry, Manifest

if TYPE_CHECKING:
    import io

USER_AGENT = "kimi-prov"
_BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
_HUB_TIMEOUT_S = 180.0
_LISTING_LIMIT = 64 << 20
_WEB = ("http", "https")
# By OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED: no bundle helps.
_TIME_FIXES = {
    9: "correct the clock of this machine",
    10: "correct the clock of this machine, or have the certificate renewed",
}
_HUB_CLIENT = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from kimi_prov.on_host.weights.hub import main
sys.exit(main(sys.argv[1:]))
"""


class _Readable(Protocol):
    def read1(self, limit: int, /) -> bytes: ...

    def close(self) -> None: ...


class Stream:
    """Bytes of one file from `offset` on; a server that ignores ranges makes it start at 0."""

    def __init__(self, raw: _Readable, offset: int) -> None:
        self._raw = raw
        self.offset = offset

    def read(self, limit: int) -> bytes:
        """Return up to `limit` bytes, as they come; empty at the end. Raises OSError on a stall."""
        return self._raw.read1(limit)

    def close(self) -> None:
        """Close the connection."""
        self._raw.close()


class Source:
    """The common part of all kinds of sources."""

    #: Its name in messages: without query, user or token.
    name: str
    #: Whether the listing is needed even with a pinned manifest.
    needs_listing = False

    def listing(self, _revision: str | None) -> Manifest:
        """List the files; `_revision` is the commit to which an earlier run resolved the name."""
        raise NotImplementedError

    def open(self, entry: Entry, offset: int) -> Stream:
        """Open a file for reading from `offset`. Raises HostError."""
        raise NotImplementedError

    def wrong(self, _entry: Entry) -> bool:
        """Handle wrong bytes of a file; return True where it now comes from elsewhere."""
        return False


class DirectorySource(Source):
    """`file://`: a directory on the managed machine itself (a mounted disk, a share)."""

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        self.name = url
        self._root = urllib.parse.unquote(parts.path)
        local = parts.netloc in ("", "localhost")
        if not local or not self._root.startswith("/") or "\0" in self._root:
            raise HostError(
                f"kimi_weights_source {url!r} names no directory of this machine",
                "name file:///an/absolute/directory",
            )

    def listing(self, _revision: str | None) -> Manifest:
        """Read its manifest; without one, use the files as they are at the first run."""
        self._require_directory()
        written = self._written()
        if written is not None:
            return written
        files = list(manifests.list_directory(self._root))
        if not files:
            raise HostError(f"{self.name}: the directory holds no files")
        return Manifest(files)

    def open(self, entry: Entry, offset: int) -> Stream:
        """Open one of its files."""
        path = os.path.join(self._root, entry.path)
        try:
            stream = os.fdopen(open_regular(path), "rb", buffering=0)
        except (FileNotFoundError, NotADirectoryError):
            self._require_directory()
            raise HostError(f"{path}: the manifest names this file and it is not there") from None
        except OSError as error:
            raise HostError(f"{path}: {describe_error(error)}") from None
        size = os.fstat(stream.fileno()).st_size
        if size != entry.size:
            stream.close()
            raise HostError(describe_other_size(path, size, entry))
        stream.seek(offset)
        return Stream(_Unbuffered(stream), offset)

    def _written(self) -> Manifest | None:
        """Return the manifest in the directory; None where there is none, or half of one."""
        path = os.path.join(self._root, manifests.NAME)
        try:
            with os.fdopen(open_regular(path), "rb", buffering=0) as stream:
                document = json.loads(read_all(Stream(_Unbuffered(stream), 0)))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise HostError(f"{path}: {describe_error(error)}") from None
        except ValueError:
            return None
        return manifests.parse(document, path) if document else None

    def _require_directory(self) -> None:
        if not os.path.isdir(self._root):
            raise HostError(
                f"{self.name}: there is no directory {self._root} on this machine",
                "mount or copy the weights there, or set kimi_weights_source",
            )


class _Unbuffered:
    """A raw file with the one method that `Stream` needs."""

    def __init__(self, raw: io.FileIO) -> None:
        self._raw = raw

    def read1(self, limit: int) -> bytes:
        return self._raw.read(limit) or b""

    def close(self) -> None:
        self._raw.close()


class WebSource(Source):
    """`http(s)://`: a server that has the files below one address."""

    def __init__(self, url: str, ca_bundle: str | None, stall_s: float) -> None:
        parts = urllib.parse.urlsplit(url)
        self.name = mask_url(url)
        if parts.username or parts.password:
            raise HostError(
                f"{self.name}: a user or password in kimi_weights_source would be written to logs",
                "serve the weights without one on the site's own network",
            )
        if not parts.hostname:
            raise HostError(f"{self.name}: the address has no host")
        self._base = url.rstrip("/") + "/"
        self._web = Web(ca_bundle, stall_s)

    def listing(self, _revision: str | None) -> Manifest:
        """Read the manifest beside the files."""
        url = self._base + manifests.NAME
        try:
            stream = self._web.open(url, {}, 0)
        except MissingError:
            raise HostError(
                f"{mask_url(url)}: there is no such file",
                f"put a {manifests.NAME} beside the weights (`kimi-target.pyz manifest DIR` prints "
                "one) or set kimi_weights_manifest",
            ) from None
        try:
            document = json.loads(read_all(stream))
        except ValueError:
            raise HostError(f"{mask_url(url)}: is not JSON") from None
        return manifests.parse(document, mask_url(url))

    def open(self, entry: Entry, offset: int) -> Stream:
        """Open one of its files by a range request."""
        url = self._base + urllib.parse.quote(entry.path)
        try:
            return self._web.open(url, {}, offset, entry)
        except MissingError as error:
            raise HostError(f"{error.message}; the manifest names this file") from None


class HubSource(Source):
    """`hf://repo@revision`: listed by huggingface_hub, in an environment of its own."""

    needs_listing = True

    def __init__(
        self,
        url: str,
        python: str | None,
        token_file: str | None,
        endpoint: str | None,
        ca_bundle: str | None,
        stall_s: float,
    ) -> None:
        named = HUB_ADDRESS.fullmatch(url)
        if named is None:
            raise HostError(
                f"kimi_weights_source {url!r} names no repository of the hub",
                "name hf://owner/repository@revision",
            )
        self._repo, self._revision = named[1], named[2] or "main"
        self.name = f"hf://{self._repo}@{self._revision}"
        if not python:
            raise HostError(f"{self.name}: hf_python is not set", "run `kimi-prov apply` again")
        self._python = python
        self._token_file = token_file
        self._endpoint = endpoint
        self._ca_bundle = ca_bundle
        self._web = Web(ca_bundle, stall_s)
        self._urls: dict[str, str] = {}
        self._headers: dict[str, str] = {}

    def listing(self, _revision: str | None) -> Manifest:
        """List files, digests and addresses at one commit, as the hub lists them."""
        answer = self._ask(_revision or self._revision)
        self._urls = {row["path"]: row["url"] for row in answer["files"]}
        self._headers = answer["headers"]
        listed = manifests.parse({"files": answer["files"]}, self.name)
        return Manifest(listed.files, revision=answer["commit"])

    def open(self, entry: Entry, offset: int) -> Stream:
        """Open a file at the hub's address for it, which usually redirects elsewhere."""
        url = self._urls.get(entry.path)
        if url is None:
            raise HostError(f"{self.name} has no file {entry.path}, which the manifest names")
        return self._web.open(url, self._headers, offset, entry)

    def _ask(self, revision: str) -> dict[str, Any]:
        environment = {
            "PATH": "/usr/bin:/bin",
            "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HOME": "/nonexistent",
        }
        for name in ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
            if name in os.environ:
                environment[name] = os.environ[name]
        if self._endpoint:
            environment["HF_ENDPOINT"] = self._endpoint
        if self._ca_bundle:
            environment["SSL_CERT_FILE"] = self._ca_bundle
        # The package is in a checkout or in the zipapp: Python imports from both.
        home = str(PurePath(os.path.abspath(__file__)).parents[3])
        arguments = [self._python, "-I", "-B", "-c", _HUB_CLIENT, home, self._repo, revision]
        if self._token_file:
            arguments.append(self._token_file)
        ended = process.run(*arguments, env=environment, timeout=_HUB_TIMEOUT_S)
        if isinstance(ended, process.Unfinished):
            if ended.returncode == process.TIMED_OUT:
                raise HostError(
                    f"{self.name}: the hub did not answer within {_HUB_TIMEOUT_S:.0f} s",
                    retryable=True,
                )
            raise HostError(ended.stderr, "run `kimi-prov apply` again")
        try:
            listed: dict[str, Any] = json.loads(ended.stdout)
        except ValueError:
            last = (ended.stderr.strip().splitlines() or ["no message"])[-1]
            raise HostError(f"{self.name}: huggingface_hub failed to start: {last}") from None
        refused = HostError.from_answer(listed)
        if refused is not None:
            raise HostError(
                f"{self.name}: {refused.message}", refused.fix, retryable=refused.retryable
            )
        return listed


class BusyError(HostError):
    """The server answers that it is busy; retryable."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=True)


class LaterError(HostError):
    """The file is on its way to the neighbour: ask again, any number of times; retryable."""

    def __init__(self, message: str, after_s: float) -> None:
        super().__init__(message, retryable=True)
        self.after_s = after_s


class MissingError(HostError):
    """The server answered, and has no such file."""


class Web:
    """Range requests that follow redirects and send a secret only to the hosts it is for."""

    def __init__(self, ca_bundle: str | None, stall_s: float) -> None:
        context = ssl.create_default_context()
        if ca_bundle:
            try:
                context.load_verify_locations(ca_bundle)
            except (OSError, ssl.SSLError) as error:
                raise HostError(
                    f"{ca_bundle}: cannot be read as CA bundle: {describe_error(error)}"
                ) from None
        self._stall_s = stall_s
        # Not build_opener: it opens files and ftp as well.
        self._opener = urllib.request.OpenerDirector()
        for handler in (
            urllib.request.ProxyHandler(),
            urllib.request.UnknownHandler(),
            urllib.request.HTTPHandler(),
            urllib.request.HTTPSHandler(context=context),
            urllib.request.HTTPDefaultErrorHandler(),
            urllib.request.HTTPErrorProcessor(),
            _Redirects(),
        ):
            self._opener.add_handler(handler)

    def open(
        self, url: str, headers: dict[str, str], offset: int, entry: Entry | None = None
    ) -> Stream:
        """Return the body from `offset`, after a check that it is the expected file."""
        _require_web(url)
        asked = {"User-Agent": USER_AGENT, **headers, "Accept-Encoding": "identity"}
        if offset:
            asked["Range"] = f"bytes={offset}-"
        try:
            response: http.client.HTTPResponse = self._opener.open(
                urllib.request.Request(url, headers=asked),  # noqa: S310  (checked above)
                timeout=self._stall_s,
            )
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416 and offset and entry:
                return self.open(url, headers, 0, entry)
            raise _build_http_error(error, url) from None
        except ssl.SSLCertVerificationError as error:
            raise _build_untrusted_error(url, error) from None
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                raise _build_untrusted_error(url, error.reason) from None
            raise HostError(f"{_find_host(url)}: {describe_error(error)}", retryable=True) from None
        except (OSError, http.client.HTTPException) as error:
            raise HostError(f"{_find_host(url)}: {describe_error(error)}", retryable=True) from None
        start, total = _parse_extent(response)
        if start not in (0, offset):
            response.close()
            raise HostError(
                f"{mask_url(url)}: asked from byte {offset}, was answered from {start}",
                retryable=True,
            )
        if entry is not None and total is not None and total != entry.size:
            response.close()
            raise HostError(describe_other_size(mask_url(url), total, entry))
        return Stream(response, start)


def _require_web(url: str) -> None:
    if urllib.parse.urlsplit(url).scheme not in _WEB:
        raise HostError(f"{mask_url(url)}: is not an http or https address")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follow a redirect, never out of https; another origin gets no token."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        left, entered = (urllib.parse.urlsplit(url).scheme for url in (req.full_url, newurl))
        if entered not in _WEB or (left == "https" and entered != "https"):
            fp.close()
            raise HostError(
                f"{mask_url(req.full_url)}: redirects to {mask_url(newurl)}, which leaves {left}",
                "name an address whose server stays with https",
            )
        follow = super().redirect_request(req, fp, code, msg, headers, newurl)
        if follow is not None and _find_origin(follow.full_url) != _find_origin(req.full_url):
            for name in ("Authorization", "Cookie"):
                follow.remove_header(name)
        return follow


def _find_origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


def _find_host(url: str) -> str:
    return urllib.parse.urlsplit(url).netloc.rpartition("@")[2]


def mask_url(url: str) -> str:
    """Return an address fit for a log: no user, password, query or fragment."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit((parts.scheme, _find_host(url), parts.path, "", ""))


def _build_http_error(error: urllib.error.HTTPError, asked: str) -> HostError:
    """Translate an HTTP status into an error: retryable, or one that needs a person."""
    where = mask_url(asked)
    answered = error.url or asked
    if error.code in _BUSY:
        return BusyError(f"{where}: the server answered {error.code}")
    if error.code in (401, 403) and _find_origin(answered) != _find_origin(asked):
        # A signed address behind a redirect expires; another request gives a new one.
        return HostError(
            f"{where}: the redirect to {_find_host(answered)} was refused ({error.code})",
            retryable=True,
        )
    if error.code in (401, 403):
        return HostError(
            f"{where}: the server refused access ({error.code})",
            "set kimi_hf_token_file to a token that may read it",
        )
    if error.code in (404, 410):
        return MissingError(f"{where}: the server has no such file ({error.code})")
    return HostError(f"{where}: the server answered {error.code}")


def _build_untrusted_error(url: str, error: ssl.SSLCertVerificationError) -> HostError:
    return HostError(
        f"{_find_host(url)}: its certificate is not trusted ({error.verify_message})",
        _TIME_FIXES.get(
            error.verify_code,
            "set kimi_ca_bundle where the site has a certificate authority of its own",
        ),
    )


def describe_other_size(where: str, size: int, entry: Entry) -> str:
    """Return the error that a file does not have the manifest's size."""
    return (
        f"{where}: has {size} bytes and the manifest says {entry.size} "
        f"({format_bytes(entry.size)}): the source and the manifest are of different revisions"
    )


def _parse_extent(response: http.client.HTTPResponse) -> tuple[int, int | None]:
    """Return first byte of the body and size of the file, as far as the server reports them."""
    if response.status == 206:
        unit, _, rest = (response.headers.get("Content-Range") or "").partition(" ")
        span, _, total = rest.partition("/")
        first = span.partition("-")[0]
        if unit == "bytes" and first.isdigit():
            return int(first), int(total) if total.isdigit() else None
        return -1, None
    length = response.headers.get("Content-Length")
    return 0, int(length) if length and length.isdigit() else None


def read_all(stream: Stream) -> bytes:
    """Read an answer that must be small: a listing, a key."""
    parts: list[bytes] = []
    size = 0
    try:
        while True:
            part = stream.read(1 << 16)
            if not part:
                return b"".join(parts)
            parts.append(part)
            size += len(part)
            if size > _LISTING_LIMIT:
                raise HostError(f"the listing is larger than {format_bytes(_LISTING_LIMIT)}")
    except (OSError, http.client.HTTPException) as error:
        raise HostError(
            f"the listing was cut off: {describe_error(error)}", retryable=True
        ) from None
    finally:
        stream.close()
