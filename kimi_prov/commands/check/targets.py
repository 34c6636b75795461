"""Read targets that are data: a spec sheet, a facts file or a recorded folder becomes facts."""

from __future__ import annotations

import copy
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

    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.documents import Document

# Top-level keys of a spec sheet, by which one without a schema is recognised.
_SHEET = re.compile(
    r"^(cpus?|processors?|memory|ram|gpus?|accelerators?|disks?|storage|nics?|price)\s*:",
    re.MULTILINE | re.IGNORECASE,
)
KINDS = (
    "name a spec sheet, a facts file (kimi-prov probe --output FILE), or a file or a recorded "
    "folder with output of lscpu, free, nvidia-smi and others"
)
_MAX_BYTES = 16 << 20
_READERS = {"kimi-prov/spec/v1": "spec", "kimi-prov/facts/v1": "facts"}


def read(path: Path, command: str) -> Facts:
    """Read a target as data; nothing in it is run. Raises UserError for another file.

    `command` is the command in the message, whose --inventory reads other files.
    """
    if os.path.isdir(path):  # noqa: PTH112  (never raises)
        return _read_folder(path, command)
    document = _read_file(path)
    if schemas.named_in(document.text) is None:
        from kimi_prov.facts import recording  # noqa: PLC0415  (only who has one pays for it)

        recorded = recording.read_text(document.text, _name_text(path))
        if recorded is not None:
            return recorded
        from kimi_prov.facts import foreign_machines  # noqa: PLC0415

        foreign_machines.refuse(document.text, _name_text(path))
    if _detect_kind(path, document.text, command) == "spec":
        from kimi_prov.facts import spec  # noqa: PLC0415

        return spec.parse_sheet(document, loader.load_catalogue())
    from kimi_prov.facts import document as documented  # noqa: PLC0415

    return documented.parse_facts(document)


def _read_folder(path: Path, command: str) -> Facts:
    from kimi_prov.facts import recording  # noqa: PLC0415  (only who has one pays for it)

    try:
        return recording.read_recording(path)
    except recording.NoRecordingError:
        raise _make_error(path, "this folder holds no recording", command) from None


def _name_text(path: Path) -> str:
    return "pasted" if path == documents.STANDARD_INPUT else path.name.removesuffix(".gz")


def _read_file(path: Path) -> Document:
    """Read the text of a target. Only this function reads files from elsewhere."""
    if path != documents.STANDARD_INPUT and not os.path.lexists(path):
        raise UserError(f"{path}: there is no such file{_suggest_name(path)}", fix=KINDS)
    return documents.read_document(path, what="a target", limit=_MAX_BYTES, fix=KINDS)


def _detect_kind(path: Path, text: str, command: str) -> str:
    """Return "spec" or "facts" by the schema that the text names, else by its keys."""
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
    """Whether JSON without a schema has the keys of a spec sheet."""
    from kimi_prov.facts import spec_notations  # noqa: PLC0415

    try:
        return spec_notations.is_sheet(documents.Document("", text).json(""))
    except UserError:
        return False


def _make_error(path: Path, problem: str, command: str) -> UserError:
    """Return the error for a path that is no data; it names the option for an inventory."""
    return UserError(
        f"{path}: {problem}",
        fix=f"{KINDS}; Ansible runs what an inventory says, so use only one that you know:  "
        f"kimi-prov {command} --inventory {shlex.quote(str(path))} ; an offer in words is read by  "
        f"kimi-prov check --text {shlex.quote(str(path))}",
    )


def _suggest_name(path: Path) -> str:
    """Return a hint with the most similar name in the folder."""
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return ""
    close = difflib.get_close_matches(path.name, names, n=1)
    return f"; did you mean {path.parent / close[0]}?" if close else ""


def find_name(path: Path, facts: Facts) -> str:
    """Return a target's name: the name in it, else that of its file."""
    origin = facts.get("origin")
    return str((origin and origin.get("name")) or path.stem)


def read_variables(facts: Facts) -> dict[str, Any]:
    """Return the variables in a target's file; the operator's options override them."""
    group = facts.get("group")
    return {"kimi_hosts_per_model": int(group["hosts"])} if group else {}


def set_system(facts: Facts, system: str, catalogue: Catalogue) -> Facts:
    """Return the facts of the same machine with another operating system."""
    name, _, version = system.partition("-")
    row = catalogue.system(name, version)
    made = copy.deepcopy(facts)
    release = {"id": name, "version_id": version, "codename": None, "pretty": None}
    made["host"]["os"] = release  # type: ignore[typeddict-item]
    made["host"]["glibc"] = row.glibc if row else None
    made["python"]["path"], made["python"]["others"] = "/usr/bin/python3", []
    made["python"]["version"] = row.python if row else None
    return made
