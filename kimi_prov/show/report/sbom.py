"""A software bill of materials of each machine's engine environment, as CycloneDX.

An environment is made only from its lock files, by digest, and never changed in place: so the
locks list its packages. The document also has what it needs on the machine: a bundled interpreter,
the driver and the weights.

Decides: the bill of materials.
Held by: tests/unit/show/report/test_sbom.py.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from kimi_prov import __version__
from kimi_prov.packaging import engine_plugins, lock_files
from kimi_prov.show.text.formats import clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kimi_prov.contract.documents.bundle import BundledPython

_HASHES = "kimi-prov:hashes"
_ONE_OF = "of every file of this release that the lock allows; one of them was installed"


@dataclass(frozen=True)
class Machine:
    """One machine: `status` is its entry of the status document, `locks` the texts by name.

    `page`: the lock of its web UI in the same form, empty where it has none.
    """

    name: str
    status: Mapping[str, Any]
    locks: Mapping[str, str]
    page: Mapping[str, str] = field(default_factory=dict)


def build_document(machines: Sequence[Machine]) -> dict[str, Any]:
    """Return one CycloneDX document; common components of machines are in it once."""
    bom = Bom()
    bom.metadata.tools.components.add(
        Component(name="kimi-prov", version=__version__, type=ComponentType.APPLICATION)
    )
    whole = Component(name="kimi-prov machines", bom_ref="machines", type=ComponentType.PLATFORM)
    bom.metadata.component = whole
    known: dict[str, Component] = {}

    def added(component: Component) -> Component:
        kept = known.setdefault(str(component.bom_ref.value), component)
        if kept is component:
            bom.components.add(component)
        return kept

    hosts = [added(_build_host(machine)) for machine in machines]
    bom.register_dependency(whole, hosts)
    for machine, host in zip(machines, hosts, strict=True):
        engine = added(_build_engine(machine))
        pages = [added(_build_web_ui(machine))] if machine.page else []
        parts = [engine, added(_build_model(machine)), *map(added, _build_driver(machine)), *pages]
        bom.register_dependency(host, parts)
        packages = [
            added(part)
            for name, text in machine.locks.items()
            for part in _list_packages(name, text)
        ]
        bom.register_dependency(engine, [*packages, *map(added, _build_interpreter(machine))])
        for page in pages:
            packages = [
                added(p) for name, text in machine.page.items() for p in _list_packages(name, text)
            ]
            bom.register_dependency(page, packages)
    written: dict[str, Any] = json.loads(JsonV1Dot6(bom).output_as_string())
    return written


def build_image_document(
    name: str, engine: Mapping[str, str], locks: Mapping[str, str]
) -> dict[str, Any]:
    """Return the document of an image; the same locks give the same bytes.

    `engine` has name, variant and version; the distribution's packages are added inside the build.
    """
    # No time and no random value: an image that is built again has the same digest.
    bom = Bom(serial_number=uuid5(NAMESPACE_URL, "\n".join([name, *locks.values()])))
    bom.metadata.timestamp = datetime.fromtimestamp(0, UTC)
    bom.metadata.tools.components.add(
        Component(name="kimi-prov", version=__version__, type=ComponentType.APPLICATION)
    )
    whole = Component(name=name, bom_ref="image", type=ComponentType.CONTAINER)
    bom.metadata.component = whole
    installed = Component(
        name=engine["name"],
        version=engine["version"],
        bom_ref="environment",
        type=ComponentType.APPLICATION,
        properties=[
            Property(name="kimi-prov:variant", value=engine["variant"]),
            *(Property(name="kimi-prov:lock", value=lock) for lock in locks),
            Property(name=_HASHES, value=_ONE_OF),
        ],
    )
    packages = [part for lock, content in locks.items() for part in _list_packages(lock, content)]
    for part in (installed, *packages):
        bom.components.add(part)
    bom.register_dependency(whole, [installed])
    bom.register_dependency(installed, packages)
    written: dict[str, Any] = json.loads(JsonV1Dot6(bom).output_as_string())
    return written


def build_bundle_document(
    locks: Mapping[str, str],
    packages: Iterable[tuple[str, str]],
    pythons: Iterable[BundledPython],
) -> Mapping[str, object]:
    """Return the document of an offline bundle; the same content gives the same bytes.

    `packages`: the distribution's, as file and system; `pythons`: rows with name and sha256.
    """
    debs = sorted({_build_package(file, system) for file, system in packages}, key=_get_reference)
    names = [*locks.values(), *map(_get_reference, debs)]
    bom = Bom(serial_number=uuid5(NAMESPACE_URL, "\n".join(["offline bundle", *names])))
    bom.metadata.timestamp = datetime.fromtimestamp(0, UTC)
    bom.metadata.tools.components.add(
        Component(name="kimi-prov", version=__version__, type=ComponentType.APPLICATION)
    )
    root = Component(name="offline bundle", bom_ref="bundle", type=ComponentType.DATA)
    bom.metadata.component = root
    parts = [part for lock, text in locks.items() for part in _list_packages(lock, text)]
    parts += debs
    parts += [
        Component(
            name="cpython",
            version=row["name"],
            bom_ref=f"interpreter:{row['sha256']}",
            type=ComponentType.APPLICATION,
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=row["sha256"])],
        )
        for row in pythons
    ]
    for part in parts:
        bom.components.add(part)
    bom.register_dependency(root, parts)
    return cast("Mapping[str, object]", json.loads(JsonV1Dot6(bom).output_as_string()))


def _build_package(file: str, system: str) -> Component:
    """Return a distribution's package by its file's name: NAME_VERSION_ARCH.deb."""
    name, version, arch = file.removesuffix(".deb").split("_")
    distribution = system.partition("-")[0]
    url = PackageURL(
        type="deb",
        namespace=distribution,
        name=name,
        version=version,
        qualifiers={"arch": arch, "distro": system},
    )
    return Component(
        name=name, version=version, bom_ref=str(url), type=ComponentType.LIBRARY, purl=url
    )


def _get_reference(component: Component) -> str:
    return str(component.bom_ref.value)


def format_text(machines: Sequence[Machine]) -> str:
    """Write the same as text, a package a line."""
    lines = []
    for machine in machines:
        versions, model = machine.status["versions"], machine.status["model"]
        lines += [
            clean(f"{machine.name}: {versions['engine']} {versions['engine_version']}"),
            f"  model  {clean(model['name'])} {clean(model['revision'])}",
            f"  driver {clean(versions.get('driver') or 'none')}",
            *(f"  {part.name} {part.version}, bundled" for part in _build_interpreter(machine)),
        ]
        for name, lock in {**machine.locks, **machine.page}.items():
            lines += [f"  {name}"]
            lines += [f"    {pin.name} {pin.version}" for pin in lock_files.read_pins(lock)]
        lines += [""]
    return "\n".join(lines)


def _build_host(machine: Machine) -> Component:
    name = clean(machine.name)
    return Component(name=name, bom_ref=f"machine:{name}", type=ComponentType.PLATFORM)


def _build_engine(machine: Machine) -> Component:
    versions = machine.status["versions"]
    directory = clean(versions["engine_directory"])
    return Component(
        name=clean(versions["engine"]),
        version=clean(versions["engine_version"]),
        bom_ref=f"environment:{directory}",
        type=ComponentType.APPLICATION,
        properties=[
            Property(name="kimi-prov:directory", value=directory),
            Property(name="kimi-prov:variant", value=clean(versions["engine_variant"])),
            *(Property(name="kimi-prov:lock", value=name) for name in machine.locks),
            Property(name=_HASHES, value=_ONE_OF),
        ],
    )


def _build_web_ui(machine: Machine) -> Component:
    web = machine.status["web"]
    name = clean(web["environment"])
    return Component(
        name=clean(web["name"]),
        version=clean(web["version"]),
        bom_ref=f"environment:web:{name}",
        type=ComponentType.APPLICATION,
        properties=[
            *(Property(name="kimi-prov:lock", value=lock) for lock in machine.page),
            Property(name=_HASHES, value=_ONE_OF),
        ],
    )


def _build_model(machine: Machine) -> Component:
    model = machine.status["model"]
    name, revision = clean(model["name"]), clean(model["revision"])
    verified = str(bool(model["weights_verified"])).lower()
    return Component(
        name=name,
        version=revision,
        # Whether the weights were verified differs between machines.
        bom_ref=f"weights:{name}@{revision}:{verified}",
        type=ComponentType.DATA,
        properties=[Property(name="kimi-prov:weights_verified", value=verified)],
    )


def _build_interpreter(machine: Machine) -> list[Component]:
    """Return the bundled build of CPython; a machine's own belongs to its distribution."""
    brought = machine.status["versions"].get("engine_interpreter")
    if not brought:
        return []
    version, build, digest = (clean(brought[key]) for key in ("version", "build", "sha256"))
    return [
        Component(
            name="cpython",
            version=version,
            bom_ref=f"interpreter:{digest}",
            type=ComponentType.APPLICATION,
            purl=PackageURL(type="generic", name="cpython", version=version),
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
            properties=[Property(name="kimi-prov:build", value=f"python-build-standalone {build}")],
        )
    ]


def _build_driver(machine: Machine) -> list[Component]:
    version = clean(machine.status["versions"].get("driver") or "")
    if not version:
        return []
    return [
        Component(
            name="nvidia-driver",
            version=version,
            bom_ref=f"driver:nvidia@{version}",
            type=ComponentType.DEVICE_DRIVER,
        )
    ]


def _list_packages(lock: str, text: str) -> list[Component]:
    """List the packages of a lock; a plugin of this project has no index."""
    own = engine_plugins.find_plugin(lock)
    plugin = engine_plugins.name_distribution(own) if own else None
    found = []
    for pin in lock_files.read_pins(text):
        kind = "generic" if pin.name == plugin else "pypi"
        url = PackageURL(type=kind, name=pin.name, version=pin.version)
        digests = [
            HashType(alg=HashAlgorithm.SHA_256, content=digest) for digest in sorted(pin.sha256)
        ]
        found.append(
            Component(
                name=pin.name,
                version=pin.version,
                # Another lock may allow other files of the same release.
                bom_ref=f"{lock}:{url}",
                type=ComponentType.LIBRARY,
                purl=url,
                hashes=digests,
            )
        )
    return found
