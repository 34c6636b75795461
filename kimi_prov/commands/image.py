"""`kimi-prov image`: the folder that an engine's image is built from, by buildah, podman or docker.

The image has the same packages as a machine: the same locks, installed by the same program.

Decides: the image of an engine (with the files of `kimi_prov/packaging/image`).
Held by: tests/unit/commands/test_image_folder.py, tests/lab/test_image.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from kimi_prov import __version__
from kimi_prov.catalog import loader
from kimi_prov.commands.common.command import Command
from kimi_prov.commands.common.options import CATALOG, PATH
from kimi_prov.contract import clean_text
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.packaging import lock_files, zipapp
from kimi_prov.planner.software import installation, system
from kimi_prov.render import folder_writer
from kimi_prov.render.folder_writer import File
from kimi_prov.show.output import say
from kimi_prov.show.report import sbom
from kimi_prov.show.text.formats import describe_engine

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kimi_prov.catalog.engines import Engine
    from kimi_prov.catalog.loader import Catalogue

KIND = "image"
_SOURCES = Path(zipapp.__file__).resolve().parent / "image"
_CONTAINERFILE = "Containerfile"
# Distributions whose own Python is that of the locks.
_BASES = {
    "3.11": "docker.io/library/debian:12-slim",
    "3.12": "docker.io/library/ubuntu:24.04",
}
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,254}")
# The time of a build if none is named: the same each time.
_EPOCH = 1580601600


@click.command(cls=Command)
@click.argument("engine", metavar="ENGINE")
@click.option(
    "--output", type=PATH, required=True, metavar="DIR", help="The folder that is written."
)
@click.option(
    "--python",
    type=click.Choice(list(_BASES)),
    default="3.11",
    show_default=True,
    help="The Python of the base image.",
)
@click.option(
    "--base",
    metavar="IMAGE",
    help="The base image, of Debian's kind.  [default: Debian 12; for Python 3.12 Ubuntu 24.04]",
)
@click.option(
    "--find-links",
    type=PATH,
    metavar="DIR",
    help="Folder of wheels that no index has; those in the locks are copied.",
)
@click.option("--force", is_flag=True, help="Overwrite files that were changed by hand, too.")
@CATALOG
def image(
    engine: str,
    output: Path,
    *,
    python: str,
    base: str | None,
    find_links: Path | None,
    force: bool,
) -> ExitCode:
    """Write the folder that an image for pods is built from, by buildah, podman or docker.

    ENGINE: vllm-cuda, vllm-cpu, ktransformers-cuda, or one with its version, as vllm-cuda-0.32.0.
    The image holds the engine by the catalogue's locks, the programs of its pods, and its bill of
    materials.
    """
    catalogue = loader.load_catalogue()
    row = _find_engine(engine, catalogue)
    if base is not None and not _IMAGE.fullmatch(base):
        raise UserError(
            f"--base {clean_text.clean_line(base)}: this is no name of an image",
            fix="write for example  --base docker.io/library/debian:12-slim",
        )
    if find_links is not None and not find_links.is_dir():
        raise UserError(
            f"{clean_text.clean_line(find_links)}: this is no folder", fix="name a folder of wheels"
        )
    files = _make_files(row, catalogue, python, base or _BASES[python], find_links)
    lock_sha256 = _hash_text(catalogue.lock(row.lock_name(python)))
    done = folder_writer.write_folder(
        output, folder_writer.RenderedFolder(KIND, engine, lock_sha256, files), force=force
    )
    counts = f"{len(done.written)} files written, {len(done.unchanged)} unchanged"
    say(f"{clean_text.clean_line(output)}: {counts}")
    for path in done.kept:
        say(f"  kept, because it was changed by hand: {path} (--force overwrites it)")
    say(f"next:  {clean_text.clean_row(_build_command(row, output, lock_sha256))}")
    return ExitCode.OK


def _build_command(engine: Engine, folder: Path, lock_sha256: str) -> str:
    """Return the line that builds the image; the same folder and base give the same digest."""
    tag = clean_text.quote_word(_make_tag(engine, lock_sha256))
    return f"buildah build --timestamp {_read_epoch()} --tag {tag} {clean_text.quote_word(folder)}"


def _find_engine(name: str, catalogue: Catalogue) -> Engine:
    """Return the engine that a name such as vllm-cuda or vllm-cuda-0.32.0 means."""
    rows = {f"{row.name}-{row.variant}-{row.version}": row for row in catalogue.engines}
    rows |= {f"{row.name}-{row.variant}": row for row in reversed(catalogue.engines)}
    engine = rows.get(name)
    if engine is None:
        names = ", ".join(sorted(rows))
        raise UserError(
            f"{clean_text.clean_line(name)}: no such engine", fix=f"name one of {names}"
        )
    return engine


def _read_epoch() -> int:
    """Return the time of all files of the image, in seconds since 1970."""
    given = os.environ.get("SOURCE_DATE_EPOCH", "")
    return int(given) if given.isdigit() else _EPOCH


def _make_tag(engine: Engine, lock_sha256: str) -> str:
    """Return the image's name, made from its content."""
    return f"kimi-prov/{engine.name}-{engine.variant}:{engine.version}-{lock_sha256[:10]}"


