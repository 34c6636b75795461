"""One CUDA toolkit out of wheels. That it compiles is shown where the wheels are: tests/lab."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kimi_prov.on_host.__main__ import main
from kimi_prov.on_host.engine.cuda_home import links

if TYPE_CHECKING:
    from pathlib import Path


def test_the_compilers_own_headers_go_before_those_of_other_packages(tmp_path: Path) -> None:
    for name in (
        "cu13/include/cuda.h",
        "cu13/include/crt/host.h",
        "cuda_runtime/include/cuda.h",
        "cusparse/include/cusparse.h",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = links(tmp_path, "cu13")
    assert found["include/cuda.h"] == tmp_path / "cu13/include/cuda.h"
    assert found["include/crt"] == tmp_path / "cu13/include/crt"
    # PyTorch's headers want it, and it is another package's.
    assert found["include/cusparse.h"] == tmp_path / "cusparse/include/cusparse.h"
    assert found["bin"] == tmp_path / "cu13/bin"
    # Under the name that linkers look for, and under the one that programs load.
    assert found["lib64/libcudart.so"] == found["lib64/libcudart.so.13"]


def test_an_environment_without_the_compiler_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"expected CUDA's compiler at .*/nvidia/cu13/bin/nvcc"):
        main(["cuda-home", str(tmp_path / "cuda")])
    assert not (tmp_path / "cuda").exists()
