"""Makes a release out of dist/: `make release VERSION=1.2.3 KEY=NAME`, by hand.

release/kimi-prov-VERSION/ gets the wheel and the sdist of `make dist`, a bill of materials of the
package itself, SHA256SUMS of these and its signature by gpg. The folder is there when all of it is;
what makes it is a folder beside it, which goes when anything fails.

`make_release.py VERSION KEY --check` only says whether a release may be made: the tree is clean,
VERSION is the package's, CHANGELOG.md has it, gpg has the key. Exits 1 where it may not.

Decides: what a release consists of, and when it is refused.
Held by: tests/component/packaging/test_release.py.
"""

from __future__ import annotations

import argparse
import email
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement

from kimi_prov.packaging.lock_files import normalize_name, read_pins

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).resolve().parents[2]
SUMS = "SHA256SUMS"


class ReleaseError(Exception):
    """No release can be made; the message says what to do first."""


def check(root: Path, version: str, key: str) -> None:
    """Refuse a release that would not be the commit, the version or the text that it says."""
    if dirty := _output(root, "git", "status", "--porcelain").rstrip():
        raise ReleaseError(f"commit or remove first what is not in the commit:\n{dirty}")
    found = re.search(
        r'^__version__ = "(.*)"$', (root / "kimi_prov/__init__.py").read_text(), re.MULTILINE
    )
    if found is None or found[1] != version:
        has = found[1] if found else "none"
        raise ReleaseError(f"VERSION is {version}, kimi_prov/__init__.py has {has}")
    if not release_notes(root, version):
        raise ReleaseError(f"CHANGELOG.md has no entry: write '## {version} - YEAR-MONTH-DAY'")
    if _target(root, version).exists():
        raise ReleaseError(f"{_target(root, version)} is there already: take it away first")
    gpg = ["gpg", "--batch", "--list-secret-keys", "--", key]
    if subprocess.run(gpg, capture_output=True, check=False).returncode:
        raise ReleaseError(f"gpg has no secret key {key}: see  gpg --list-secret-keys")


def release_notes(root: Path, version: str) -> str:
    """Return what the changelog says of a version; empty where it says nothing."""
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    heading = rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d$"
    match = re.search(rf"{heading}(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return match[1].strip() if match else ""


def make(root: Path, version: str, key: str, dist: Path) -> Path:
    """Put the release together, and return its folder."""
    check(root, version, key)
    built = [*dist.glob(f"kimi_prov-{version}-*.whl"), *dist.glob(f"kimi_prov-{version}.tar.gz")]
    if len(built) != 2:
        raise ReleaseError(f"{dist} has no wheel and sdist of {version}: run  make dist")
    target = _target(root, version)
    target.parent.mkdir(exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=target.parent))
    try:
        files = [Path(shutil.copy(file, unfinished)) for file in built]
        bill = unfinished / f"kimi_prov-{version}.cdx.json"
        made_at = int(_output(root, "git", "log", "-1", "--format=%ct"))
        bill.write_text(bill_of_materials(root, files[0], made_at), encoding="utf-8")
        sums = unfinished / SUMS
        sums.write_text(
            "".join(f"{_sha256(file)}  {file.name}\n" for file in sorted([*files, bill])),
            encoding="utf-8",
        )
        _sign(sums, key)
        unfinished.chmod(0o755)
        unfinished.rename(target)
    except BaseException:
        shutil.rmtree(unfinished)
        raise
    return target


def bill_of_materials(root: Path, wheel: Path, made_at: int) -> str:
    """Return the CycloneDX document of the package: what it needs, as it was tested.

    Versions and digests are those of tests/requirements.txt; who needs whom is read from the
    environment that was installed from it. The same commit gives the same bytes.
    """
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        described = email.message_from_bytes(archive.read(name))
    bom = Bom(serial_number=uuid5(NAMESPACE_URL, f"{wheel.name} {_sha256(wheel)}"))
    bom.metadata.timestamp = datetime.fromtimestamp(made_at, UTC)
    url = PackageURL(type="pypi", name="kimi-prov", version=described["Version"])
    package = Component(
        name="kimi-prov",
        version=described["Version"],
        bom_ref=str(url),
        purl=url,
        type=ComponentType.APPLICATION,
        licenses=[LicenseExpression(described["License-Expression"])],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=_sha256(wheel))],
    )
    bom.metadata.component = package
    known = _tested_packages(root)
    needs = {"": _needed(described.get_all("Requires-Dist") or [])}
    waiting = [*needs[""]]
    while waiting:
        name = waiting.pop()
        if name not in known:
            raise ReleaseError(f"tests/requirements.txt does not pin {name}: run  make lock")
        if name not in needs:
            needs[name] = _needed(metadata.requires(name) or [])
            waiting += needs[name]
            bom.components.add(known[name])
    for name, others in needs.items():
        bom.register_dependency(known.get(name, package), [known[other] for other in others])
    written = json.loads(JsonV1Dot6(bom).output_as_string())
    return json.dumps(written, indent=1, sort_keys=True) + "\n"


def _tested_packages(root: Path) -> dict[str, Component]:
    found = {}
    for pin in read_pins((root / "tests" / "requirements.txt").read_text(encoding="utf-8")):
        url = PackageURL(type="pypi", name=pin.name, version=pin.version)
        found[pin.name] = Component(
            name=pin.name,
            version=pin.version,
            bom_ref=str(url),
            purl=url,
            type=ComponentType.LIBRARY,
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=d) for d in sorted(pin.sha256)],
        )
    return found


def _needed(requirements: Iterable[str]) -> list[str]:
    """Name what is needed here, without extras."""
    every = [Requirement(text) for text in requirements]
    return sorted(
        normalize_name(r.name)
        for r in every
        if r.marker is None or r.marker.evaluate({"extra": ""})
    )


def _sign(file: Path, key: str) -> None:
    """Sign a file beside it; gpg may ask for the passphrase at the terminal."""
    command = ["gpg", "--armor", "--detach-sign", f"--local-user={key}", str(file)]
    if subprocess.run(command, check=False).returncode:
        raise ReleaseError(f"gpg did not sign with {key}")
    _output(file.parent, "gpg", "--batch", "--verify", f"{file.name}.asc", file.name)


def _output(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _target(root: Path, version: str) -> Path:
    return root / "release" / f"kimi-prov-{version}"


def main(argv: list[str]) -> int:
    """Check, or make the release and say what is left to do."""
    parser = argparse.ArgumentParser(description="Make a release of kimi-prov.")
    parser.add_argument("version")
    parser.add_argument("key", help="the gpg key that signs: its fingerprint or its address")
    parser.add_argument("--check", action="store_true", help="only say whether one may be made")
    parser.add_argument("--dist", type=Path, help="where wheel and sdist are (dist)")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    try:
        if given.check:
            check(given.root, given.version, given.key)
            return 0
        target = make(given.root, given.version, given.key, given.dist or given.root / "dist")
    except ReleaseError as error:
        sys.stderr.write(f"no release: {error}\n")
        return 1
    for file in sorted(target.iterdir()):
        sys.stdout.write(f"{file.relative_to(given.root)}\n")
    sys.stdout.write(f"next: git tag --sign --local-user={given.key} v{given.version}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
