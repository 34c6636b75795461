"""The kimi-prov that a cloud's machine installs: a wheel of a known SHA-256, and where it lies.

With it comes the CPython that it runs under, for images have any: SkyPilot's has 3.10.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kimi_prov.contract.addresses import BUCKET_ADDRESS
from kimi_prov.packaging import own_wheel
from kimi_prov.planner.settings.kinds import WHEEL

if TYPE_CHECKING:
    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.catalog.pythons import Interpreter
    from kimi_prov.planner.settings.parsing import Settings

# Of all machines in clouds.yaml, and what pyproject.toml asks for.
_ARCH = "x86_64"
_OLDEST_PYTHON = (3, 11)
# Beside the weights, whatever their folder.
_FOLDER = "kimi-prov"


@dataclass(frozen=True)
class Package:
    """A wheel. `content`: of one that the folder carries; `address`: URL or path of another's.

    `bucket` and `object`: where a machine without the folder finds a carried one.
    """

    name: str
    sha256: str
    interpreter: Interpreter
    content: bytes | None = None
    address: str | None = None
    bucket: str | None = None
    object: str | None = None

    @property
    def scheme(self) -> str | None:
        """Protocol of the bucket: s3 or gs."""
        return self.bucket.partition("://")[0] if self.bucket else None


def choose_package(settings: Settings, source: str, catalogue: Catalogue) -> Package:
    """Return what --package names, else the wheel of this kimi-prov.

    `source`: where the weights are; a machine that never sees the folder gets the wheel from the
    same bucket. Raises UserError where the wheel cannot be made.
    """
    interpreter = _choose_interpreter(catalogue)
    if settings.cloud_package:
        return _read_package(settings.cloud_package, interpreter)
    wheel = own_wheel.make_wheel()
    named = BUCKET_ADDRESS.fullmatch(source)
    return Package(
        wheel.name,
        wheel.sha256,
        interpreter,
        wheel.content,
        bucket=f"{named[1]}://{named[2]}" if named else None,
        object=f"{_FOLDER}/{wheel.sha256}/{wheel.name}" if named else None,
    )


def _choose_interpreter(catalogue: Catalogue) -> Interpreter:
    """Return the build that every machine gets; as in a plan, the last row that fits."""
    rows = (row for row in reversed(catalogue.pythons) if row.arch == _ARCH)
    return next(row for row in rows if _parse_minor(row.minor) >= _OLDEST_PYTHON)


def _parse_minor(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def _read_package(text: str, interpreter: Interpreter) -> Package:
    named = WHEEL.fullmatch(text)
    assert named is not None  # noqa: S101  (the settings are of that form)
    return Package(named["name"], named["sha256"], interpreter, address=named["address"])
