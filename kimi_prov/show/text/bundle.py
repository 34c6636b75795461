"""The document of `bundle` as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.contract.sizes import format_bytes, format_file_count
from kimi_prov.show.text.lines import wrap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.contract.documents.bundle import Advisory, Bundle


def format_text(document: Bundle, folder: str, fingerprint: str) -> str:
    """Write what the bundle holds, how weights come, and how it is used."""
    if document["missing"]:
        lines = [f"{folder}: the offline bundle is not complete; missing:"]
        for name in document["missing"]:
            lines += wrap(name, "  ", "    ")
        return "\n".join([*lines, "run the same command again: what came is kept"])
    wheels = {file for row in document["locks"] for file in row["files"]}
    packages = sum(row["count"] for row in document["archives"])
    size = format_bytes(document["bytes"])
    lines = [f"{folder}: {format_file_count(len(document['files']))}, {size}"]
    lines += [f"  {len(wheels)} wheels, {packages} packages, {len(document['pythons'])} CPython"]
    for row in document["machines"]:
        lines += wrap(f"for {row['name']}: {row['engine'] or 'a gateway'} on {row['system']}", "  ")
    for weights in document["weights"]:
        lines += wrap(f"weights of {weights['model']}: {weights['instruction']}", "  ", "    ")
    for notice in document["notices"]:
        lines += wrap(notice, "  ", "    ")
    if "since" in document:
        lines += wrap(_describe_difference(document), "  ", "    ")
    if "advisories" in document:
        lines += _list_advisories(document["advisories"])
    lines += ["in the inventory, or with apply --bundle DIR for the first line:"]
    return "\n".join([*lines, f"  kimi_bundle: {folder}", f"  kimi_bundle_key: '{fingerprint}'"])


def _describe_difference(document: Bundle) -> str:
    return (
        f"a difference of {format_bytes(document['since']['bytes'])}: copy it over the earlier "
        "bundle:  cp -rT DIFFERENCE BUNDLE"
    )


def _list_advisories(rows: Sequence[Advisory]) -> list[str]:
    if not rows:
        return ["  pip-audit knows no security fault of the Python packages"]
    lines = [f"  known security faults of the Python packages: {len(rows)}"]
    for row in rows:
        fixed = f"; fixed in {', '.join(row['fixed_in'])}" if row["fixed_in"] else ""
        lines += wrap(f"{row['package']} {row['version']}: {row['id']}{fixed}", "    ")
    return lines
