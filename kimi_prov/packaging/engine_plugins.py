"""Wheels of this project's packages that run inside an engine's environment.

The same sources give the same bytes, so that a lock can pin a wheel.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import tomllib
import zipfile
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent.parent / "engine_plugins"
# Endings of files in a wheel: a kernel in C is compiled where it is installed.
_PACKED = (".py", ".c", ".h")
# The earliest time that the format can hold.
_EPOCH = (1980, 1, 1, 0, 0, 0)


def make_wheel(name: str) -> tuple[str, bytes]:
    """Return the file name and the bytes of the wheel of a plugin such as "kt-experts"."""
    source, project = _find_source(name)
    stem = f"{project['name'].replace('-', '_')}-{project['version']}"
    info = f"{stem}.dist-info"
    package = source / project["name"].replace("-", "_")
    files = {
        f"{package.name}/{path.relative_to(package).as_posix()}": path.read_bytes()
        for path in sorted(package.rglob("*"))
        if path.suffix in _PACKED
    }
    files |= {
        f"{info}/METADATA": _make_metadata(project),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: kimi-prov\nRoot-Is-Purelib: true\n"
        b"Tag: py3-none-any\n",
        f"{info}/entry_points.txt": _make_entry_points(project["entry-points"]),
    }
    return f"{stem}-py3-none-any.whl", pack_wheel(files, info)


def pack_wheel(files: dict[str, bytes], info: str, *, compress: bool = False) -> bytes:
    """Pack a wheel's files, by path, with their record; `info` is its folder of metadata."""
    rows = [f"{path},{_compute_digest(data)},{len(data)}" for path, data in files.items()]
    record = "\n".join([*rows, f"{info}/RECORD,,\n"]).encode()
    method = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    return _pack_zip({**files, f"{info}/RECORD": record}, method)


def name_distribution(name: str) -> str:
    """Return the name of the distribution of a plugin such as "kt-experts"."""
    return str(_find_source(name)[1]["name"])


def _find_source(name: str) -> tuple[Path, dict[str, Any]]:
    source = _HERE / name.replace("-", "_")
    text = (source / "pyproject.toml").read_text(encoding="utf-8")
    return source, tomllib.loads(text)["project"]


def write(name: str, directory: Path) -> Path:
    """Write a plugin's wheel into a directory; return its path."""
    file, data = make_wheel(name)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / file
    if not path.exists() or path.read_bytes() != data:
        path.write_bytes(data)
    return path


def make_requirement(name: str) -> str:
    """Return the line with which a lock pins the plugin's wheel."""
    file, data = make_wheel(name)
    digest = hashlib.sha256(data).hexdigest()
    return f"{name_distribution(name)}=={file.split('-')[1]} \\\n    --hash=sha256:{digest}\n"


def find_plugin(lock: str) -> str | None:
    """Return the plugin of a lock such as "kt-experts-0.1.0.txt"."""
    match = re.fullmatch(r"(.+)-\d[^-]*\.txt", lock)
    name = match.group(1) if match else ""
    return name if name and (_HERE / name.replace("-", "_") / "pyproject.toml").is_file() else None


def _make_metadata(project: dict[str, str]) -> bytes:
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {project['name']}",
        f"Version: {project['version']}",
        f"Summary: {project['description']}",
        f"Requires-Python: {project['requires-python']}",
    ]
    return ("\n".join(lines) + "\n").encode()


def _make_entry_points(groups: dict[str, dict[str, str]]) -> bytes:
    lines = []
    for group, rows in groups.items():
        lines += [f"[{group}]", *[f"{name} = {target}" for name, target in rows.items()]]
    return ("\n".join(lines) + "\n").encode()


def _compute_digest(data: bytes) -> str:
    plain = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    return f"sha256={plain}"


def _pack_zip(files: dict[str, bytes], method: int) -> bytes:
    """Pack files. Where a lock pins the digest nothing is compressed: versions of zlib differ."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for path, data in files.items():
            entry = zipfile.ZipInfo(path, _EPOCH)
            entry.external_attr = 0o644 << 16
            entry.create_system = 3
            entry.compress_type = method
            archive.writestr(entry, data)
    return stream.getvalue()
