"""A distribution's packages with all that they depend on, as an archive that apt reads.

apt resolves and downloads them against an empty machine, with lists of its own; apt-ftparchive
writes the new lists. The same packages give the same bytes: the date is that of the distribution's
newest list.
"""

from __future__ import annotations

import email.utils
import os
import re
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from kimi_prov.contract import paths
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.packaging.apt_sources import find_archives, read_own

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_URI = re.compile(r"^'([^']+)' (\S+) (\d+) \S*$", re.MULTILINE)
_UNKNOWN = re.compile(
    r"^E: (?:Unable to locate package (\S+)|Package '([^']+)' has no)", re.MULTILINE
)
_DATE = re.compile(r"^Date: (.+)$", re.MULTILINE)
_ARCHES = {"x86_64": "amd64", "aarch64": "arm64"}
_TIMEOUT_S = 3600.0


@dataclass(frozen=True)
class Suites:
    """What lies in a distribution's archive, where its security updates are, and its keyring."""

    components: str
    security: str
    keyring: str


_DISTRIBUTIONS = {
    "debian": Suites("main", "{mirror}-security", "/usr/share/keyrings/debian-archive-keyring.gpg"),
    "ubuntu": Suites("main universe", "{mirror}", "/usr/share/keyrings/ubuntu-archive-keyring.gpg"),
}
_CODENAMES = {
    "debian-12": "bookworm",
    "debian-13": "trixie",
    "ubuntu-22.04": "jammy",
    "ubuntu-24.04": "noble",
}


@dataclass(frozen=True)
class Download:
    """A package's URL, its file among apt's downloads, and its size."""

    url: str
    file: str
    size: int

    @property
    def name(self) -> str:
        """Name in the archive: without the escaped epoch, which apt would read otherwise."""
        return unquote(self.url.rpartition("/")[2])


