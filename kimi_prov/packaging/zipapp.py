"""The single file that runs on managed machines: `kimi_prov.on_host` and py-cpuinfo in a zipapp."""

from __future__ import annotations

import hashlib
import io
import zipfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from kimi_prov.errors import ExitCode, UserError
from kimi_prov.user_dirs import replace_file

_EPOCH = (1980, 1, 1, 0, 0, 0)
_PACKAGE = Path(__file__).resolve().parents[1]
# Rooms of this package: the code on the machine, and what it shares with the control side.
_TRAVELS = ("contract", "on_host")
# What these have: code, and rows of knowledge.
_SUFFIXES = {".py", ".json"}
# Any Python of a machine reads this, also Python 2: it has no newer syntax, and checks the version
# before it imports anything newer.
_MAIN = """\
import sys

if sys.version_info < (3, 9):
    sys.stderr.write("Python 3.9 or newer is needed; this is %d.%d\\n" % sys.version_info[:2])
    sys.exit(2)

from kimi_prov.on_host.__main__ import run

sys.exit(run())
"""
_SHEBANG = b"#!/usr/bin/env python3\n"


def build_zipapp(dest: Path) -> Path:
    """Write the zipapp to `dest` and return its path; the same sources give the same bytes."""
    try:
        dest.parent.mkdir(parents=True, exist_ok=True)
        replace_file(dest, make_zipapp_bytes(), 0o755)
    except OSError as error:
        raise UserError(
            f"{dest}: cannot be written: {error.strerror}",
            fix="name a file in a folder that you may write to, on a disk with room",
            exit_code=ExitCode.BAD_INPUT,
        ) from error
    return dest


def compute_zipapp_sha256() -> str:
    """Return the digest of the zipapp's bytes, which identifies its version on a machine."""
    return hashlib.sha256(make_zipapp_bytes()).hexdigest()


@cache
def make_zipapp_bytes() -> bytes:
    """Return the zipapp. Order, times, modes and compression are fixed, so that bytes compare."""
    buffer = io.BytesIO()
    buffer.write(_SHEBANG)
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in sorted(_list_members().items()):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content, compresslevel=6)
    return buffer.getvalue()


def _list_members() -> dict[str, bytes]:
    """Return every file of the zipapp, in which `kimi_prov/__init__.py` is empty."""
    members = {"__main__.py": _MAIN.encode(), "kimi_prov/__init__.py": b""}
    for path in (path for folder in _TRAVELS for path in (_PACKAGE / folder).rglob("*.*")):
        if path.suffix in _SUFFIXES:
            members[f"kimi_prov/{path.relative_to(_PACKAGE).as_posix()}"] = path.read_bytes()
    for path in _find_cpuinfo().glob("*.py"):
        members[f"cpuinfo/{path.name}"] = path.read_bytes()
    return members


def _find_cpuinfo() -> Path:
    spec = find_spec("cpuinfo")
    if spec is None or spec.origin is None:
        raise UserError(
            "py-cpuinfo is not installed beside kimi-prov",
            fix="pip install py-cpuinfo",
            exit_code=ExitCode.FAILED,
        )
    return Path(spec.origin).parent
