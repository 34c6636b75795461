"""An offline bundle as `apply` finds it: its index, who signed it, and whether its files are whole.

Decides: whether an offline bundle is what the operator's key signed.
Held by: tests/unit/packaging/test_bundles.py.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import subprocess
from typing import TYPE_CHECKING, Final, cast

from kimi_prov.errors import ExitCode, UserError
from kimi_prov.packaging import pieces

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from kimi_prov.contract.documents.bundle import Bundle, BundledFile

SCHEMA: Final = "kimi-prov/bundle/v1"
INDEX = "bundle.json"
SIGNATURE = "bundle.json.sig"
# The public half of the operator's key, in the form that gpgv and apt read.
KEY = "key.gpg"
# Unfinished downloads; nothing in it belongs to the bundle.
PARTIAL = ".partial"
# Where the pieces of `--pieces` are written, which are carried in place of the rest.
PIECES = "pieces"
_VALID = re.compile(r"^\[GNUPG:\] VALIDSIG .* ([0-9A-F]{40})$", re.MULTILINE)
_MAX_INDEX_BYTES = 64 << 20
_TIMEOUT_S = 60.0
_MAX_NAMES = 5


def read_index(folder: Path, fingerprint: str | None) -> Bundle:
    """Return the index of a bundle that this key signed. Raises UserError for any other."""
    index, signer = folder / INDEX, find_signer(folder)
    if fingerprint is None or signer != fingerprint:
        trusted = f"kimi_bundle_key is {fingerprint}" if fingerprint else "no kimi_bundle_key"
        raise UserError(
            f"kimi_bundle: {index} is signed by the key {signer}, and the inventory has {trusted}",
            fix="ask who made the bundle for the key's fingerprint; if it is this one:  "
            f"kimi_bundle_key: '{signer}'",
        )
    return _parse_index(index)


def find_signer(folder: Path) -> str:
    """Return the fingerprint of the key that signed the index. Raises UserError for a wrong one."""
    for name in (INDEX, SIGNATURE, KEY):
        if not (folder / name).is_file():
            raise UserError(
                f"kimi_bundle: {folder} has no {name}: this is no finished offline bundle",
                fix=f"finish it:  kimi-prov bundle INVENTORY --output {shlex.quote(str(folder))}",
            )
    command = ["gpgv", "--status-fd=1", "--keyring", str((folder / KEY).absolute())]
    command += [str(folder / SIGNATURE), str(folder / INDEX)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except FileNotFoundError:
        raise UserError(
            "gpgv is not installed here: the signature of an offline bundle cannot be checked",
            fix="apt-get install gpgv",
        ) from None
    valid = _VALID.search(done.stdout)
    if done.returncode or valid is None:
        raise UserError(
            f"kimi_bundle: {folder / SIGNATURE} is no signature of {INDEX} by the key in {KEY}",
            fix="copy the bundle again, or make it again; do not use this one",
            exit_code=ExitCode.FAILED,
        )
    return valid[1]


def _parse_index(path: Path) -> Bundle:
    with path.open("rb") as stream:
        content = stream.read(_MAX_INDEX_BYTES)
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise UserError(
            f"kimi_bundle: {path} is no document {SCHEMA}",
            fix="make the bundle with this version of kimi-prov",
        )
    return cast("Bundle", document)


def list_foreign(folder: Path, index: Bundle) -> list[str]:
    """List the files below the folder that the index does not name, and every link."""
    known = {row["path"] for row in index["files"]}
    known |= {INDEX, SIGNATURE, KEY, *(row["signature"] for row in index["archives"])}
    known |= {*(index.get("removed") or ()), *pieces.read_names(folder)}
    foreign = []
    for path in folder.rglob("*"):
        name, link = path.relative_to(folder).as_posix(), path.is_symlink()
        if name.startswith((f"{PARTIAL}/", f"{PIECES}/")) or (path.is_dir() and not link):
            continue
        if link or not (name in known or pieces.is_piece(name)):
            foreign.append(name)
    return sorted(foreign)


def find_faults(folder: Path, index: Bundle, paths: Iterable[str]) -> list[str]:
    """Compare files with the index: name each that is missing, damaged, or not of the bundle."""
    faults = [
        f"{path}: it is a link"
        if (folder / path).is_symlink()
        else f"{path}: the index does not name it"
        for path in list_foreign(folder, index)
    ]
    return [*faults, *check_files(folder, index, paths)]


def check_files(folder: Path, index: Bundle, paths: Iterable[str]) -> list[str]:
    """Compare these files with the index: name each that is missing or damaged."""
    rows = {row["path"]: row for row in index["files"]}
    faults: list[str] = []
    for path in sorted(set(paths)):
        row = rows.get(path)
        faults += [f"{path}: the index does not name it"] if row is None else []
        faults += _check_file(folder, row) if row is not None else []
    return faults


def is_plain_path(path: str) -> bool:
    """Whether a path stays below the folder that it is written in."""
    return not path.startswith("/") and ".." not in path.split("/")


def _check_file(folder: Path, row: BundledFile) -> list[str]:
    path = folder / row["path"]
    if pieces.find_link(folder, row["path"]) or not path.is_file():
        return [f"{row['path']}: missing"]
    if path.stat().st_size != row["bytes"]:
        size = path.stat().st_size
        return [f"{row['path']}: damaged: {size} bytes, the index says {row['bytes']}"]
    digest = compute_sha256(path)
    if digest != row["sha256"]:
        return [f"{row['path']}: damaged: SHA-256 {digest}, the index says {row['sha256']}"]
    return []


def compute_sha256(path: Path) -> str:
    """Return a file's SHA-256."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def join_names(names: Sequence[str]) -> str:
    """Join names for a message, the first ones of many."""
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more