def _make_files(
    engine: Engine, catalogue: Catalogue, python: str, base: str, find_links: Path | None
) -> list[File]:
    """Return the files of the folder: only what a build reads.

    `find_links`: a folder of wheels that no index has, such as torch for CPUs.
    """
    lock = engine.lock_name(python)
    named = {"name": engine.name, "variant": engine.variant, "version": engine.version}
    if lock not in catalogue.locks:
        raise UserError(
            f"{describe_engine(named)} has no lock file for Python {python}",
            fix="name another version or --python",
        )
    names = [lock, installation.HUB_LOCK]
    texts = {name: catalogue.lock(name) for name in (*names, installation.UV_LOCK)}
    values = _build_values(engine, python, base, texts[lock])
    materials = sbom.build_image_document(
        values["tag"],
        named,
        {name: texts[name] for name in names},
    )
    files = [
        File(_CONTAINERFILE, _render_containerfile(values)),
        File("install", (_SOURCES / "install").read_bytes(), 0o755),
        File("kimi-pod", (_SOURCES / "kimi-pod").read_bytes(), 0o755),
        File("os_packages.py", (_SOURCES / "os_packages.py").read_bytes()),
        File("kimi-target.pyz", zipapp.make_zipapp_bytes(), 0o755),
        File("sbom.cdx.json", (json.dumps(materials, indent=2, sort_keys=True) + "\n").encode()),
        *(File(f"locks/{name}", text.encode()) for name, text in texts.items()),
        *_list_wheels([catalogue.lock_path(name) for name in texts], find_links),
    ]
    if metadata := installation.make_engine_metadata(engine, python):
        files.append(File("metadata", f"{metadata['path']}\n{metadata['content']}".encode()))
    return files


def _list_wheels(locks: Sequence[Path], find_links: Path | None) -> list[File]:
    folder = str(find_links) if find_links else None
    paths = {Path(path) for lock in locks for path in lock_files.list_pinned_wheels(lock, folder)}
    return [File(f"wheels/{path.name}", path.read_bytes()) for path in sorted(paths)]


def _build_values(engine: Engine, python: str, base: str, lock: str) -> dict[str, Any]:
    digest = _hash_text(lock)
    return {
        "engine": engine.name,
        "variant": engine.variant,
        "version": engine.version,
        "program_version": __version__,
        "epoch": _read_epoch(),
        "created": datetime.fromtimestamp(_read_epoch(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "tag": _make_tag(engine, digest),
        "base": base,
        "python": python,
        "packages": system.list_image_packages(
            compiles=engine.variant != "cpu", proxied=engine.name != "vllm"
        ),
        # A toolkit of CUDA's wheels, for an engine that compiles by it.
        "toolkit": engine.name != "vllm",
        "locks": [engine.lock_name(python)],
        "lock_sha256": digest,
    }


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _render_containerfile(values: Mapping[str, Any]) -> bytes:
    environment = Environment(
        loader=FileSystemLoader(_SOURCES),
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701  (no page: values are of the catalogue, the base is a name)
        keep_trailing_newline=True,
    )
    return environment.get_template(f"{_CONTAINERFILE}.j2").render(values).encode()
