"""One CUDA toolkit out of wheels. That it compiles is shown where the wheels are: tests/lab."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from systemd_stand_in import systemd_stand_in

from kimi_prov.on_host.__main__ import main
from kimi_prov.on_host.engine.cuda_home import list_links

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_compilers_own_headers_go_before_those_of_other_packages(tmp_path: Path) -> None:
    for name in (
        "cu13/include/cuda.h",
        "cu13/include/crt/host.h",
        "cuda_runtime/include/cuda.h",
        "cusparse/include/cusparse.h",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = list_links(tmp_path, "cu13")
    assert found["include/cuda.h"] == tmp_path / "cu13/include/cuda.h"
    assert found["include/crt"] == tmp_path / "cu13/include/crt"
    # PyTorch's headers want it, and it is another package's.
    assert found["include/cusparse.h"] == tmp_path / "cusparse/include/cusparse.h"
    assert found["bin"] == tmp_path / "cu13/bin"
    # Under the name that linkers look for, and under the one that programs load.
    assert found["lib64/libcudart.so"] == found["lib64/libcudart.so.13"]


def test_what_the_wheels_compiler_does_it_does_in_the_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    systemd = systemd_stand_in(tmp_path / "systemd", monkeypatch)
    packages = tmp_path / "env/lib/python3.11/site-packages/nvidia/cu13"
    seen = tmp_path / "seen"
    compiler = f"#!/bin/sh\ncp kernel.cu {seen}\n"
    programs = {packages / "bin/nvcc": compiler, systemd.folder / "g++": "#!/bin/sh\n"}
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for program, text in programs.items():
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)
    (packages / "include").mkdir()
    home = tmp_path / "env" / "cuda"
    assert main(["cuda-home", str(home)]) == 0
    assert (home / "bin" / "nvcc").samefile(packages / "bin" / "nvcc")
    assert "__global__" in seen.read_text()
    assert "--unit=kimi-sandbox.service" in systemd.options


def test_an_environment_without_the_compiler_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cuda-home", str(tmp_path / "cuda")]) != 0
    # What a role shows of a command that failed is the last line of its standard error.
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.search(r"expected CUDA's compiler at .*/nvidia/cu13/bin/nvcc", last)
    assert not (tmp_path / "cuda").exists()
