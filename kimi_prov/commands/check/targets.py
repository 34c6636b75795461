"""Targets that are data: a spec sheet, a facts file or a recorded folder becomes facts."""

from __future__ import annotations

import difflib
import os
import re
import shlex
from typing import TYPE_CHECKING, Any

from kimi_prov import documents, schemas
from kimi_prov.catalog import loader
from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.documents import Document

# What a spec sheet has at its top, also one whose schema was forgotten.
_SHEET = re.compile(
    r"^(cpus?|processor|memory|ram|gpus?|disks?|storage|nics?|price)\s*:", re.MULTILINE
)
KINDS = "name a spec sheet, a facts file (kimi-prov probe --output FILE) or a recorded folder"
_RECORDED = ("lscpu.json", "cpuinfo.txt", "meminfo.txt", "nvidia-smi-q.xml")
_MAX_BYTES = 16 << 20
_READERS = {"kimi-prov/spec/v1": "spec", "kimi-prov/facts/v1": "facts"}


def read(path: Path, command: str) -> Facts:
    """Read a target, which is data whatever stands in it. Raises UserError for what is none.

    `command` is named with the option that takes what is no data.
    """
    if os.path.isdir(path):  # noqa: PTH112  (never raises)
        if not _is_recording(path):
            raise _make_error(path, "no recording lies in this folder", command)
        from kimi_prov.facts import recording  # noqa: PLC0415  (only who has one pays for it)

        return recording.read_recording(path)
    document = _read_file(path)
    if _detect_kind(path, document.text, command) == "spec":
        from kimi_prov.facts import spec  # noqa: PLC0415

        return spec.parse_sheet(document, loader.load_catalogue())
    from kimi_prov.facts import document as documented  # noqa: PLC0415

    return documented.parse_facts(document)


def _read_file(path: Path) -> Document:
    """Read the text of a target. All reading of files from elsewhere happens here."""
    if path != documents.STANDARD_INPUT and not os.path.lexists(path):
        raise UserError(f"{path}: there is no such file{_suggest_name(path)}", fix=KINDS)
    return documents.read_document(path, what="a target", limit=_MAX_BYTES, fix=KINDS)


def _detect_kind(path: Path, text: str, command: str) -> str:
    """Tell a "spec" sheet from "facts" by the schema that the text names, else by its keys."""
    schema = schemas.named_in(text)
    json_like = text.lstrip().startswith("{")
    if schema in _READERS:
        return _READERS[schema]
    if schema and schema.startswith("kimi-prov/"):
        raise UserError(
            f"{path}: this is a document {schema}; expected one of {', '.join(_READERS)}", fix=KINDS
        )
    if schema is not None and json_like:
        return "facts"
    if schema is not None or _SHEET.search(text) or (json_like and _is_sheet(text)):
        return "spec"
    wanted = " or ".join(_READERS)
    problem = f"this is no spec sheet and no facts file: it names no schema {wanted}"
    raise _make_error(path, problem, command)


def _is_sheet(text: str) -> bool:
    """Tell whether the keys of a JSON without a schema are those of a spec sheet."""
    from kimi_prov.facts import spec_notations  # noqa: PLC0415

    try:
        return spec_notations.is_sheet(documents.Document("", text).json(""))
    except UserError:
        return False


def _make_error(path: Path, problem: str, command: str) -> UserError:
    """Refuse what is no data, and name the option for what may be an inventory."""
    return UserError(
        f"{path}: {problem}",
        fix=f"{KINDS}; Ansible runs what an inventory says, so only one that you wrote or read:  "
        f"kimi-prov {command} --inventory {shlex.quote(str(path))}",
    )


def _is_recording(path: Path) -> bool:
    known = {name + end for name in _RECORDED for end in ("", ".gz")}
    try:
        return any(entry.name in known for entry in path.iterdir())
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read: {error.strerror}",
            fix=f"name a folder that you may read: {KINDS}",
        ) from None


def _suggest_name(path: Path) -> str:
    """Name the entry of that folder that was probably meant."""
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return ""
    close = difflib.get_close_matches(path.name, names, n=1)
    return f"; did you mean {path.parent / close[0]}?" if close else ""


def find_name(path: Path, facts: Facts) -> str:
    """Return what a target is called: as it names itself, else as its file is named."""
    origin = facts.get("origin")
    return str((origin and origin.get("name")) or path.stem)


def read_variables(facts: Facts) -> dict[str, Any]:
    """Return the variables that a target's file gives; what an operator gives wins over them."""
    group = facts.get("group")
    return {"kimi_hosts_per_model": int(group["hosts"])} if group else {}