class Archive:
    """The packages of one system, gathered below a folder that stays until they are packed."""

    def __init__(self, system: str, arch: str, folder: Path, mirror: str | None) -> None:
        distribution = system.partition("-")[0]
        if system not in _CODENAMES or arch not in _ARCHES:
            raise UserError(
                f"{system} on {arch}: no offline bundle is made for it",
                fix=f"name one of {', '.join(_CODENAMES)}",
            )
        suites = _DISTRIBUTIONS[distribution]
        if not os.path.exists(suites.keyring):  # noqa: PTH110  (a path of this machine)
            raise UserError(
                f"{suites.keyring} is missing: {distribution}'s lists cannot be checked",
                fix=f"apt-get install {distribution}-"
                + ("archive-keyring" if distribution == "debian" else "keyring"),
            )
        self.system, self._arch, self._folder = system, _ARCHES[arch], folder.absolute()
        mirror = mirror or find_archives(read_own(), distribution)[0]
        if mirror is None:
            raise UserError(
                f"{system}: this computer's apt sources name no archive of {distribution}",
                fix=f"name one in kimi_apt_mirror: http://MIRROR/{distribution}",
            )
        self._sources = _format_sources(suites, _CODENAMES[system], mirror.rstrip("/"))
        _require_tools()

    def refresh(self) -> None:
        """Fetch the distribution's lists, signed by the distribution. Raises UserError."""
        for part in ("lists/partial", "archives/partial", "empty/partial"):
            (self._folder / part).mkdir(parents=True, exist_ok=True)
        (self._folder / "status").write_text("")
        (self._folder / "archive.sources").write_text(self._sources)
        done = self._run("update", "-o", "APT::Update::Error-Mode=any")
        if done.returncode:
            raise UserError(
                f"{self.system}: apt-get update failed: {_find_reason(done.stderr)}",
                fix="name a mirror that answers in kimi_apt_mirror",
                exit_code=ExitCode.FAILED,
            )

    def resolve(self, packages: Sequence[str]) -> tuple[list[Download], list[str]]:
        """Return all files of the packages, and the packages that the distribution lacks."""
        names = list(packages)
        unknown: list[str] = []
        while names:
            # apt names only what is not there yet, so it looks where nothing is.
            empty = f"Dir::Cache::archives={self._folder / 'empty'}"
            done = self._run("install", "--print-uris", "-o", empty, *names)
            if not done.returncode:
                rows = _URI.findall(done.stdout)
                return [Download(url, file, int(size)) for url, file, size in rows], unknown
            lost = [name for pair in _UNKNOWN.findall(done.stderr) for name in pair if name]
            if not set(lost) & set(names):
                raise UserError(
                    f"{self.system}: apt cannot resolve the packages: {_find_reason(done.stderr)}",
                    fix="try again when the mirror is whole",
                    exit_code=ExitCode.FAILED,
                )
            unknown += lost
            names = [name for name in names if name not in lost]
        return [], unknown

    def download(self, packages: Sequence[str]) -> None:
        """Download the files; apt compares each with the signed list. Complete ones are kept."""
        done = self._run("install", "--download-only", *packages)
        if done.returncode:
            raise UserError(
                f"{self.system}: packages could not be downloaded: {_find_reason(done.stderr)}",
                fix="run the same command again: complete files are kept",
                exit_code=ExitCode.FAILED,
            )

    def pack(self, files: Sequence[Download], into: Path) -> bytes:
        """Write the archive of these files; return its list of contents, which is to be signed."""
        tree = self._folder / "tree"
        shutil.rmtree(tree, ignore_errors=True)
        (tree / "pool").mkdir(parents=True)
        for row in files:
            (tree / "pool" / row.name).hardlink_to(self._folder / "archives" / row.file)
        packages = self._write_list(tree, "packages", "pool")
        (tree / "Packages").write_bytes(packages)
        words = {"Label": paths.OFFLINE_LABEL, "Suite": self.system}
        settings = [word for name in words for word in ("-o", f"{_RELEASE}::{name}={words[name]}")]
        release = self._write_list(tree, *settings, "release", ".")
        release = _DATE.sub(f"Date: {self._find_date()}", release.decode()).encode()
        (tree / "Release").write_bytes(release)
        _write_tar(tree, into)
        shutil.rmtree(tree)
        return release

    def _write_list(self, tree: Path, *words: str) -> bytes:
        command = ["apt-ftparchive", "-o", f"APT::Architecture={self._arch}", *words]
        done = subprocess.run(command, cwd=tree, capture_output=True, check=False)
        if done.returncode:
            raise UserError(
                f"apt-ftparchive failed: {_find_reason(done.stderr.decode(errors='replace'))}",
                fix="run the same command again",
                exit_code=ExitCode.FAILED,
            )
        return done.stdout

    def _find_date(self) -> str:
        """Return the date of the newest list of the distribution."""
        texts = [
            path.read_text(encoding="utf-8", errors="replace")
            for pattern in ("*InRelease", "*_Release")
            for path in (self._folder / "lists").glob(pattern)
        ]
        dates = [match[1] for text in texts if (match := _DATE.search(text))]
        newest = max(email.utils.parsedate_to_datetime(date) for date in dates)
        return email.utils.format_datetime(newest, usegmt=True)

    def _run(self, command: str, *words: str) -> subprocess.CompletedProcess[str]:
        folder = self._folder
        options = {
            "Dir::Etc::SourceList": folder / "archive.sources",
            "Dir::Etc::SourceParts": "-",
            "Dir::State::Lists": folder / "lists",
            "Dir::State::status": folder / "status",
            "Dir::Cache": folder,
            "Dir::Cache::pkgcache": "",
            "Dir::Cache::srcpkgcache": "",
            "APT::Architecture": self._arch,
            "APT::Architectures::": self._arch,
            "APT::Install-Recommends": "false",
            "APT::Sandbox::User": "root",
            "Debug::NoLocking": "true",
        }
        settings = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        return subprocess.run(
            ["apt-get", *settings, "-q", "-y", command, *words],
            env={**os.environ, "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )


_RELEASE = "APT::FTPArchive::Release"


def _format_sources(suites: Suites, codename: str, mirror: str) -> str:
    security = suites.security.format(mirror=mirror)
    rows = ((mirror, f"{codename} {codename}-updates"), (security, f"{codename}-security"))
    return "\n".join(
        f"Types: deb\nURIs: {url}\nSuites: {names}\nComponents: {suites.components}\n"
        f"Signed-By: {suites.keyring}\n"
        for url, names in rows
    )


def _require_tools() -> None:
    for tool, package in (("apt-get", "apt"), ("apt-ftparchive", "apt-utils")):
        if shutil.which(tool) is None:
            raise UserError(
                f"{tool} is not installed here: it gathers the distribution's packages",
                fix=f"apt-get install {package}; on a system without apt make the bundle elsewhere",
            )


def _find_reason(text: str) -> str:
    lines = [line for line in text.splitlines() if line.startswith(("E:", "W:"))]
    return (lines or text.strip().splitlines() or ["no message"])[-1]


def _write_tar(tree: Path, into: Path) -> None:
    """Pack a folder; the same files give the same bytes."""
    fresh = into.with_name(f"{into.name}.new")
    with tarfile.open(fresh, "w", format=tarfile.GNU_FORMAT) as tar:
        for path in sorted(tree.rglob("*")):
            row = tarfile.TarInfo(path.relative_to(tree).as_posix())
            row.mode = 0o755 if path.is_dir() else 0o644
            row.type = tarfile.DIRTYPE if path.is_dir() else tarfile.REGTYPE
            if path.is_dir():
                tar.addfile(row)
                continue
            row.size = path.stat().st_size
            with path.open("rb") as stream:
                tar.addfile(row, stream)
    fresh.replace(into)
