"""Compare a role's files with the machine's, by the facts of this run."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kimi_prov.contract.documents.facts import Facts

_USUAL = {"owner": "root", "group": "root", "mode": "0644"}


def find_differing(files: Iterable[Mapping[str, Any]], facts: Facts) -> list[dict[str, Any]]:
    """Return those of `files` whose content, owner or mode differ from the facts.

    Each has `dest` and either `content` or `src`, a file of the control machine; owner and group
    are root and the mode is 0644 by default. A file that the facts do not have differs.
    """
    observed = facts["kimi"].get("files") or {}
    complete = [{**_USUAL, **file} for file in files]
    return [file for file in complete if observed.get(file["dest"]) != _describe_file(file)]


def check_units_differ(
    facts: Facts,
    files: Iterable[Mapping[str, Any]],
    units: Iterable[str],
    planned: bool = True,  # noqa: FBT001, FBT002  (a filter's argument)
) -> bool:
    """Return whether a machine lacks these units, or still has one that is not `planned`.

    A machine has them if their files are as planned and all of them are active.
    """
    states = facts["kimi"].get("units") or {}
    if not planned:
        return any(name in states for name in units)
    return any(states.get(name) != "active" for name in units) or bool(find_differing(files, facts))


def _describe_file(file: Mapping[str, Any]) -> dict[str, str]:
    content = Path(file["src"]).read_bytes() if "src" in file else str(file["content"]).encode()
    return {
        "sha256": hashlib.sha256(content).hexdigest(),
        **{key: str(file[key]) for key in _USUAL},
    }
