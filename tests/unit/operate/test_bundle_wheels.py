"""Which wheels of a folder are those of a lock for an interpreter."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from kimi_prov.operate.bundle.wheels import Target, find_wheels

if TYPE_CHECKING:
    from pathlib import Path


def fill(folder: Path, *names: str) -> Path:
    """Files of these names, and the lock that allows them all."""
    rows: dict[str, list[str]] = {}
    for name in names:
        (folder / name).write_bytes(name.encode())
        package, version, *_ = name.split("-")
        digest = hashlib.sha256(name.encode()).hexdigest()
        rows.setdefault(f"{package.replace('_', '-')}=={version}", []).append(digest)
    lock = folder / "lock.txt"
    lock.write_text(
        "".join(
            " \\\n".join([pin, *(f"    --hash=sha256:{digest}" for digest in digests)]) + "\n"
            for pin, digests in rows.items()
        )
    )
    return lock


@pytest.mark.parametrize(
    ("name", "python", "glibc", "fits"),
    [
        ("a-1-py3-none-any.whl", "3.11", "2.36", True),
        ("a-1-py2.py3-none-any.whl", "3.11", "2.36", True),
        ("a-1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", "3.11", "2.36", True),
        ("a-1-cp311-cp311-manylinux_2_17_x86_64.whl", "3.12", "2.36", False),
        ("a-1-cp38-abi3-manylinux_2_28_x86_64.whl", "3.11", "2.36", True),
        ("a-1-cp312-abi3-manylinux_2_28_x86_64.whl", "3.11", "2.36", False),
        ("a-1-cp38-abi3-manylinux_2_39_x86_64.whl", "3.11", "2.36", False),
        ("a-1-cp311-cp311-manylinux2014_aarch64.whl", "3.11", "2.36", False),
        ("a-1-py37-none-any.whl", "3.11", "2.36", True),
        ("a-1-py312-none-any.whl", "3.11", "2.36", False),
        ("a-1-py2-none-any.whl", "3.11", "2.36", False),
        ("a-1-cp311-none-any.whl", "3.11", "2.36", True),
        ("a-1-cp311-cp311-win_amd64.whl", "3.11", "2.36", False),
    ],
)
def test_a_wheel_fits_by_its_tags(
    tmp_path: Path, name: str, python: str, glibc: str, *, fits: bool
) -> None:
    lock = fill(tmp_path, name)
    assert (find_wheels(lock, Target(python, "x86_64", glibc), tmp_path) == {"a": name}) is fits


def test_a_damaged_wheel_is_none(tmp_path: Path) -> None:
    lock = fill(tmp_path, "a_b-1-py3-none-any.whl", "c-2-py3-none-any.whl")
    (tmp_path / "c-2-py3-none-any.whl").write_bytes(b"other")
    found = find_wheels(lock, Target("3.11", "x86_64", None), tmp_path)
    assert found == {"a-b": "a_b-1-py3-none-any.whl"}
