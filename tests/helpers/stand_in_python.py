"""An archive laid out as CPython's standalone builds are, made of an interpreter that is at hand.

It stands in for a build of python-build-standalone, which is not fetched by the tests: its name,
its row of the catalogue and a note inside say so.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import yaml

from kimi_prov.catalog.pythons import BASE_URL
from kimi_prov.lab import images
from kimi_prov.lab.settings import read_apt_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

IMAGE = "debian-12"
MINOR = "3.11"
BUILD = "STANDIN"
NOTE = (
    "STAND-IN: this is a python of the tests (Debian 12's own 3.11, or the one that runs them) in\n"
    "the layout of python-build-standalone's install_only archives. It is no build of theirs,\n"
    "has no headers, and takes the shared libraries of its modules from the machine.\n"
)
# The projects' builds have none of these either, or what they link is not on a bare Debian 13.
_LEFT_OUT = re.compile(
    r"(^|/)(__pycache__|EXTERNALLY-MANAGED|sitecustomize\.py|_dbm\.[^/]*\.so|nis\.[^/]*\.so"
    r"|site-packages|test|tests|config-[^/]*)(/|$)"
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
            "source": "STAND-IN: a python3.11 at hand, packed by the tests",
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
    asked = ["chroot", root, f"/usr/bin/python{MINOR}", "-I", "-S", "-V"]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    program = root / f"usr/bin/python{MINOR}"
    return _pack(program, root / f"usr/lib/python{MINOR}", done.stdout.split()[1], mirror)


def pack_running(mirror: Path) -> StandIn:
    """Pack the interpreter that runs the tests, without the packages installed in it."""
    top, minor = Path(sys.base_prefix), f"{sys.version_info.major}.{sys.version_info.minor}"
    version = ".".join(map(str, sys.version_info[:3]))
    return _pack(top / f"bin/python{minor}", top / f"lib/python{minor}", version, mirror)


def _pack(program: Path, library: Path, version: str, mirror: Path) -> StandIn:
    members = sorted(_members(program, library), key=lambda member: member[0].name)
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


def _members(program: Path, library: Path) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    yield _file("python/STAND-IN.txt", NOTE.encode())
    yield _file(f"python/bin/{program.name}", program.read_bytes(), 0o755)
    for name in ("python", "python3"):
        link = tarfile.TarInfo(f"python/bin/{name}")
        link.type, link.linkname = tarfile.SYMTYPE, program.name
        yield link, b""
    for path in library.rglob("*"):
        inside = path.relative_to(library).as_posix()
        if path.is_file() and not _LEFT_OUT.search(inside):
            yield _file(f"python/lib/{library.name}/{inside}", path.read_bytes())


def _file(name: str, content: bytes, mode: int = 0o644) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), mode
    return info, content
