"""The wheel of the kimi-prov that runs here, for machines that install it by its SHA-256.

Where it is installed, the wheel is made again from the installed files; in a checkout it is built
as a release is. The same files give the same bytes. It holds the lock of all that it needs.

Decides: which kimi-prov a machine installs that provisions itself.
Held by: tests/component/packaging/test_own_wheel.py.
"""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from kimi_prov.errors import UserError
from kimi_prov.packaging import engine_plugins, resources

DISTRIBUTION = "kimi-prov"
# The locks that it carries, as paths in the wheel; the second is its own.
LOCKS = "kimi_prov/catalog/locks"
LOCK = f"{LOCKS}/kimi-prov.txt"
_PACKAGE = Path(__file__).resolve().parents[1]
# What an installer adds to the wheel's own description.
_ADDED = frozenset({"INSTALLER", "RECORD", "REQUESTED", "direct_url.json", "uv_cache.json"})
_FIX = "install kimi-prov from its wheel, or name one with --package URL#sha256=DIGEST"


@dataclass(frozen=True)
class Wheel:
    """A wheel's file name and content."""

    name: str
    content: bytes

    @property
    def sha256(self) -> str:
        """Digest of the content, in hexadecimal."""
        return hashlib.sha256(self.content).hexdigest()


@cache
def make_wheel() -> Wheel:
    """Make the wheel. Raises UserError where the installation does not tell what belongs to it."""
    return _build() if resources.find_root() == _PACKAGE.parent else _pack_installed()


def _build() -> Wheel:
    """Build the wheel of a checkout: what git ignores, as a lab's files, stays out."""
    try:
        from hatchling.builders.wheel import WheelBuilder  # noqa: PLC0415  (of a checkout alone)
    except ImportError:
        raise UserError(
            "the wheel of this checkout cannot be built: hatchling is not installed",
            fix=f"pip install hatchling, or {_FIX}",
        ) from None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(next(iter(WheelBuilder(str(_PACKAGE.parent)).build(directory=folder))))
        return Wheel(path.name, path.read_bytes())


def _pack_installed() -> Wheel:
    """Pack the files that the installation lists as its own."""
    try:
        found = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        raise UserError("the files of this kimi-prov are listed nowhere", fix=_FIX) from None
    if Path(str(found.locate_file("kimi_prov"))).resolve() != _PACKAGE:
        raise UserError(f"{_PACKAGE}: another kimi-prov is installed beside this one", fix=_FIX)
    info = f"kimi_prov-{found.version}.dist-info"
    files: dict[str, bytes] = {}
    for row in found.files or ():
        top = row.parts[0]
        if top not in ("kimi_prov", info) or "__pycache__" in row.parts or row.name in _ADDED:
            continue
        try:
            files[row.as_posix()] = Path(str(found.locate_file(row))).read_bytes()
        except OSError as error:
            raise UserError(f"{row}: cannot be read: {error.strerror}", fix=_FIX) from None
    if LOCK not in files:
        raise UserError(f"this kimi-prov has no {LOCK}", fix=_FIX)
    content = engine_plugins.pack_wheel(dict(sorted(files.items())), info, compress=True)
    return Wheel(f"kimi_prov-{found.version}-py3-none-any.whl", content)
