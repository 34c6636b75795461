"""Bundled interpreters, for machines whose distribution has none that a lock fits."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import unquote, urlsplit

from kimi_prov.catalog.confidence import Confidence  # noqa: TC001  (read at run time)
from kimi_prov.catalog.currency import Row
from kimi_prov.catalog.names import PathName, TextPattern

# The usual base of the builds' URLs, which a mirror replaces.
BASE_URL = "https://github.com/astral-sh/python-build-standalone/releases/download"

_Version = Annotated[
    str, TextPattern("a version such as 3.12.16", re.compile(r"3\.\d{1,3}\.\d{1,3}"))
]
_Sha256 = Annotated[str, TextPattern("a SHA-256 (64 hex digits)", re.compile(r"[0-9a-f]{64}"))]
_Url = Annotated[
    str,
    TextPattern(
        "the URL of an archive (https://.../NAME.tar.gz)",
        re.compile(r"https?://[!-~]+/[\w.%+-]+\.tar\.(gz|zst)"),
    ),
]


@dataclass(frozen=True)
class Interpreter(Row):
    """A build of CPython by python-build-standalone. Sizes in bytes.

    `build`: the release of python-build-standalone. `glibc`: the oldest that it runs on.
    `bytes`: of the archive. `installed_bytes`: of its content.
    """

    version: _Version
    build: PathName
    arch: PathName
    glibc: str
    url: _Url
    sha256: _Sha256
    bytes: int
    installed_bytes: int
    source: str
    confidence: Confidence

    @property
    def minor(self) -> str:
        """Minor version as in locks, such as "3.12"."""
        return self.version.rpartition(".")[0]

    @property
    def key(self) -> str:
        """Name of the interpreter in uv, and of its directory."""
        return f"cpython-{self.version}-linux-{self.arch}-gnu"

    @property
    def archive(self) -> str:
        """File name of the archive."""
        return unquote(urlsplit(self.url).path.rpartition("/")[2])

    @property
    def name(self) -> str:
        """Name of its directory on the machine, which differs for each build and its bytes."""
        return f"{self.version}-{self.build}-{self.sha256[:12]}"

    def mirrored(self, mirror: str | None) -> str:
        """Return its URL at a mirror, whose paths are those of the usual base."""
        if mirror is None or not self.url.startswith(f"{BASE_URL}/"):
            return self.url
        return mirror.rstrip("/") + self.url.removeprefix(BASE_URL)
