"""`cuda-home DIR`: make one CUDA toolkit of the compiler and headers in an environment's wheels.

DIR is in that environment. Engines that compile kernels look for one directory with `bin/nvcc`,
`include`, `lib64/libcudart.so` and `lib64/stubs/libcuda.so`; the wheels have these in one directory
a package, the libraries under another name, and no libcuda. At the end a kernel is compiled and
linked, in the sandbox and without a GPU, so that a broken compiler is found then.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.system import sandbox
from kimi_prov.on_host.system.process import run

if TYPE_CHECKING:
    import subprocess

# The release whose wheels have nvcc; their directory has its name.
_RELEASE = "cu13"
_LIBRARIES = ("libcudart.so.13", "libcudart_static.a", "libcudadevrt.a")
_COMPILE_TIMEOUT_S = 120.0
_KERNEL = """#include <cuda_bf16.h>
#include <cublas_v2.h>
#include <curand_kernel.h>
#include <cusparse.h>
__global__ void twice(float *x) { x[threadIdx.x] *= 2; }
extern "C" int run(float *x) { twice<<<1, 32>>>(x); return cudaGetLastError(); }
"""


def main(argv: list[str]) -> int:
    """Make DIR and compile with it; an error names what is missing."""
    if len(argv) != 1:
        raise HostError("expected: cuda-home DIR")
    home = Path(argv[0])
    compiler = f"lib/python3*/site-packages/nvidia/{_RELEASE}/bin/nvcc"
    found = sorted(home.parent.glob(compiler))
    if not found:
        raise HostError(f"expected CUDA's compiler at {home.parent}/{compiler}")
    wheels = found[0].parents[2]
    for path, target in list_links(wheels, _RELEASE).items():
        place = home / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.is_symlink():
            place.unlink()
        place.symlink_to(os.path.relpath(target, place.parent))
    _write_driver_stub(home / "lib64" / "stubs")
    _compile(home)
    return 0


def list_links(wheels: Path, release: str) -> dict[str, Path]:
    """Return the link target of each name in the toolkit; the compiler's own headers come first."""
    own = wheels / release
    found = {"bin": own / "bin", "nvvm": own / "nvvm"}
    for folder in [own / "include", *sorted(wheels.glob("*/include"))]:
        for header in sorted(folder.iterdir()):
            found.setdefault(f"include/{header.name}", header)
    for name in _LIBRARIES:
        found[f"lib64/{name}"] = own / "lib" / name
    found["lib64/libcudart.so"] = own / "lib" / _LIBRARIES[0]
    return found


def _write_driver_stub(folder: Path) -> None:
    """Write a stub of the driver's library for linkers: its name and no function."""
    folder.mkdir(parents=True, exist_ok=True)
    soname = ["-shared", "-Wl,-soname,libcuda.so.1"]
    argv = ["g++", *soname, "-x", "c", "-o", str(folder / "libcuda.so"), os.devnull]
    _require_success(run(*argv, timeout=_COMPILE_TIMEOUT_S))


def _compile(home: Path) -> None:
    where = [f"-I{home}/include", f"-L{home}/lib64", f"-L{home}/lib64/stubs"]
    made = ["-shared", "-Xcompiler", "-fPIC", "-arch=sm_80", "-o", "kernel.so"]
    argv = [f"{home}/bin/nvcc", *made, *where, "kernel.cu", "-lcudart", "-lcuda"]
    # In a folder that is made in the sandbox, which sees no file of root.
    script = ("/bin/sh", "-c", 'cd "$(mktemp -d)" && cat > kernel.cu && exec "$0" "$@"')
    _require_success(
        sandbox.run(*script, *argv, env={}, stdin=_KERNEL, timeout=_COMPILE_TIMEOUT_S), argv[0]
    )


def _require_success(done: subprocess.CompletedProcess[str], compiler: str = "g++") -> None:
    if done.returncode:
        name = os.path.basename(compiler)
        print((done.stdout + done.stderr).strip()[-2000:], file=sys.stderr)
        raise HostError(
            f"{name} does not compile here: expected status 0, it ended with {done.returncode}"
        )
