"""`kimi-prov/bundle/v1`: the index of an offline bundle."""

from __future__ import annotations

from typing import Literal, TypedDict

from kimi_prov.contract.documents.form import Bytes, Count, NotRequired, Sha256


class Bundle(TypedDict):
    """What an offline bundle holds, with the SHA-256 of every file, and what it lacks.

    Sizes in bytes. Paths are below the bundle's folder. ok: nothing is missing; only then
    the index is written and signed.
    """

    schema: Literal["kimi-prov/bundle/v1"]
    ok: bool
    kimi_prov: str
    """The version that made the bundle."""
    bytes: Bytes
    machines: list[BundledMachine]
    locks: list[BundledLock]
    pythons: list[BundledPython]
    archives: list[BundledArchive]
    weights: list[BundledWeights]
    files: list[BundledFile]
    missing: list[str]
    notices: list[str]
    """What has to be known before the bundle is passed on."""
    since: NotRequired[BundledSince]
    """Present in a difference: the folder has only what the earlier bundle lacks."""
    removed: NotRequired[list[str]]
    """Files of earlier bundles that nothing needs any more and that may still lie there."""
    advisories: NotRequired[list[Advisory]]
    """Known security faults of the Python packages when it was made; only in what is printed,
    where they were asked for."""


class BundledSince(TypedDict):
    """The earlier bundle of a difference."""

    index_sha256: Sha256
    """Of its bundle.json."""
    bytes: Bytes
    """To be carried."""


class Advisory(TypedDict):
    """A known security fault of a package."""

    id: str
    package: str
    version: str
    fixed_in: list[str]


class BundledMachine(TypedDict):
    """A machine whose plan is covered."""

    name: str
    system: str
    engine: str | None
    """null for a gateway."""


class BundledLock(TypedDict):
    """The wheels of a lock for one interpreter."""

    name: str
    sha256: Sha256
    python: str
    arch: str
    files: list[str]


class BundledPython(TypedDict):
    """A build of CPython."""

    name: str
    sha256: Sha256
    file: str


class BundledArchive(TypedDict):
    """A signed archive of a distribution's packages, with all that they depend on."""

    system: str
    arch: str
    packages: list[str]
    """The requested ones."""
    count: Count
    """Of all packages."""
    file: str
    signature: str


class BundledWeights(TypedDict):
    """The model's files, and how a machine gets them."""

    model: str
    revision: str
    source: str
    bytes: Bytes
    folder: NotRequired[str]
    """Where they lie in the bundle; absent where they come another way."""
    instruction: str


class BundledFile(TypedDict):
    """One file."""

    path: str
    bytes: Bytes
    sha256: Sha256
