"""`cluster receive NAME [--force]`: put a copied folder in its place, renders/NAME.

It runs in the unpacked folder, beside its place. `brought.json` holds the digests of the last copy:
a file that was changed here since differs from them, and is kept unless `--force`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

from kimi_prov.contract import addresses, manual_changes
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.cluster import lock
from kimi_prov.on_host.cluster.site import Site
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.files import read_json, write_json

FOLDER = "renders"
RECORD = "brought.json"
_FORCE = "--force"


def main(argv: list[str]) -> int:
    """Put it in its place and print what was done with the files."""
    site = Site.from_environment()
    (name,) = [word for word in argv if word != _FORCE] or [""]
    if not addresses.PLAIN_NAME.fullmatch(name):
        raise HostError(f"{name!r} is not a folder's name", "rename the rendered folder")
    place = site.locate(FOLDER, name)
    try:
        with lock.lock(f"{place}.lock", lambda _: None, step_s=1.0):
            done = _settle(Path(site.folder), Path(place), force=_FORCE in argv)
    finally:
        shutil.rmtree(site.folder, ignore_errors=True)
    return answer({"folder": place, **done})


def _settle(staged: Path, place: Path, *, force: bool) -> dict[str, list[str]]:
    new = _hash_files(staged)
    done: dict[str, list[str]] = {
        outcome: []
        for outcome in (
            manual_changes.WRITTEN,
            manual_changes.UNCHANGED,
            manual_changes.KEPT,
            manual_changes.REMOVED,
        )
    }
    if not os.path.lexists(place):
        write_json(str(staged / RECORD), {"files": new})
        staged.chmod(0o755)
        staged.rename(place)
        # A file that the caller removes does not exist any more.
        return {**done, manual_changes.WRITTEN: sorted(new)}
    former: dict[str, Any] = read_json(place / RECORD).get("files") or {}
    if not former:
        raise HostError(
            f"{place}: this folder was not copied here by kimi-prov",
            "rename the local folder, or move that one away",
        )
    for path, digest in sorted(new.items()):
        target = _join_inside(place, path)
        outcome = manual_changes.decide_on_write(
            _hash_file(target), former.get(path), digest, force=force
        )
        done[outcome].append(path)
        if outcome == manual_changes.WRITTEN:
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(staged / path, target)
    for path in sorted(set(former) - set(new)):
        target = _join_inside(place, path)
        there = _hash_file(target)
        if there is not None:
            outcome = manual_changes.decide_on_removal(there, str(former[path]), force=force)
            done[outcome].append(path)
            if outcome == manual_changes.REMOVED:
                target.unlink()
    write_json(str(place / RECORD), {"files": new})
    return done


def _hash_files(folder: Path) -> dict[str, str]:
    """Return the digest of each file below a folder, by its path there."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            found[path.relative_to(folder).as_posix()] = _hash_file(path) or ""
    return found


def _hash_file(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _join_inside(folder: Path, name: str) -> Path:
    """Return the path of a file. Raises HostError where a link leads elsewhere."""
    path = folder
    for part in name.split("/"):
        path = path / part
        if part in ("", ".", "..") or path.is_symlink():
            raise HostError(f"{path}: this is a link, which kimi-prov did not make", f"rm {path}")
    return path
