"""Add the distribution's packages of an image to its bill of materials.

    os_packages.py SBOM STATUS OS_RELEASE      STATUS: the database of dpkg

Runs inside the build, for only there it is known what the base and its packages are.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Iterator


def list_rows(status: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, version and architecture of each package that is installed."""
    for block in status.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line[:40])
        if fields.get("Status", "").endswith(" installed"):
            yield fields["Package"], fields["Version"], fields.get("Architecture", "all")


def read_distribution(os_release: str) -> str:
    """Return the distribution's name as it gives it in /etc/os-release."""
    fields = dict(line.split("=", 1) for line in os_release.splitlines() if "=" in line)
    return fields.get("ID", "debian").strip("\"'")


def make_component(of: str, name: str, version: str, architecture: str) -> dict[str, Any]:
    """Return a package of a distribution as CycloneDX has it."""
    package = f"{quote(of, safe='')}/{quote(name)}@{quote(version, safe='')}"
    url = f"pkg:deb/{package}?arch={architecture}"
    return {"bom-ref": url, "name": name, "purl": url, "type": "library", "version": version}


def main(path: str, status: str, os_release: str) -> None:
    """Print the document with the packages in it."""
    document = json.loads(Path(path).read_text(encoding="utf-8"))
    of = read_distribution(Path(os_release).read_text(encoding="utf-8"))
    components = [
        make_component(of, *row)
        for row in sorted(list_rows(Path(status).read_text(encoding="utf-8")))
    ]
    document["components"] = [*document.get("components", []), *components]
    image = document["metadata"]["component"]["bom-ref"]
    for row in document.get("dependencies", []):
        if row["ref"] == image:
            row["dependsOn"] = [*row.get("dependsOn", []), *(one["bom-ref"] for one in components)]
    json.dump(document, sys.stdout, indent=2, sort_keys=True)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
