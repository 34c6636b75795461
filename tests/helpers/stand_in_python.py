"""An archive laid out as CPython's standalone builds are, made of the lab image's own interpreter.

It stands in for a build of python-build-standalone, which is not fetched by the tests: its name,
its row of the catalogue and a note inside say so.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import subprocess
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

import yaml

from kimi_prov.catalog.pythons import BASE_URL
from kimi_prov.lab import images
from kimi_prov.lab.settings import read_apt_settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

IMAGE = "debian-12"
MINOR = "3.11"
BUILD = "STANDIN"
NOTE = (
    "STAND-IN: this is Debian 12's own python3.11 in the layout of python-build-standalone's\n"
    "install_only archives. It is no build of that project, has no headers, and takes the shared\n"
    "libraries of its modules from the machine.\n"
)
# The projects' builds have none of these either, or what they link is not on a bare Debian 13.
_LEFT_OUT = re.compile(
    r"(^|/)(__pycache__|EXTERNALLY-MANAGED|sitecustomize\.py|_dbm\.[^/]*\.so|nis\.[^/]*\.so)(/|$)"
)


@dataclass(frozen=True)
class StandIn:
    """The archive, and what the catalogue says of it."""

    archive: Path
    version: str
    sha256: str
    bytes: int
    installed_bytes: int

    @property
    def mirror(self) -> Path:
        """The directory that stands in place of the builds' usual base."""
        return self.archive.parents[1]

    def files(self) -> dict[str, bytes]:
        """What a web server has to have, by path as a client may ask for it."""
        return {f"{BUILD}/{quote(self.archive.name)}": self.archive.read_bytes()}

    def write_overlay(self, folder: Path) -> Path:
        """Write the folder for `--catalog` that knows this build beside the catalogue's own."""
        row = {
            "version": self.version,
            "build": BUILD,
            "arch": "x86_64",
            "glibc": "2.36",
            # Where the builds have their usual place: the mirror stands in for that.
            "url": f"{BASE_URL}/{BUILD}/{quote(self.archive.name)}",
            "sha256": self.sha256,
            "bytes": self.bytes,
            "installed_bytes": self.installed_bytes,
            "source": "STAND-IN: Debian 12's own python3.11, packed by the tests",
            "confidence": "low",
            "checked": "2026-11-22",
        }
        folder.mkdir(parents=True, exist_ok=True)
        document = {"schema": "kimi-prov/catalog/pythons/v1", "pythons": [row]}
        (folder / "pythons.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
        return folder


def make(mirror: Path) -> StandIn:
    """Pack the interpreter of the lab's Debian 12 image below `mirror`, as a mirror has it."""
    wanted = images.make_recipe(IMAGE, with_kernel=False, apt=read_apt_settings())
    return pack(images.ensure_image(wanted, lambda _: None) / "root", mirror)


def pack(root: Path, mirror: Path) -> StandIn:
    """Pack the interpreter of the Debian root `root`; the same root gives the same bytes."""
    version = _version(root)
    members = sorted(_members(root), key=lambda member: member[0].name)
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    packed = gzip.compress(plain.getvalue(), compresslevel=6, mtime=0)
    name = f"cpython-{version}+{BUILD}-x86_64-unknown-linux-gnu-install_only.tar.gz"
    archive = mirror / BUILD / name
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.write_bytes(packed)
    return StandIn(
        archive=archive,
        version=version,
        sha256=hashlib.sha256(packed).hexdigest(),
        bytes=len(packed),
        installed_bytes=sum(info.size for info, _ in members),
    )


def _version(root: Path) -> str:
    """X.Y.Z, as the interpreter itself says it."""
    done = subprocess.run(
        ["chroot", root, f"/usr/bin/python{MINOR}", "-I", "-S", "-V"],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()[1]


def _members(root: Path) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    library = root / "usr" / "lib" / f"python{MINOR}"
    yield _file("python/STAND-IN.txt", NOTE.encode())
    yield _file(f"python/bin/python{MINOR}", (root / f"usr/bin/python{MINOR}").read_bytes(), 0o755)
    for name in ("python", "python3"):
        link = tarfile.TarInfo(f"python/bin/{name}")
        link.type, link.linkname = tarfile.SYMTYPE, f"python{MINOR}"
        yield link, b""
    for path in library.rglob("*"):
        inside = path.relative_to(library).as_posix()
        if path.is_file() and not _LEFT_OUT.search(inside):
            yield _file(f"python/lib/python{MINOR}/{inside}", path.read_bytes())


def _file(name: str, content: bytes, mode: int = 0o644) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), mode
    return info, content
