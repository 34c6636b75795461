"""A folder of rendered files: what it holds, and how a render writes and updates it.

`render.json` names each file with the digest of what was rendered. By it a later render knows which
files were changed by hand since, and leaves those alone.

Decides: jobs for a SLURM cluster (the folder).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from kimi_prov import __version__, documents, schemas
from kimi_prov.contract import clean_text, manual_changes
from kimi_prov.contract.rendered_kinds import RECORD
from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.contract.documents.plan.weights import WeightsPlan

SCHEMA = "kimi-prov/render/v1"

PLAN = "plan.json"
_MAX_BYTES = 1 << 20
_MAX_PLAN_BYTES = 4 << 20
_MAX_NAMES = 5
_MAX_SHOWN = 80
_TEXT = {"type": "string"}
_TEXTS = {"type": "array", "items": _TEXT}
_ONE_TEXT = {**_TEXTS, "minItems": 1}


def _make_object_schema(**properties: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"type": "object", "properties": properties, "required": list(properties)}


# Only these keys of a folder's plan are read: another version of kimi-prov may have rendered it.
_READ = _make_object_schema(
    model=_make_object_schema(
        name=_TEXT,
        served_names=_ONE_TEXT,
        context={"type": "integer"},
        random_weights={"type": "boolean"},
    ),
    engine=_make_object_schema(name=_TEXT, variant=_TEXT, version=_TEXT),
    proxy=_make_object_schema(port={"type": "integer"}, allowed_networks=_TEXTS),
    instances={"type": "array", "items": _make_object_schema(argv=_TEXTS)},
)
# Keys that may be missing.
_MAYBE = {
    "group": _make_object_schema(rank={"const": 0}),
    "web": _make_object_schema(port={"type": "integer"}),
    "stand_in": _make_object_schema(said=_TEXT),
    "throughput": _make_object_schema(concurrency={"type": "integer"}),
    "parallel": _make_object_schema(data={"type": "integer"}),
    "speculative": _make_object_schema(name=_TEXT),
}
_READ["properties"] |= {name: {**form, "type": ["object", "null"]} for name, form in _MAYBE.items()}


@dataclass(frozen=True)
class File:
    """A rendered file: its path in the folder, with / between its parts, and its mode."""

    path: str
    content: bytes
    mode: int = 0o644

    @property
    def sha256(self) -> str:
        """Digest of the content, in hexadecimal."""
        return hashlib.sha256(self.content).hexdigest()


@dataclass(frozen=True)
class RenderedFolder:
    """What one render made: its kind, for which target, by which plan, and the files."""

    kind: str
    target: str
    plan_digest: str
    files: Sequence[File]

    def document(self) -> dict[str, Any]:
        """Give the content of `render.json`."""
        rows = sorted(self.files, key=lambda file: file.path)
        return {
            "schema": SCHEMA,
            "kind": self.kind,
            "version": __version__,
            "target": self.target,
            "plan_digest": self.plan_digest,
            "files": [
                {"path": row.path, "sha256": row.sha256, "mode": f"{row.mode:04o}"} for row in rows
            ],
        }


@dataclass
class WriteResult:
    """What writing a folder did, by path: `kept` files, changed by hand, are as they were."""

    written: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)


def check_folder(folder: Path, kind: str) -> dict[str, str]:
    """Give the digests of an earlier render by path; empty for a folder that is not there yet.

    Raises UserError for a folder with files that no render of this kind wrote.
    """
    fix = "name a new folder, an empty one, or one of an earlier render"
    if not os.path.lexists(folder):
        if not folder.parent.is_dir():
            raise UserError(f"{folder.parent}: there is no such folder", fix="create it first")
        return {}
    if not folder.is_dir():
        raise UserError(f"{folder}: this is no folder", fix=fix)
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise UserError(f"{folder}: cannot be read: {error.strerror}", fix=fix) from None
    if not names:
        return {}
    if RECORD not in names:
        shown = ", ".join(names[:_MAX_NAMES]) + (", ..." if len(names) > _MAX_NAMES else "")
        raise UserError(
            f"{folder}: no render made this folder, and it has files: "
            f"{clean_text.clean_line(shown)}",
            fix=fix,
        )
    return {row["path"]: row["sha256"] for row in _read_record(folder / RECORD, kind, fix)["files"]}


def read_record(folder: Path, kind: str) -> dict[str, Any]:
    """Return the record of a folder that a render of this kind made. Raises UserError for another.

    Its paths lead into the folder.
    """
    fix = f"kimi-prov render {kind} TARGET --output DIR  makes such a folder"
    if not os.path.lexists(folder / RECORD):
        raise UserError(f"{folder}: no render made this folder: it has no {RECORD}", fix=fix)
    record = _read_record(folder / RECORD, kind, fix)
    for row in record["files"]:
        _resolve_path(folder, row["path"])
    return record


def find_kind(folder: Path) -> str | None:
    """Return what a folder was rendered for; None for a path that no render made.

    Raises UserError for a record that cannot be read.
    """
    path = folder / RECORD
    if not path.is_file():
        return None
    fix = "render the folder again"
    document = documents.read_document(path, what="a record", limit=_MAX_BYTES, fix=fix).json(fix)
    kind = document.get("kind") if isinstance(document, dict) else None
    if not isinstance(kind, str):
        raise UserError(f"{path}: this is no record of a render", fix=fix)
    return kind


def read_plan(folder: Path) -> MachinePlan:
    """Return the plan that a folder was rendered from, validated as far as it is read.

    Raises UserError.
    """
    import jsonschema  # noqa: PLC0415  (who serves a cluster pays for it)

    path, fix = folder / PLAN, "render the folder again"
    plan = documents.read_document(path, what="a plan", limit=_MAX_PLAN_BYTES, fix=fix).json(fix)
    try:
        jsonschema.validate(plan, _READ)
    except jsonschema.ValidationError as error:
        key = ".".join(map(str, error.absolute_path)) or "the document"
        raise UserError(
            f"{path}: this is no plan: {clean_text.clean_line(key)}: "
            f"{clean_text.clean_line(error.message)[:200]}",
            fix=fix,
        ) from None
    return cast("MachinePlan", plan)


def _read_record(path: Path, kind: str, fix: str) -> dict[str, Any]:
    import jsonschema  # noqa: PLC0415  (only who renders again pays for it)

    document = documents.read_document(path, what="a record", limit=_MAX_BYTES, fix=fix).json(fix)
    try:
        jsonschema.validate(document, schemas.load("render"))
    except jsonschema.ValidationError as error:
        raise UserError(
            f"{path}: this is no record of a render: {error.message}", fix=fix
        ) from None
    if document["kind"] != kind:
        raise UserError(
            f"{path}: the folder was rendered for {clean_text.clean_line(document['kind'])}, "
            f"not for {kind}",
            fix=fix,
        )
    record: dict[str, Any] = document
    return record


def write_folder(folder: Path, rendered: RenderedFolder, *, force: bool = False) -> WriteResult:
    """Write the files and, last, `render.json`; a file that was changed by hand stays as it is.

    Each file is written under a temporary name and renamed. `force` replaces changed files too.
    Raises UserError as `check_folder` does, and for a folder that cannot be written to.
    """
    former = check_folder(folder, rendered.kind)
    done = WriteResult()
    try:
        if not (folder.is_dir() and any(folder.iterdir())):
            return _write_new(folder, rendered)
        for file in sorted(rendered.files, key=lambda row: row.path):
            _put_file(folder, file, former.get(file.path), done, force=force)
        present = {file.path for file in rendered.files}
        for path in sorted(set(former) - present):
            _remove_file(folder, path, former[path], done, force=force)
        _replace_file(folder / RECORD, _format_record(rendered), 0o644)
    except OSError as error:
        raise UserError(
            f"{error.filename or folder}: cannot be written: {error.strerror}",
            fix="name a folder that you may write to, on a disk with room",
        ) from None
    return done


def _write_new(folder: Path, rendered: RenderedFolder) -> WriteResult:
    """Write the folder under a temporary name, and rename it when it is complete.

    An empty folder that exists stays, because a shell may be in it: only the files move, the
    record last.
    """
    there = folder.exists()
    name = f".{folder.name}.{secrets.token_hex(4)}"
    beside = folder / name if there else folder.with_name(name)
    beside.mkdir()
    try:
        for file in rendered.files:
            path = beside / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.content)
            path.chmod(file.mode)
        (beside / RECORD).write_bytes(_format_record(rendered))
        if there:
            for part in sorted(beside.iterdir(), key=lambda part: part.name == RECORD):
                part.rename(folder / part.name)
            beside.rmdir()
        else:
            beside.rename(folder)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    return WriteResult(written=sorted(file.path for file in rendered.files))


def _format_record(rendered: RenderedFolder) -> bytes:
    return (json.dumps(rendered.document(), indent=2) + "\n").encode()


def _put_file(
    folder: Path, file: File, former: str | None, done: WriteResult, *, force: bool
) -> None:
    path = _resolve_path(folder, file.path)
    outcome = manual_changes.decide_on_write(
        _compute_digest(path), former, file.sha256, force=force
    )
    getattr(done, outcome).append(file.path)
    if outcome == manual_changes.UNCHANGED:
        path.chmod(file.mode)
    elif outcome == manual_changes.WRITTEN:
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace_file(path, file.content, file.mode)


def _remove_file(folder: Path, name: str, former: str, done: WriteResult, *, force: bool) -> None:
    """Remove what an earlier render wrote and this one does not."""
    path = _resolve_path(folder, name)
    there = _compute_digest(path)
    if there is None:
        return
    outcome = manual_changes.decide_on_removal(there, former, force=force)
    getattr(done, outcome).append(name)
    if outcome == manual_changes.KEPT:
        return
    path.unlink()
    with contextlib.suppress(OSError):
        path.parent.rmdir()


def _resolve_path(folder: Path, name: str) -> Path:
    """Return the path of a file. Raises UserError where a link leads out of the folder."""
    path = folder
    for part in name.split("/"):
        if part in ("", ".", ".."):
            raise UserError(
                f"{folder / RECORD}: {name!r} is no path in the folder", fix="remove it"
            )
        path = path / part
        if _is_link(path, name):
            raise UserError(
                f"{path}: this is a link, and no render made it",
                fix=f"rm {clean_text.quote_word(path)}",
            )
    return path


def _is_link(path: Path, name: str) -> bool:
    """Whether a path is a link. Raises UserError for one that no system can look up."""
    try:
        return path.is_symlink()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        shown = clean_text.clean_line(name)[:_MAX_SHOWN]
        raise UserError(
            f"{RECORD}: {shown!r} is no path in the folder: {reason}", fix="render the folder again"
        ) from None


def _compute_digest(path: Path) -> str | None:
    """Return a file's digest; None where there is none. A folder has a text of its own."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _replace_file(path: Path, content: bytes, mode: int) -> None:
    """Replace a file atomically."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        beside.write_bytes(content)
        beside.chmod(mode)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def compute_plan_digest(plan: MachinePlan | WeightsPlan) -> str:
    """Sum up a plan, or its part for the weights: SHA-256 of its JSON, keys sorted."""
    text = json.dumps(plan, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
