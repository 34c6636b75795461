"""Looks every pinned package up among known advisories: `make audit`.

Each file of pins is audited by pip-audit, which takes what it cannot find for harmless unless it
is told otherwise. Here an audit that could not look everywhere has failed. What is left out is
written down in exceptions.yml. Exits 0 where all was looked up and nothing found, else 1.

`run.py [FILE...] [--exceptions FILE] [--NAME=VALUE...]`: other files of pins, and whatever options
of pip-audit, such as `--vulnerability-service=osv`.

Decides: which pins are looked up among known advisories.
Held by: tests/component/audit/test_audit.py.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from kimi_prov.packaging import lock_files

if TYPE_CHECKING:
    from collections.abc import Sequence

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
EXCEPTIONS = HERE / "exceptions.yml"
_KEYS = {"pin", "reason", "date", "audited_as", "advisory"}
# What begins a requirement: neither a comment nor the rest of the line before.
_REQUIREMENT = re.compile(r"^(?!#|\s|$)(.+?)(?:\s+[;\\].*)?$", re.MULTILINE)


class ExceptionsError(Exception):
    """The file of exceptions cannot be taken as it stands."""


@dataclass(frozen=True)
class Exempt:
    """One row of exceptions.yml; without `advisory` it concerns the pin as such."""

    pin: str
    audited_as: str | None
    advisory: str | None


def files() -> list[Path]:
    """List the files that pin what this project installs, here and on managed machines."""
    locks = sorted((ROOT / "kimi_prov" / "catalog" / "locks").glob("*.txt"))
    apart = [
        file for name in ("clients", "cloud") for file in (ROOT / "tests" / name).glob("*.txt")
    ]
    return (
        [ROOT / "tests" / name for name in ("requirements.txt", "kubectl.txt")]
        + sorted(apart)
        + locks
    )


def exceptions(path: Path) -> list[Exempt]:
    """Read the exceptions; one without a reason or a date is refused."""
    found = []
    for number, row in enumerate(yaml.safe_load(path.read_text(encoding="utf-8")) or [], start=1):
        where = f"{path}: row {number}"
        if not isinstance(row, dict) or set(row) - _KEYS:
            raise ExceptionsError(f"{where}: expected the keys {', '.join(sorted(_KEYS))}")
        if not str(row.get("reason") or "").strip() or not row.get("pin"):
            raise ExceptionsError(f"{where}: it needs a pin and a reason")
        if not isinstance(row.get("date"), datetime.date):
            raise ExceptionsError(f"{where}: it needs a date such as 2026-11-22")
        found.append(Exempt(str(row["pin"]), row.get("audited_as"), row.get("advisory")))
    return found


def requirements(path: Path) -> dict[str, str]:
    """Give each requirement of a file with the line by which pip-audit looks it up.

    Markers are dropped: what one machine does not install another does. What is no pin, such as a
    wheel's address, stays as it stands, and pip-audit refuses it.
    """
    text = path.read_text(encoding="utf-8")
    lines = {found: found for found in _REQUIREMENT.findall(text)}
    for pin in lock_files.read_pins(text):
        name = f"{pin.name}=={pin.version}"
        digests = " ".join(f"--hash=sha256:{digest}" for digest in sorted(pin.sha256))
        lines = {found: line for found, line in lines.items() if _same(found) != name}
        lines[name] = f"{name} {digests}"
    return lines


def _same(requirement: str) -> str:
    """Write a requirement as a pin is written."""
    return next((f"{p.name}=={p.version}" for p in lock_files.read_pins(requirement)), requirement)


def audit(path: Path, exempt: Sequence[Exempt], options: Sequence[str]) -> bool:
    """Audit one file; tells whether all was looked up and nothing found."""
    held = requirements(path)
    instead = {row.pin: row.audited_as for row in exempt if not row.advisory}
    lines = [
        line.replace(name, instead.get(name) or name, 1)
        for name, line in held.items()
        if name not in instead or instead[name]
    ]
    ignored = [row.advisory for row in exempt if row.advisory and row.pin in held]
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / path.name
        listed.write_text("\n".join(lines) + "\n", encoding="utf-8")
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pip_audit", "--strict", "--require-hashes"),
                *("--disable-pip", "--progress-spinner=off", "--desc=off"),
                *[word for advisory in ignored for word in ("--ignore-vuln", advisory)],
                *options,
                *("--requirement", str(listed)),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    if held and done.returncode == 0:
        left = len(held) - len(lines)
        sys.stdout.write(f"{path.name}: {len(lines)} looked up, {left} exempt, nothing found\n")
        return True
    # Its last line says what stopped it; where it found something, standard output has the table.
    said = done.stderr.strip().splitlines()[-1:] if held else ["it pins nothing"]
    sys.stderr.write(f"{path.name}: FAILED: {''.join(said)}\n{done.stdout}")
    return False


def main(argv: Sequence[str]) -> int:
    """Audit every file, also after one that failed."""
    parser = argparse.ArgumentParser(description="Look pinned packages up among known advisories.")
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--exceptions", type=Path, default=EXCEPTIONS)
    given, options = parser.parse_known_args(argv)
    paths = given.files or files()
    try:
        exempt = exceptions(given.exceptions)
    except (OSError, yaml.YAMLError, ExceptionsError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    good = [audit(path, exempt, options) for path in paths]
    held = {name for path in paths for name in requirements(path)}
    old = [row.pin for row in exempt if row.pin not in held]
    for pin in old:
        sys.stderr.write(f"{given.exceptions}: nothing pins {pin}: take the row out\n")
    return 0 if all(good) and not old else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
